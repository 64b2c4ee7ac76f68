"""Which share of a gateway's requests met their targets lately, by class, as the gateway sees their answers pass."""

from collections.abc import Sequence

import numpy as np

from sloserve.core.attainment_window import MAX_REQUESTS, AttainmentWindow, shown
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO
from sloserve.core.stamps import Stamps


class Attained:
    """The latest requests of each class. names: of the classes."""

    def __init__(self, names: Sequence[str]) -> None:
        self._stamps: dict[str, Stamps] = {name: np.zeros(MAX_REQUESTS, np.uint64) for name in names}
        self._windows = {name: AttainmentWindow(stamps) for name, stamps in self._stamps.items()}

    def ended(self, slo: SLO, latency: Latency | None, now_s: float, *, streamed: bool, rejected: bool) -> None:
        """Takes in a request that ended now, in whatever way.

        latency: ``None`` unless its answer came whole. streamed: of a reply in one piece only the end is seen here, and
        only the target for that counts.
        """
        met = ServedRequest(slo, Outcome.FAILED if latency is None else Outcome.COMPLETED, latency=latency).met
        if not streamed:
            met = {name: was_met for name, was_met in met.items() if name == "e2e"}
        if met:
            self._windows[slo.slo_class.name].record(met, rejected, now_s)

    def by_class(self, now_s: float) -> dict[str, list[list[float | int | None]]]:
        """Of each class what :func:`sloserve.core.attainment_window.shown` says."""
        return {name: shown([stamps], now_s) for name, stamps in self._stamps.items()}
