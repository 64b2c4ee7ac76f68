"""Measured times of model switches on this host, kept in a file that outlives the agent.

Each step of a switch is measured by itself: a model that goes to sleep, and one that comes, by its method. A pair of
models that was never seen is the sum of its steps. The agent reports both, and the planner prefers them to the values
of profiles.

The store shares them with other hosts of the same kind.
"""

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from sloserve.fleet.agent.switch_methods import SwitchMethod
from sloserve.fleet.contract.reports import MeasuredSwap
from sloserve.fleet.store.switch_costs import LATEST, StoredCost, SwitchCosts
from sloserve.scheduler.virtual_queues.contract import ModelState

logger = logging.getLogger(__name__)

_MOST_UNSHARED: Final = 1_000
"""Most measurements that wait for a store that is away; older ones are dropped."""
_SLEEP: Final = "sleep_s"
_FIELDS: Final = {
    SwitchMethod.WAKE: "wake_s",
    SwitchMethod.RELOAD: "reload_s",
    SwitchMethod.IN_PLACE: "in_place_s",
    SwitchMethod.FORKED: "forked_start_s",
    SwitchMethod.COLD: "start_s",
    SwitchMethod.ADAPTER: "adapter_s",
}
_COLD: Final = frozenset(_FIELDS.values()) - {_FIELDS[SwitchMethod.WAKE]}


class Costs:
    """Measured times of switches on one kind of device.

    Args:
        path: File of the measurements, which need not exist; one that cannot be read is overwritten.
        device: Kind of the device.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._path, self._device = path, device
        self._steps: dict[str, dict[str, tuple[float, int]]] = {}
        self._last: dict[str, str] = {}
        """Step by which each model that was cold came last, by model."""
        self.unshared: deque[tuple[str, str, float]] = deque(maxlen=_MOST_UNSHARED)
        """Measurements (model, step, seconds) that wait until another takes them from here."""
        self._read()

    def adopt(self, found: Sequence[StoredCost]) -> None:
        """Adopt the measurements of other hosts for what this one has not measured.

        Args:
            found: Measurements from the store, the latest at the end.
        """
        lasts = {cost.model: cost.step for cost in found if cost.step in _COLD}
        self._last = {**lasts, **self._last}
        for cost in found:
            self._steps.setdefault(cost.model, {}).setdefault(cost.step, (cost.mean_s, cost.times))

    def note_sleep(self, model: str, seconds: float) -> None:
        """Record that the model has gone to sleep, or has otherwise left the device."""
        self._note(model, _SLEEP, seconds)

    def note_switch(self, model: str, method: SwitchMethod, seconds: float) -> None:
        """Record that the model has come; ``seconds`` include its check."""
        if method is not SwitchMethod.WAKE:
            self._last[model] = _FIELDS[method]
        self._note(model, _FIELDS[method], seconds)

    def sleep_s(self, model: str) -> float | None:
        """Return the mean seconds until the model sleeps; ``None`` if that was never measured."""
        return self._of(model, _SLEEP)

    def switch_s(self, model: str, method: SwitchMethod) -> float | None:
        return self._of(model, _FIELDS[method])

    def swaps(self, models: Iterable[str]) -> tuple[MeasuredSwap, ...]:
        """Return all switches between these models of which the steps were measured."""
        names, found = list(models), []
        for coming in names:
            warm_s, cold_s = self.switch_s(coming, SwitchMethod.WAKE), self._cold_s(coming)
            for state, comes_s in ((ModelState.WARM, warm_s), (ModelState.COLD, cold_s)):
                for leaving in (None, *names):
                    leaves_s = 0.0 if leaving is None else self.sleep_s(leaving)
                    if comes_s is not None and leaves_s is not None and leaving != coming:
                        found.append(MeasuredSwap(self._device, leaving, coming, state, round(leaves_s + comes_s, 3)))
        return tuple(found)

    def _cold_s(self, model: str) -> float | None:
        return self._of(model, self._last[model]) if model in self._last else None

    def _of(self, model: str, step: str) -> float | None:
        found = self._steps.get(model, {}).get(step)
        return None if found is None else found[0]

    def _note(self, model: str, step: str, seconds: float) -> None:
        mean, count = self._steps.setdefault(model, {}).get(step, (0.0, 0))
        mean += (seconds - mean) * max(1.0 / (count + 1), LATEST)
        self._steps[model][step] = mean, count + 1
        self.unshared.append((model, step, seconds))
        self._write()

    def _read(self) -> None:
        try:
            found: Any = json.loads(self._path.read_text(encoding="utf-8"))[self._device]
            self._last = {str(model): str(step) for model, step in found["last"].items()}
            self._steps = {
                str(model): {str(step): (float(mean), int(count)) for step, (mean, count) in steps.items()}
                for model, steps in found["steps"].items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("costs of switches in %s cannot be read, and are measured again: %s", self._path, error)

    def _write(self) -> None:
        scratch = self._path.with_suffix(".new")
        try:
            scratch.write_text(
                json.dumps({self._device: {"steps": self._steps, "last": self._last}}, indent=1), encoding="utf-8"
            )
            os.replace(scratch, self._path)
        except OSError as error:  # it is measured again after a restart
            logger.warning("costs of switches cannot be written to %s: %s", self._path, error)


SHARE_S: Final = 2.0
"""Seconds between looks at what was measured."""


class SharedCosts:
    """Exchange of this host's measured costs with the store.

    Args:
        costs: Costs of this host.
        stored: Costs in the store.
        device: Kind of the host's devices.
        executor: Executor with threads that wait for the store.
    """

    def __init__(self, costs: Costs, stored: SwitchCosts, device: str, executor: Executor) -> None:
        self._costs, self._stored, self._device, self._executor = costs, stored, device, executor
        self._has_begun = False

    async def turn(self) -> None:
        """Adopt what other hosts have measured, the first time, and report what this one has.

        Raises: StoreError; what is not reported yet is reported in the next turn.
        """
        loop = asyncio.get_running_loop()
        if not self._has_begun:
            self._costs.adopt(await loop.run_in_executor(self._executor, self._stored.of, self._device))
            self._has_begun = True
        unshared = self._costs.unshared
        while unshared:
            await loop.run_in_executor(self._executor, self._stored.add, self._device, *unshared[0])
            unshared.popleft()
