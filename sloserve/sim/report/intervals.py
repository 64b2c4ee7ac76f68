"""The interval that a figure draws around a mean: of the difference from the baseline, paired by seed.

A seed fixes the workload, so the variation between seeds says nothing about the policies and would hide how they
differ. The baseline itself has no interval then. Figures without a baseline, or of it alone, show each policy's own
interval.
"""

from collections.abc import Callable, Sequence

from sloserve.sim.report.figure_style import Styles, has_baseline
from sloserve.sim.report.statistics import Mean, mean_interval, paired_interval
from sloserve.sim.report.summary import Run

Pick = Callable[[Run], float | None]
"""A function that returns the value of a run to draw, or ``None``."""


def reference_of(styles: Styles) -> str | None:
    """Return the policy that differences are taken from; ``None`` where there is none, or nothing beside it."""
    return list(styles)[-1] if len(styles) > 1 and has_baseline(styles) else None


def interval_note(runs: Sequence[Run], reference: str | None) -> str | None:
    """Return what a figure says of its intervals; ``None`` where one seed leaves none."""
    if len({run["seed"] for run in runs}) < 2:
        return None
    if reference is None:
        return "intervals: 95 %, of each mean over its own seeds"
    return f"95 % interval of the difference from {reference}, paired by seed"


def drawn_mean(runs: Sequence[Run], policy: str, reference: str | None, pick: Pick) -> Mean | None:
    """Return the mean of a policy's ``runs`` with the interval that is drawn; ``None`` without values.

    ``runs`` are the runs of all policies at one load.
    """
    own = _by_seed(runs, policy, pick)
    if reference is None:
        return mean_interval(list(own.values()))
    return paired_interval(own, {} if policy == reference else _by_seed(runs, reference, pick))


def _by_seed(runs: Sequence[Run], policy: str, pick: Pick) -> dict[int, float]:
    return {run["seed"]: value for run in runs if run["policy"] == policy and (value := pick(run)) is not None}
