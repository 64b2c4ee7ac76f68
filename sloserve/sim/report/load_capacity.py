"""The load that a policy carries before a figure of its runs passes a threshold.

For each seed the first crossing is taken, linear between the loads that were run. The results are means over seeds, and
means of the ratios to the baseline over seeds in which both were run. A policy that stays on the good side at every
load is only bounded from below (``at least``), one that is past it at the lowest load from above (``at most``); neither
has an interval.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sloserve.sim.report.compare import BASELINE, load_of, policies_of
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run

MIN_LOADS = 2
"""The fewest loads between which something could cross."""


class Bound(StrEnum):
    """The relation of a figure to the true one."""

    EXACT = "exact"
    AT_LEAST = "at least"
    AT_MOST = "at most"

    @property
    def of_inverse(self) -> "Bound":
        """The bound of 1 / x, where this is the bound of x."""
        return {Bound.AT_LEAST: Bound.AT_MOST, Bound.AT_MOST: Bound.AT_LEAST}.get(self, self)


@dataclass(frozen=True, slots=True)
class SeedMean:
    """A mean over ``seeds``; its 95 % interval is ``None`` for a bound and for a single seed."""

    value: float
    low: float | None
    high: float | None
    bound: Bound
    seeds: int


@dataclass(frozen=True, slots=True)
class LoadCapacity:
    """The load that one policy carries on the good side of ``threshold``, which is in the unit of the figure.

    Args:
        policy: The policy.
        threshold: Value of the figure that must be kept.
        load: Load that the policy carries, in the unit of the load axis; ``None`` where seeds are bounded in opposite
            directions.
        ratio: Ratio of the load to the baseline's, over paired seeds; ``None`` for the baseline, or where seeds or the
            two sides of the ratio are bounded in opposite directions.
    """

    policy: str
    threshold: float
    load: SeedMean | None
    ratio: SeedMean | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


def crossing(points: Sequence[tuple[float, float]], threshold: float) -> tuple[float, Bound]:
    """Return the load at which the figure first falls below ``threshold``, and how exact this load is.

    The figure follows the line through ``points``, (load, figure), loads ascending.
    """
    if points[0][1] < threshold:
        return points[0][0], Bound.AT_MOST
    for (load, value), (next_load, next_value) in zip(points, points[1:], strict=False):
        if next_value < threshold:
            return load + (next_load - load) * (value - threshold) / (value - next_value), Bound.EXACT
    return points[-1][0], Bound.AT_LEAST


def load_capacity(
    runs: Sequence[Run], key: str, threshold: float, *, rising: bool = False, baseline: str = BASELINE
) -> list[LoadCapacity]:
    """Return the load that each policy carries, in order of first run.

    The list is empty where no run has the figure, or at one load.

    Args:
        runs: Records of the runs.
        key: Key of the figure in a run's record.
        threshold: Value of the figure that must be kept.
        rising: Whether a higher figure is worse.
        baseline: Policy that the others are compared with.
    """
    sign = -1.0 if rising else 1.0
    curves: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for run in sorted(runs, key=load_of):
        if run[key] is not None:
            curves.setdefault((run["policy"], run["seed"]), []).append((load_of(run), sign * run[key]))
    found = {name: crossing(points, sign * threshold) for name, points in curves.items() if len(points) >= MIN_LOADS}
    capacities = []
    for policy in policies_of(runs):
        own = {seed: found[policy, seed] for name, seed in sorted(found) if name == policy}
        ratios = [
            (load / found[baseline, seed][0], combine((bound, found[baseline, seed][1].of_inverse)))
            for seed, (load, bound) in own.items()
            if policy != baseline and (baseline, seed) in found
        ]
        if own:
            capacities.append(LoadCapacity(policy, threshold, _estimate(list(own.values())), _estimate(ratios)))
    return capacities


def combine(bounds: Iterable[Bound | None]) -> Bound | None:
    """Return the bound of a sum or product of positive figures; ``None`` if they are bounded in opposite directions."""
    kinds = set(bounds) - {Bound.EXACT}
    return Bound.EXACT if not kinds else kinds.pop() if len(kinds) == 1 else None


def _estimate(values: Sequence[tuple[float, Bound | None]]) -> SeedMean | None:
    mean, bound = mean_interval([value for value, _ in values]), combine(bound for _, bound in values)
    if mean is None or bound is None:
        return None
    exact = bound is Bound.EXACT
    return SeedMean(mean.value, mean.low if exact else None, mean.high if exact else None, bound, mean.n)
