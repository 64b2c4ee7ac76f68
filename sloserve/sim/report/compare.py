"""Policies against a baseline: per load and metric, over seeds in which both saw the same requests.

A seed fixes the workload, so runs are compared in pairs and only the differences are averaged. A policy wins where it
is better than the baseline by more than the threshold of the baseline's mean, and the 95 % confidence interval of the
paired differences leaves zero out; it loses where the same holds the other way round. All else is a tie, and nothing
is said on fewer than three pairs. Verdicts are made one by one, without correction for their number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run

BASELINE = "stock"
WIN_THRESHOLD = 0.05
"""The least difference that counts, relative to the baseline's mean."""
MIN_PAIRS = 3
"""The fewest seeds for a verdict."""

HIGHER_IS_BETTER: Mapping[str, bool] = {
    "slo_attainment": True,
    "slo_attainment_admitted": True,
    "request_goodput": True,
    "request_throughput": True,
    "output_throughput": True,
    **{f"qoe_{part}": True for part in ("mean", "p10", "p50", "p90", "good_share", "perfect_share")},
    "p10_ttft_ms": False,
    **{
        f"{part}_{name}_ms": False
        for name in ("ttft", "tpot", "itl", "e2el")
        for part in ("mean", "median", "p90", "p99")
    },
    "p5_itl_ms": False,
    "p95_itl_ms": False,
    "normalized_latency_ms": False,
    "max_wait_s": False,
    "preemptions_per_request": False,
    "recomputed_tokens_per_request": False,
    "lost": False,
}
"""Every metric of a run that has a better direction; delivery beyond a user's speed is no gain, so TDS has none."""

DEFAULT_METRICS = tuple(HIGHER_IS_BETTER)

_OF_TASKS: Mapping[str, bool] = {
    "tasks_in_time": True,
    "tasks_finished": True,
    "mean_task_s": False,
    "median_task_s": False,
    "p90_task_s": False,
    "p99_task_s": False,
    "max_task_first_token_s": False,
    "prompt_hit_rate": True,
}
"""The metrics that only a run with tasks has, see :mod:`~sloserve.sim.report.task_report`."""
HIGHER_IS_BETTER = {**HIGHER_IS_BETTER, **_OF_TASKS}
TASK_METRICS = tuple(_OF_TASKS)


class Verdict(StrEnum):
    """The verdict on a policy for one metric at one load."""

    WIN = "win"
    LOSS = "loss"
    TIE = "tie"
    INSUFFICIENT = "insufficient seeds"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of one policy at one load, beside the baseline in the same ``pairs`` seeds.

    Args:
        policy: The policy that is compared.
        baseline: The policy that it is compared with.
        load: Place on the load axis, see :func:`load_of`.
        metric: Key of the metric in a run's record.
        pairs: Number of seeds in which both policies have a value.
        value: Mean of the policy, in the metric's unit.
        baseline_value: Mean of the baseline, in the metric's unit.
        difference: Mean of the paired differences, in the metric's unit.
        difference_low: Lower end of the confidence interval of the difference; ``None`` for a single pair.
        difference_high: Upper end of this interval.
        ratio: ``value / baseline_value``; ``None`` where the baseline's mean is 0.
        verdict: Judgement of the difference.
    """

    policy: str
    baseline: str
    load: float
    metric: str
    pairs: int
    value: float | None
    baseline_value: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    ratio: float | None
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, for JSON."""
        return {**asdict(self), "verdict": self.verdict.value}


def load_of(run: Mapping[str, Any]) -> float:
    """Return a run's place on the load axis: its ``load``, in multiples of stock's capacity, or else its ``rps``.

    For a run with tasks ``rps`` is the number of tasks per second.
    """
    return float(run["load"] if "load" in run else run["rps"])


CAPACITY, REQUESTS, TASKS = "x stock's capacity", "requests/s", "tasks/s"
"""The units of the load axis."""


