"""The stages in which requests spend their time, policy by policy, at one load: a bar of stages.

Source: EconoServe, Fig. 1e and 13.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from sloserve.sim.report.figure_style import (
    BAR_HEIGHT,
    Styles,
    add_legend,
    bars_height_in,
    baseline_first,
    name_bars,
    names_width_in,
    three_digits,
    write_value,
)
from sloserve.sim.report.intervals import drawn_mean, interval_note
from sloserve.sim.report.summary import Run

STAGES: Mapping[str, tuple[str, str]] = {
    "running_s": ("running", "#777777"),
    "waiting_s": ("waiting", "#CCCCCC"),
    "paused_s": ("paused, KV kept", "#DDCC77"),
    "evicted_s": ("preempted", "#882255"),
}
"""The label and colour of each stage, from the left.

Work begins at the axis, so that it can be compared. No stage has the colour of a policy.
"""


def completion_split_figure(runs: Sequence[Run], styles: Styles, load: str) -> Figure:
    """Draw the mean seconds in each stage of completed requests, over seeds.

    The whisker is the interval of their sum (intervals.py). ``runs`` are the runs at one load, ``load`` is its name.
    """
    splits = {
        policy: [s for run in runs if run["policy"] == policy and (s := run["completion_split"]) is not None]
        for policy in baseline_first(styles)
    }
    shown = [policy for policy in splits if splits[policy]]
    figure = Figure(figsize=(4.5 + names_width_in(shown), bars_height_in(shown) + 0.3), dpi=150, layout="constrained")
    axes = figure.subplots()
    left = [0.0] * len(shown)
    for stage, (label, colour) in STAGES.items():
        widths = [sum(split[stage] for split in splits[policy]) / len(splits[policy]) for policy in shown]
        axes.barh(range(len(shown)), widths, left=left, height=BAR_HEIGHT, color=colour, label=label)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, policy in enumerate(shown):
        write_value(axes, place, f"{three_digits(left[place])} s")
        total = drawn_mean(runs, policy, _total_s)
        if total is not None and total.low is not None:
            reach = [[min(total.value - total.low, total.value)], [total.value - total.low]]
            axes.errorbar([total.value], [place], xerr=reach, color="black", capsize=2.0, elinewidth=0.9)
    name_bars(axes, shown)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("mean e2e latency (s)")
    axes.set_title(load)
    add_legend(figure, interval_note(runs))
    return figure


def _total_s(run: Run) -> float | None:
    split = run["completion_split"]
    return None if split is None else sum(split.values())
