"""How requests fared, recorded or replayed, and how far the two are apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RunLog
from sloserve.engine.recording.reading import Recording
from sloserve.sim.recorded_run import in_time, latency
from sloserve.sim.replay.traffic import Traffic
from sloserve.sim.workloads.seeding import stream

TRUSTED_POINTS: Final = 3.0
"""Largest error of a replay, in points of requests in time, with which it is to be trusted."""
_PARTS: Final = 20
"""Stretches of time of which intervals are made: requests near each other in time share their fate."""
_DRAWS: Final = 2000


@dataclass(frozen=True, slots=True, eq=False)
class Fates:
    """How the judged requests of a recording or a replay fared, in the order of the traffic.

    Args:
        met: Whether each request with targets met all of them, ``[n]``.
        at_s: When each of them arrived, in seconds from the start of the replay, ``[n]``.
        slo_class: Name of the class of each, ``[n]``.
        ttft_s: Times to first token of the judged requests that had one, with and without targets.
        output_tokens: Tokens of their outputs, summed.
    """

    met: FloatArray
    at_s: FloatArray
    slo_class: Sequence[str]
    ttft_s: FloatArray
    output_tokens: int

    def in_time(self, slo_class: str | None = None) -> float | None:
        """Return the share of requests in time, of a class or of all; ``None`` where none has targets."""
        chosen = self.met if slo_class is None else self.met[[name == slo_class for name in self.slo_class]]
        return float(chosen.mean()) if chosen.size else None

    def ttft(self, quantile: float) -> float | None:
        """Return a quantile of the times to first token, in seconds."""
        return float(np.quantile(self.ttft_s, quantile)) if self.ttft_s.size else None

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report."""
        return {
            "in_time": self.in_time(),
            "in_time_by_class": {name: self.in_time(name) for name in sorted(set(self.slo_class))},
            "ttft_p50_s": self.ttft(0.5),
            "ttft_p99_s": self.ttft(0.99),
            "output_tokens": self.output_tokens,
        }


def recorded_fates(recording: Recording, traffic: Traffic) -> Fates:
    """Return how the judged requests of a recording fared that have ended."""
    rows = []
    for request in traffic.requests:
        number = int(request.request_id[1:])
        end = recording.ended.get(number)
        if end is None or not _is_judged(traffic, request.request_id):
            continue
        measured = latency(recording, number)
        rows.append((request.request_id, measured, end.output_tokens))
    return _fates(traffic, rows)


def replayed_fates(log: RunLog, traffic: Traffic, ids: Iterable[str] | None = None) -> Fates:
    """Return how the judged requests of a replay fared.

    Args:
        log: Log of the replay.
        traffic: What was replayed.
        ids: Ids of requests to judge alone, such as the ended ones of the recording; ``None`` for all.
    """
    only = None if ids is None else set(ids)
    rows = []
    for one in log.requests:
        request_id = one.request.request_id
        if not _is_judged(traffic, request_id) or (only is not None and request_id not in only):
            continue
        measured = one.latency if one.outcome is Outcome.COMPLETED else None
        rows.append((request_id, measured, one.token_times_s.size))
    return _fates(traffic, rows)


def ended_ids(recording: Recording, traffic: Traffic) -> frozenset[str]:
    """Return the ids of the requests of the traffic that have ended in the recording."""
    return frozenset(one.request_id for one in traffic.requests if int(one.request_id[1:]) in recording.ended)


def _is_judged(traffic: Traffic, request_id: str) -> bool:
    """Return whether a request counts; a client that left asks for nothing."""
    return request_id in traffic.judged and request_id not in traffic.left_s


def _fates(traffic: Traffic, rows: Sequence[tuple[str, Latency | None, int]]) -> Fates:
    asked = {one.request_id: one for one in traffic.requests}
    met, at_s, names = [], [], []
    for request_id, measured, _ in rows:
        request = asked[request_id]
        targets = request.slo.targets
        if targets:
            met.append(float(in_time(targets, measured)))
            at_s.append(request.arrival_s)
            names.append(request.slo.slo_class.name)
    ttft_s = np.array([measured.ttft_s for _, measured, _ in rows if measured is not None])
    return Fates(np.array(met), np.array(at_s), names, ttft_s, sum(tokens for _, _, tokens in rows))


@dataclass(frozen=True, slots=True)
class ReplayError:
    """How far a replay of what ran is from the recording.

    Args:
        points: Requests in time of the replay less the recording's, in points; ``None`` without targets.
        by_class: The same by class.
        ttft_p50: Median TTFT of the replay over the recorded one, less 1; ``None`` without tokens.
        ttft_p99: The same of the 99th percentile.
    """

    points: float | None
    by_class: Mapping[str, float]
    ttft_p50: float | None
    ttft_p99: float | None

    @property
    def is_trusted(self) -> bool:
        """Whether the replay is near enough to the recording that others may be believed."""
        return self.points is not None and abs(self.points) <= TRUSTED_POINTS


def replay_error(recorded: Fates, replays: Sequence[Fates]) -> ReplayError:
    """Return how far replays, of several seeds, are from the recording; means over the replays."""

    def points(name: str | None) -> float | None:
        real = recorded.in_time(name)
        found = [share for one in replays if (share := one.in_time(name)) is not None]
        return None if real is None or not found else 100.0 * (float(np.mean(found)) - real)

    def ratio(quantile: float) -> float | None:
        real = recorded.ttft(quantile)
        found = [value for one in replays if (value := one.ttft(quantile)) is not None]
        return None if not real or not found else float(np.mean(found)) / real - 1.0

    by_class = {name: found for name in sorted(set(recorded.slo_class)) if (found := points(name)) is not None}
    return ReplayError(points(None), by_class, ratio(0.5), ratio(0.99))


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def difference(ours: Sequence[Fates], base: Sequence[Fates]) -> Interval | None:
    """Return how many points more requests are in time than in the base, with its interval; ``None`` without targets.

    The requests are the same, so they are compared one by one, each as the mean over the seeds of the replays. The
    interval comes from drawing stretches of time again (a block bootstrap).
    """
    if not base or not base[0].met.size:
        return None
    gain = 100.0 * (np.mean([one.met for one in ours], axis=0) - np.mean([one.met for one in base], axis=0))
    return _interval(gain, base[0].at_s)


def share(fates: Sequence[Fates]) -> Interval | None:
    """Return the share of requests in time in percent, with its interval; ``None`` without targets."""
    if not fates or not fates[0].met.size:
        return None
    return _interval(100.0 * np.mean([one.met for one in fates], axis=0), fates[0].at_s)


def _interval(values: FloatArray, at_s: FloatArray) -> Interval:
    edges = np.linspace(at_s.min(), at_s.max() + 1e-9, _PARTS + 1)
    place = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, _PARTS - 1)
    sums, counts = np.bincount(place, values, _PARTS), np.bincount(place, minlength=_PARTS)
    filled = counts > 0
    sums, counts = sums[filled], counts[filled]
    drawn = stream(0, "replay/interval").integers(counts.size, size=(_DRAWS, counts.size))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))
