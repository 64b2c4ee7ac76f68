"""How many replicas of a model keep the objective, by replaying its recent traffic with other numbers of them.

The last minutes of traffic are served again in virtual time, by models of the engines and their own policy, with one
replica fewer, as many as there are, and one more; where that does not bracket the objective, with further ones, at most
MOST_REPLAYS in all. The smallest number that keeps the objective in each class is what the fleet needs.

Nothing is used that was not known by then: an output that has not ended gets a length from the survival curve of the
outputs that have, and the rate is scaled to the one that its trend expects once a new replica could serve. The replay
begins with idle replicas, so that its first part is not counted. The interval comes from drawing blocks of time with
replacement.

This is pure and deterministic: one traffic, one seed, one result.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.core.slo import SLO, ClassTable
from sloserve.estimator.length.kaplan_meier import SurvivalCurve, survival_curve
from sloserve.estimator.length.remaining import PRIOR_MEAN_TOKENS
from sloserve.fleet.contract.traffic import MOST_REQUESTS, RecentTraffic, SeenRequest

MOST_REPLAYS: Final = 4
WARM_S: Final = 90.0
"""Seconds of the replay that are not counted: its replicas begin idle."""
LEAST_COUNTED: Final = 20
"""Fewest requests of a class that judge it by itself."""
BLOCK_S: Final = 30.0
DRAWS: Final = 200
INTERVAL: Final = (0.05, 0.95)
"""Quantiles of the drawn attainments that are the interval: nine in ten lie within."""
SCALED: Final = (0.6, 1.8)
"""Limits of the factor by which the trend may change the rate."""
LINE: Final = "line"
"""Label of a request of a replay that is a line of a batch."""
MOST_PER_REPLICA: Final = 120
"""Most requests that are replayed for each replica; where there are more, the window is shorter."""
PEAK: Final = 0.95
"""Quantile of the streams at a time that counts as what a replica has at its busiest."""
FAILED_S: Final = 300.0
"""Seconds for which a replay that missed the objective counts."""
ALIKE: Final = 0.93
"""Part of the load of that replay from which on a load is no less."""
_PRIOR_WEIGHT: Final = 1.0


@dataclass(frozen=True, slots=True)
class AttainedShare:
    """Share of requests that met their targets, and the interval in which it lies."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Needed:
    """Number of replicas that keep the objective.

    Args:
        low: Fewest replicas that may keep it, by the upper end of the interval.
        expected: Fewest replicas that keep it as expected.
        high: Fewest replicas that keep it by the lower end of the interval.
        attained: What was found, by number of replicas.
        in_flight: Streams, waiting ones counted, that each of the replicas has at the busiest times; ``None`` where no
            replay kept the objective, or there were no streams.
    """

    low: int
    expected: int
    high: int
    attained: Mapping[int, AttainedShare]
    in_flight: float | None = None


@dataclass(frozen=True, slots=True)
class TrafficReplay:
    """Requests to serve again.

    Args:
        requests: The requests, in the order of their arrivals.
        counted_s: Time before which arrivals are not counted.
        load: Arrivals and tokens per second.
    """

    requests: tuple[WorkloadRequest, ...]
    counted_s: float
    load: tuple[float, float] = (0.0, 0.0)


Serve = Callable[[Sequence[WorkloadRequest], int], RunLog]
"""Serves requests with a number of replicas."""


