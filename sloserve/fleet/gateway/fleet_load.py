"""Ten minutes of a gateway's load: requests, tokens and held requests, sampled with or without watchers."""

from typing import Any

import numpy as np

from sloserve.core.outcome import REFUSED, Outcome
from sloserve.engine.metrics import load_history
from sloserve.fleet.gateway.parts import GatewayState


class FleetLoad:
    """The load of one gateway, by what the gateway counts itself; its methods are called in its event loop."""

    def __init__(self, parts: GatewayState) -> None:
        self._parts = parts
        self._ring = np.zeros((load_history.SLOTS, load_history.width(0)))

    def follow(self, parts: GatewayState) -> None:
        """Go on with the state of another gateway, which has the same counters."""
        self._parts = parts

    async def sample(self) -> None:
        """Take one sample."""
        parts = self._parts
        used = parts.rates.used().values()
        ended = parts.metrics.ended_by_outcome()
        figures = {
            "requests": sum(count for outcome, count in ended.items() if outcome not in REFUSED),
            "refused": ended[Outcome.REJECTED],
            "prompt_tokens": sum(one.prompt_tokens for one in used),
            "output_tokens": sum(one.output_tokens for one in used),
            "running": sum(one.requests for one in parts.instances.by_name.values()),
            "waiting": len(parts.hold),
        }
        load_history.record(self._ring, figures, (), parts.clock.monotonic_s())

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return the shares of the latest requests that met their targets, by class and target."""
        return self._parts.attained.ratios(self._parts.clock.monotonic_s())

    def parts(self) -> dict[str, Any]:
        """Return the part of the view with the latest sample."""
        latest = self._rows(1)
        return {"load": dict(zip(load_history.ROW, latest[0], strict=True)) if latest else None}

    def history(self) -> dict[str, Any]:
        """Return the load of the last ten minutes, which a watcher gets once, when it connects."""
        return {"columns": list(load_history.ROW), "rows": self._rows()}

    def _rows(self, *most: int) -> list[list[Any]]:
        clock = self._parts.clock
        now_s = clock.monotonic_s()
        return load_history.rows([self._ring], clock.now_s() - now_s, now_s, *most)
