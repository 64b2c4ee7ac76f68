"""Which requests were good, and how many: attainment and goodput.

A request is good when it was completed and met every target it has. Requests without targets are left out of
numerator and denominator; they have nothing to attain. One that was rejected, aborted, evicted or lost met none of
its targets. Attainment is reported twice: over all requests that have targets, so that nobody improves it by refusing
work, and over the admitted ones, which says what a client may expect once it is in.

A TDS target counts here as a TPOT of ``1 / tds``: the mean speed after the first token. Whether the reader was held
up in between is what QoE measures. All of it can thus be computed again from arrival, first token, finish and output
length.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import Targets

TOLERANCE_S = 1e-6
"""A target is met up to this excess: times are sums of floats, and nobody promises or measures below a microsecond."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The figures of one completed request that targets speak about, in seconds.

    tpot_s: (last - first token) / (tokens - 1); 0 for a single token, which thereby meets any TPOT or TDS target.
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float


def latency(log: RequestLog) -> Latency | None:
    """The latency figures of a request; ``None`` unless it was completed with at least one token."""
    times_s = log.token_times_s
    if log.outcome is not Outcome.COMPLETED or not times_s.size:
        return None
    first_s, last_s, arrival_s = float(times_s[0]), float(times_s[-1]), log.request.arrival_s
    tpot_s = (last_s - first_s) / (times_s.size - 1) if times_s.size > 1 else 0.0
    return Latency(ttft_s=first_s - arrival_s, tpot_s=tpot_s, e2e_s=last_s - arrival_s)


def targets_met(targets: Targets, measured: Latency | None) -> dict[str, bool]:
    """For each target that is set, under its name of ``ttft``, ``tpot``, ``e2e``, ``tds``: whether it was met.

    measured: ``None`` for a request that was not completed, which meets none.
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


def is_good(log: RequestLog) -> bool | None:
    """Whether the request met every target it has; ``None`` if it has none."""
    targets = log.request.slo.targets
    return all(targets_met(targets, latency(log)).values()) if targets else None


@dataclass(frozen=True, slots=True)
class Attainment:
    """Counts of requests that have targets.

    good: met all of them. total: all, whatever became of them. rejected: those of ``total`` refused before queueing.
    """

    good: int = 0
    total: int = 0
    rejected: int = 0

    @property
    def ratio(self) -> float | None:
        """Good ones among all, 0..1; ``None`` if there are none."""
        return self.good / self.total if self.total else None

    @property
    def ratio_admitted(self) -> float | None:
        """Good ones among those not rejected, 0..1; ``None`` if there are none."""
        admitted = self.total - self.rejected
        return self.good / admitted if admitted else None

    def goodput_per_s(self, duration_s: float) -> float | None:
        """Good requests per second over ``duration_s`` > 0; ``None`` if no request has a target."""
        return self.good / duration_s if self.total else None


def attainment(logs: Iterable[RequestLog]) -> Attainment:
    """Attainment over ``logs``; those without targets are left out."""
    good = total = rejected = 0
    for log in logs:
        verdict = is_good(log)
        if verdict is None:
            continue
        total += 1
        good += verdict
        rejected += log.outcome is Outcome.REJECTED
    return Attainment(good, total, rejected)


def by_class(logs: Iterable[RequestLog]) -> dict[str, list[RequestLog]]:
    """The requests of each service class, classes in order of rank and then name."""
    found: dict[str, list[RequestLog]] = {}
    ranks: dict[str, int] = {}
    for log in logs:
        slo_class = log.request.slo.slo_class
        found.setdefault(slo_class.name, []).append(log)
        ranks[slo_class.name] = slo_class.rank
    return {name: found[name] for name in sorted(found, key=lambda name: (ranks[name], name))}


def attainment_by_class(logs: Iterable[RequestLog]) -> dict[str, Attainment]:
    """Attainment of each service class in which at least one request has a target, in order of rank."""
    counted = {name: attainment(of_class) for name, of_class in by_class(logs).items()}
    return {name: counts for name, counts in counted.items() if counts.total}
