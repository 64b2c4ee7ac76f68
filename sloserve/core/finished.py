"""A request that ended, judged by what it asked for: latency, targets met, good, QoE.

Two sources, one judgement: :class:`~sloserve.core.runlog.RequestLog` has the times of all tokens,
:class:`~sloserve.core.served.ServedRequest` what the server that answered kept of them. A TDS target counts here as a
TPOT of ``1 / tds``: the mean speed after the first token. Whether the reader was held up in between is what QoE
measures.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from sloserve.core.outcome import REFUSED, Outcome
from sloserve.core.promises import Promised
from sloserve.core.slo import SLO, Targets

TOLERANCE_S = 1e-6
"""A target is met up to this excess: times are sums of floats; no target or measurement is finer than a microsecond."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The figures of one completed request to which targets apply, in seconds.

    Args:
        tpot_s: Seconds per token, (last - first token) / (tokens - 1); 0 for a single token, which therefore meets any
            TPOT or TDS target.
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float


def targets_met(targets: Targets, measured: Latency | None) -> dict[str, bool]:
    """Return for each target that is set whether it was met, under its name: ``ttft``, ``tpot``, ``e2e`` or ``tds``.

    Args:
        targets: The targets of the request.
        measured: The latency of the request; ``None`` if it was not completed, in which case it meets no target.
    """
    limits_s = {
        "ttft": targets.ttft_s,
        "tpot": targets.tpot_s,
        "e2e": targets.e2e_s,
        "tds": None if targets.tds is None else 1.0 / targets.tds,
    }
    if measured is None:
        return {name: False for name, limit_s in limits_s.items() if limit_s is not None}
    found_s = {"ttft": measured.ttft_s, "tpot": measured.tpot_s, "e2e": measured.e2e_s, "tds": measured.tpot_s}
    return {name: found_s[name] <= limit_s + TOLERANCE_S for name, limit_s in limits_s.items() if limit_s is not None}


def seconds_beyond(targets: Targets, measured: Latency | None, output_tokens: int) -> float:
    """Return the seconds by which a request exceeded its targets: the largest excess if it missed several.

    The excess over a TPOT or TDS target is the excess of each token after the first, times these tokens. A request that
    was not completed has no time that could be compared: its e2e target counts, or 0 without one.

    Args:
        targets: The targets of the request.
        measured: The latency of the request; ``None`` if it was not completed.
        output_tokens: Number of its output tokens.
    """
    if measured is None:
        return targets.e2e_s or 0.0
    later = max(output_tokens - 1, 0)
    limits = [
        (measured.ttft_s, targets.ttft_s, 1),
        (measured.e2e_s, targets.e2e_s, 1),
        (measured.tpot_s, targets.tpot_s, later),
        (measured.tpot_s, None if targets.tds is None else 1.0 / targets.tds, later),
    ]
    excesses_s = [(found_s - limit_s) * times for found_s, limit_s, times in limits if limit_s is not None]
    return max([0.0, *(excess_s for excess_s in excesses_s if excess_s > TOLERANCE_S)])


class FinishedRequest(ABC):
    """The outcome of one request. Each figure is computed once."""

    outcome: Outcome
    promised: Promised | None
    """The promise that was given at admission; ``None`` for none."""
    was_late: bool = False
    """Whether a target had been missed when its client left."""

    @property
    @abstractmethod
    def asked(self) -> SLO:
        """The SLO of the request."""

    @property
    @abstractmethod
    def latency(self) -> Latency | None:
        """Latency in seconds from the arrival, queueing included; ``None`` unless completed with at least one token."""

    @property
    @abstractmethod
    def qoe(self) -> float | None:
        """Quality of experience, 0..1, 0 unless completed; ``None`` for a request that promises no timeline."""

    @cached_property
    def met(self) -> dict[str, bool]:
        """Whether each target of the request was met, by its name; empty for a client's mistake.

        The names are ``ttft``, ``tpot``, ``e2e`` and ``tds``.
        """
        if self.outcome is Outcome.INVALID:
            return {}
        return targets_met(self.asked.targets, self.latency)

    @property
    def promise(self) -> str | None:
        """What has come of its promise, one of :data:`~sloserve.core.promises.PROMISES_KEPT`; ``None`` without one."""
        if self.promised is None or self.outcome in REFUSED:
            return None
        if self.outcome is Outcome.ABORTED and not self.was_late:
            return "withdrawn"
        return "kept" if self.good else "broken"

    @cached_property
    def good(self) -> bool | None:
        """Whether it met every target it has; ``None`` if it has none, or is a client's mistake."""
        return all(self.met.values()) if self.met else None