def replay_of(
    traffic: RecentTraffic, classes: ClassTable, *, lead_s: float = 0.0, most: int = MOST_REQUESTS, seed: int = 0
) -> TrafficReplay:
    """Return the requests of the replay, at the rate that is expected.

    Args:
        traffic: Recent traffic of one model.
        classes: Classes of the fleet; a request of a class that is not among them is left out.
        lead_s: Seconds after which a replica that is asked for now could serve.
        most: Most requests to replay; of more traffic the newest are taken.
        seed: Seed of the lengths that are drawn.
    """
    known = [one for one in traffic.requests if one.slo_class in classes]
    seen, covers_s = known[-most:], traffic.covers_s
    if len(seen) < len(known):
        covers_s = seen[0].age_s
    rate_per_s = expected_rate_per_s(known, traffic.covers_s, lead_s)
    factor = rate_per_s * covers_s / len(seen) if seen else 1.0
    tokens = _output_tokens(seen, np.random.default_rng(seed))
    requests = tuple(
        WorkloadRequest(
            request_id=f"r{k}",
            arrival_s=max(covers_s - one.age_s, 0.0) / factor,
            prompt_tokens=max(one.prompt_tokens, 1),
            output_tokens=length,
            task=LINE if one.is_line else "",
            slo=SLO(classes[one.slo_class], one.targets),
            max_tokens=one.max_tokens,
            priority=classes[one.slo_class].rank,
        )
        for k, (one, length) in enumerate(zip(seen, tokens, strict=True))
    )
    computed = sum(one.prompt_tokens + one.output_tokens for one in requests)
    load = rate_per_s, computed * factor / max(covers_s, 1.0)
    return TrafficReplay(requests, min(WARM_S, 0.3 * covers_s) / factor, load)


def expected_rate_per_s(seen: Sequence[SeenRequest], covers_s: float, lead_s: float) -> float:
    """Return the arrivals per second that are expected in ``lead_s`` seconds, by a straight line through the window.

    It is within SCALED of the mean, and the mean where there is too little traffic for a trend.
    """
    mean_per_s = len(seen) / max(covers_s, 1.0)
    blocks = int(covers_s / BLOCK_S)
    if blocks < 4 or len(seen) < LEAST_COUNTED:
        return mean_per_s
    counts, edges = np.histogram([-one.age_s for one in seen], bins=blocks, range=(-covers_s, 0.0))
    slope, level = np.polyfit((edges[:-1] + edges[1:]) / 2.0, counts, 1)
    return mean_per_s * float(np.clip((level + slope * lead_s) / counts.mean(), *SCALED))


class Failures:
    """Numbers of replicas that have surely missed the objective, so that they are not tried again at no less load."""

    def __init__(self) -> None:
        self._missed: dict[int, tuple[float, tuple[float, float]]] = {}

    def note(self, needed: "Needed", load: tuple[float, float], objective: float, now_s: float) -> None:
        """Record what replays have found, at a time in seconds."""
        for count, found in needed.attained.items():
            if found.high < objective:
                self._missed[count] = now_s, load
            else:
                self._missed.pop(count, None)

    def misses(self, count: int, load: tuple[float, float], now_s: float) -> bool:
        """Return whether as many replicas, or more, have missed the objective lately, under no more than this load."""
        return any(
            missed >= count
            and now_s - at_s <= FAILED_S
            and all(a >= ALIKE * b for a, b in zip(load, under, strict=True))
            for missed, (at_s, under) in self._missed.items()
        )


def replicas_needed(
    replay: TrafficReplay,
    serve: Serve,
    there: int,
    most: int,
    objective: float,
    *,
    misses: Callable[[int], bool] = lambda count: False,
    seed: int = 0,
) -> Needed:
    """Return the number of replicas that the replay needs.

    Args:
        replay: Requests of the replay.
        serve: Serves them with a number of replicas.
        there: Number of replicas that there are; the search begins there.
        most: Most replicas that there may be, at least 1.
        objective: Share of the requests that shall meet their targets, in each class.
        misses: Says of a number of replicas that it needs no replay, since it would miss the objective.
        seed: Seed of the interval.
    """
    found: dict[int, AttainedShare] = {}
    in_flight: dict[int, float | None] = {}

    def keeps(count: int) -> bool:
        if misses(count):
            return False
        if count not in found:
            log = serve(replay.requests, count)
            found[count] = attained(log, replay.counted_s, seed)
            in_flight[count] = peak_in_flight(log, replay.counted_s)
        return found[count].expected >= objective

    count = min(max(there, 1), most)
    if keeps(count):
        # Fewer are tried where as many as there are keep it surely; else one fewer would not.
        while count > 1 and len(found) < MOST_REPLAYS and found[count].low >= objective and keeps(count - 1):
            count -= 1
    else:
        while count < most and len(found) < MOST_REPLAYS and not keeps(count + 1):
            count += 1
        count = min(count + 1, most)
    # Where no replay shows an end of the interval it lies one beyond them.
    may = [n for n in found if found[n].high >= objective]
    surely = [n for n in found if found[n].low >= objective]
    low, high = min(may, default=count), min(surely, default=min(max(found, default=count) + 1, most))
    busiest = in_flight.get(count) if count in found and found[count].expected >= objective else None
    return Needed(
        min(low, count), count, max(high, count), found, None if busiest is None else max(busiest / count, 1.0)
    )


