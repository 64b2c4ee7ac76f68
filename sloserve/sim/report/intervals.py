"""The intervals that figures draw: of a policy's mean over its seeds, and of its difference from the baseline.

A seed fixes the workload, so the difference is taken seed by seed; it varies less than either mean, and a figure shows
it in a panel of its own. With fewer than ``MIN_PAIRS`` seeds, on which no verdict is given either, nothing is drawn.
"""

from collections.abc import Callable, Sequence

from sloserve.sim.report.compare import MIN_PAIRS
from sloserve.sim.report.figure_style import Styles, has_baseline
from sloserve.sim.report.statistics import Mean, mean_interval
from sloserve.sim.report.summary import Run

Pick = Callable[[Run], float | None]
"""A function that returns the value of a run to draw, or ``None``."""


def reference_of(styles: Styles, runs: Sequence[Run]) -> str | None:
    """Return the policy that differences are drawn from, or ``None`` if none are drawn.

    None are drawn without a baseline, without a policy beside it, and with too few seeds for an interval.
    """
    has_differences = len(styles) > 1 and has_baseline(styles) and _seeds(runs) >= MIN_PAIRS
    return list(styles)[-1] if has_differences else None


def interval_note(runs: Sequence[Run], reference: str | None = None) -> str:
    """Return what a figure says of its whiskers; ``reference`` is the policy that differences are drawn from."""
    seeds = _seeds(runs)
    if seeds < MIN_PAIRS:
        return f"no whiskers: {seeds} seed{'s' * (seeds != 1)}, and an interval needs {MIN_PAIRS}"
    paired = "" if reference is None else "; differences are taken seed by seed"
    return f"whiskers: 95 % interval of the mean over {seeds} seeds{paired}"


def drawn_mean(runs: Sequence[Run], policy: str, pick: Pick) -> Mean | None:
    """Return the mean of a policy over seeds, with its interval if the seeds are enough; ``None`` without values.

    Args:
        runs: The runs of all policies at one load.
        policy: The policy.
        pick: The value of a run.
    """
    found = mean_interval(list(_by_seed(runs, policy, pick).values()))
    return found if found is None or found.n >= MIN_PAIRS else Mean(found.value, None, None, found.n)


def drawn_difference(runs: Sequence[Run], policy: str, reference: str, pick: Pick) -> Mean | None:
    """Return the mean difference of a policy from ``reference`` over common seeds; ``None`` if these are too few.

    Args:
        runs: The runs of all policies at one load.
        policy: The policy.
        reference: The policy that it is compared with.
        pick: The value of a run.
    """
    own, other = _by_seed(runs, policy, pick), _by_seed(runs, reference, pick)
    found = mean_interval([own[seed] - other[seed] for seed in own if seed in other])
    return found if found is not None and found.n >= MIN_PAIRS else None


def _seeds(runs: Sequence[Run]) -> int:
    return len({run["seed"] for run in runs})


def _by_seed(runs: Sequence[Run], policy: str, pick: Pick) -> dict[int, float]:
    return {run["seed"]: value for run in runs if run["policy"] == policy and (value := pick(run)) is not None}
