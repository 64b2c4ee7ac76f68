"""Where the time of requests goes, policy by policy, at one load: a bar of stages on each other.

Source: EconoServe, Fig. 1e and 13.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from sloserve.sim.figure_style import Styles, add_legend
from sloserve.sim.statistics import mean_interval
from sloserve.sim.summary import Run

STAGES: Mapping[str, tuple[str, str]] = {
    "running_s": ("running", "#0072B2"),
    "waiting_s": ("waiting", "#E69F00"),
    "paused_s": ("paused, KV kept", "#CC79A7"),
    "evicted_s": ("evicted", "#D55E00"),
}
"""Label and colour of each stage, from the bottom up: what is work stands on the axis, and can be compared."""


def completion_split_figure(runs: Sequence[Run], styles: Styles, load: str) -> Figure:
    """Mean seconds in each stage of completed requests, over seeds; the bar on top is the 95 % confidence interval of
    the sum.

    runs: of one load. load: its name.
    """
    # The styles have the baseline last, here it comes first.
    policies = list(styles)[-1:] + list(styles)[:-1]
    splits = {
        p: [s for run in runs if run["policy"] == p and (s := run["completion_split"]) is not None] for p in policies
    }
    shown = [policy for policy in policies if splits[policy]]
    figure = Figure(figsize=(max(0.9 * len(shown) + 1.5, 4.5), 3.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    bottom = [0.0] * len(shown)
    for stage, (label, colour) in STAGES.items():
        heights = [sum(split[stage] for split in splits[policy]) / len(splits[policy]) for policy in shown]
        axes.bar(shown, heights, bottom=bottom, width=0.65, color=colour, label=label)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    for policy in shown:
        total = mean_interval([sum(split.values()) for split in splits[policy]])
        if total is not None and total.low is not None:
            reach = [[min(total.value - total.low, total.value)], [total.value - total.low]]
            axes.errorbar([policy], [total.value], yerr=reach, color="#444444", capsize=2.5, elinewidth=1.0)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("mean e2e latency (s)")
    axes.set_title(load)
    for name in axes.get_xticklabels():
        name.set(rotation=30, ha="right", rotation_mode="anchor")
    add_legend(figure)
    return figure