def load_unit(runs: Sequence[Run]) -> str:
    """Return the unit of the load axis, one of ``CAPACITY``, ``REQUESTS`` and ``TASKS``."""
    if any("load" in run for run in runs):
        return CAPACITY
    return TASKS if any("tasks" in run for run in runs) else REQUESTS


def policies_of(runs: Sequence[Run]) -> list[str]:
    """Return the policies of ``runs`` in the order of their first run."""
    return list(dict.fromkeys(run["policy"] for run in runs))


def loads_of(runs: Sequence[Run]) -> list[float]:
    """Return the loads of ``runs``, ascending."""
    return sorted({load_of(run) for run in runs})


def compare(
    runs: Sequence[Run],
    baseline: str = BASELINE,
    metrics: Sequence[str] = DEFAULT_METRICS,
    threshold: float = WIN_THRESHOLD,
) -> list[Comparison]:
    """Compare every other policy with ``baseline``, policy by policy in order of first run, loads ascending.

    A seed in which either run has no value for the metric forms no pair. Without any run of the baseline the list is
    empty.

    Raises: ValueError for a metric without a better direction, and for two runs of one policy, load and seed.
    """
    unknown = [metric for metric in metrics if metric not in HIGHER_IS_BETTER]
    if unknown:
        raise ValueError(f"no better direction is known for {unknown}; known: {', '.join(HIGHER_IS_BETTER)}")
    cells: dict[tuple[str, float], dict[int, Run]] = {}
    for run in runs:
        by_seed = cells.setdefault((run["policy"], load_of(run)), {})
        if run["seed"] in by_seed:
            raise ValueError(f"two runs of policy {run['policy']!r}, load {load_of(run):g}, seed {run['seed']}")
        by_seed[run["seed"]] = run
    policies = policies_of(runs)
    if baseline not in policies:
        return []
    return [
        _compare_cell(policy, baseline, load, metric, cells[policy, load], cells.get((baseline, load), {}), threshold)
        for policy in policies
        if policy != baseline
        for load in loads_of(runs)
        if (policy, load) in cells
        for metric in metrics
    ]


def _compare_cell(
    policy: str,
    baseline: str,
    load: float,
    metric: str,
    candidates: Mapping[int, Run],
    references: Mapping[int, Run],
    threshold: float,
) -> Comparison:
    pairs = [
        (candidates[seed][metric], references[seed][metric])
        for seed in sorted(candidates.keys() & references.keys())
        if candidates[seed][metric] is not None and references[seed][metric] is not None
    ]
    value = mean_interval([own for own, _ in pairs])
    reference = mean_interval([other for _, other in pairs])
    difference = mean_interval([own - other for own, other in pairs])
    if value is None or reference is None or difference is None:
        return Comparison(
            policy, baseline, load, metric, 0, None, None, None, None, None, None, verdict=Verdict.INSUFFICIENT
        )
    return Comparison(
        policy=policy,
        baseline=baseline,
        load=load,
        metric=metric,
        pairs=len(pairs),
        value=value.value,
        baseline_value=reference.value,
        difference=difference.value,
        difference_low=difference.low,
        difference_high=difference.high,
        ratio=value.value / reference.value if reference.value else None,
        verdict=_verdict(
            difference.value,
            difference.low,
            difference.high,
            pairs=len(pairs),
            least=threshold * abs(reference.value),
            higher_is_better=HIGHER_IS_BETTER[metric],
        ),
    )


def _verdict(
    difference: float, low: float | None, high: float | None, *, pairs: int, least: float, higher_is_better: bool
) -> Verdict:
    if pairs < MIN_PAIRS or low is None or high is None:
        return Verdict.INSUFFICIENT
    if abs(difference) <= least or low <= 0.0 <= high:
        return Verdict.TIE
    return Verdict.WIN if (difference > 0.0) == higher_is_better else Verdict.LOSS
