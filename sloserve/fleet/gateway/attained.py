"""SLO attainment of a gateway's requests, by class, measured as their responses pass through it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from sloserve.core.attainment_window import MAX_REQUESTS, AttainmentWindow, not_served, ratios, shown
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO, Targets
from sloserve.core.stamps import Stamps


class OpenRequest(Protocol):
    """A request that was admitted and has not ended."""

    @property
    def slo_class(self) -> str:
        """Name of its class."""

    def has_missed(self, now_s: float) -> bool:
        """Return whether it has missed a target by now."""


class Attained:
    """The latest requests of each class, and the ones that have not ended.

    Args:
        names: Names of the classes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._stamps: dict[str, Stamps] = {name: np.zeros(MAX_REQUESTS, np.uint64) for name in names}
        self._open: dict[OpenRequest, None] = {}
        self._windows = {name: AttainmentWindow(stamps) for name, stamps in self._stamps.items()}

    def of_classes(self, names: Sequence[str]) -> "Attained":
        """Return a record for other classes; a class that is here, too, has one record for both."""
        made = Attained([name for name in names if name not in self._stamps])
        made._open = self._open
        for name in names:
            if name in self._stamps:
                made._stamps[name], made._windows[name] = self._stamps[name], self._windows[name]
        return made

    def admitted(self, request: OpenRequest) -> None:
        """Follow a request until :meth:`left`."""
        self._open[request] = None

    def left(self, request: OpenRequest) -> None:
        """Follow a request no more; :meth:`ended` records how it fared."""
        self._open.pop(request, None)

    def ended(
        self, slo: SLO, outcome: Outcome, latency: Latency | None, now_s: float, *, streamed: bool
    ) -> ServedRequest:
        """Record a request that ended now; return it as it is judged.

        Args:
            slo: Targets of the request.
            outcome: How the request ended.
            latency: Measured latency; ``None`` unless its response is complete.
            now_s: Monotonic time in seconds.
            streamed: Whether the output was streamed. Of an output in one piece only the end is seen here, and only the
                target for the end counts; without such a target it counts as a request without targets.
        """
        if not streamed:
            slo = replace(slo, targets=Targets(e2e_s=slo.targets.e2e_s))
        served = ServedRequest(slo, outcome, latency=latency)
        self._windows[slo.slo_class.name].record(served.met, outcome, now_s)
        return served

    def ratios(self, now_s: float) -> dict[str, dict[str, float]]:
        """Return what :func:`~sloserve.core.attainment_window.ratios` gives for each class."""
        return {name: ratios([stamps], now_s) for name, stamps in self._stamps.items()}

    def by_class(self, now_s: float) -> dict[str, dict[str, Any]]:
        """Return for each class what is ``attained`` and how many were ``not_served``, over each span, and ``missed``.

        See :func:`~sloserve.core.attainment_window.shown` and :func:`~sloserve.core.attainment_window.not_served`.
        ``missed`` is the number of requests that have not ended and have missed a target.
        """
        missed = Counter(one.slo_class for one in self._open if one.has_missed(now_s))
        return {
            name: {
                "attained": shown([stamps], now_s),
                "not_served": not_served([stamps], now_s),
                "missed": missed[name],
            }
            for name, stamps in self._stamps.items()
        }