def attained(log: RunLog, counted_s: float, seed: int = 0) -> AttainedShare:
    """Return the attainment of the class that is worst off; 1 where no request has targets.

    A class counts by itself with at least LEAST_COUNTED requests; if none has that number, all count together.

    Args:
        log: Log of a replay.
        counted_s: Time from which arrivals count, in seconds.
        seed: Seed of the interval.
    """
    counted = [one for one in log.requests if one.good is not None and one.request.arrival_s >= counted_s]
    if not counted:
        return AttainedShare(1.0, 1.0, 1.0)
    of_class: dict[str, list[RequestLog]] = {}
    for one in counted:
        of_class.setdefault(one.asked.slo_class.name, []).append(one)
    judged = [ones for ones in of_class.values() if len(ones) >= LEAST_COUNTED] or [counted]
    return min((_interval(ones, counted_s, seed) for ones in judged), key=lambda found: found.expected)


def peak_in_flight(log: RunLog, counted_s: float) -> float | None:
    """Return how many streams were there at a time, waiting or running, as the PEAK quantile over their arrivals."""
    streams = [one for one in log.requests if one.request.task != LINE]
    arrivals_s = np.array([one.request.arrival_s for one in streams])
    ends_s = np.sort([math.inf if one.finish_s is None else one.finish_s for one in streams])
    counted = arrivals_s >= counted_s
    if np.count_nonzero(counted) < LEAST_COUNTED:
        return None
    there = np.arange(1, arrivals_s.size + 1) - np.searchsorted(ends_s, arrivals_s, side="right")
    return float(np.quantile(there[counted], PEAK))


def _interval(logs: Sequence[RequestLog], since_s: float, seed: int) -> AttainedShare:
    """Return the share that is good, and its interval by drawing blocks of time with replacement."""
    block = np.array([int((one.request.arrival_s - since_s) / BLOCK_S) for one in logs])
    good = np.bincount(block, [bool(one.good) for one in logs])
    size = np.bincount(block)
    good, size = good[size > 0], size[size > 0]
    drawn = np.random.default_rng(seed).integers(0, size.size, (DRAWS, size.size))
    shares: FloatArray = good[drawn].sum(axis=1) / size[drawn].sum(axis=1)
    expected = float(good.sum() / size.sum())
    low, high = np.quantile(shares, INTERVAL)
    return AttainedShare(min(float(low), expected), expected, max(float(high), expected))


def _output_tokens(seen: Sequence[SeenRequest], draws: np.random.Generator) -> list[int]:
    """Return the output tokens of each request: its own, or drawn for a request that has not ended."""
    curves: dict[str, SurvivalCurve] = {}
    tokens = []
    for one, part in zip(seen, draws.random(len(seen)), strict=True):
        length = one.output_tokens
        if not one.ended:
            if one.slo_class not in curves:
                curves[one.slo_class] = _curve([other for other in seen if other.slo_class == one.slo_class])
            so_far = np.array([one.output_tokens])
            length += int(curves[one.slo_class].quantile_after(so_far, np.array([part]))[0])
        if one.max_tokens is not None:
            length = min(length, one.max_tokens)
        tokens.append(max(length, 1))
    return tokens


def _curve(seen: Sequence[SeenRequest]) -> SurvivalCurve:
    ended = np.array([one.output_tokens for one in seen if one.ended], np.int64)
    cut = np.array([one.output_tokens for one in seen if not one.ended and one.output_tokens], np.int64)
    return survival_curve(ended, cut, prior_mean_tokens=PRIOR_MEAN_TOKENS, prior_weight=_PRIOR_WEIGHT)
