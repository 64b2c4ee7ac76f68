"""Figures of the single outputs at one load: their QoE by length, and the times of their tokens.

There is a panel for each policy, with the baseline first. Seeds are pooled. Source: Andes, Fig. 14 and 22.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sloserve.sim.report.experience import MAX_TIMELINES, TimedOutputs, Timelines
from sloserve.sim.report.figure_style import Styles, baseline_first, folded

MAX_COLUMNS = 4
LENGTH_BINS = 10
MIN_BINNED = 100
"""The fewest outputs from which means by length are drawn."""

SHOWN_LOAD = 1.5
"""The load with the outputs that are drawn, in multiples of stock's capacity; the nearest load stands in for it."""


def shown_load(loads: Sequence[float], *, in_capacity: bool) -> float:
    """Return the load of ``loads`` (ascending) with the outputs to draw; in requests per second, the middle one."""
    return min(loads, key=lambda load: abs(load - SHOWN_LOAD)) if in_capacity else loads[len(loads) // 2]


def lengths_figure(replies: Mapping[str, Sequence[TimedOutputs]], styles: Styles, load: str) -> Figure:
    """Draw the QoE of each output against its prompt and output tokens, with the means of tenths by length.

    The figure shows which lengths starve. ``replies`` has the outputs of each seed by policy.
    """
    figure, panels = _panels(replies, styles, f"QoE by length, {load}")
    for policy, axes in panels.items():
        tokens = np.concatenate([seed.total_tokens for seed in replies[policy]])
        qoe = np.concatenate([seed.qoe for seed in replies[policy]])
        axes.scatter(tokens, qoe, s=5.0, alpha=0.35, linewidths=0.0, color=styles[policy]["color"])
        if tokens.size >= MIN_BINNED:
            bins = np.array_split(np.argsort(tokens, kind="stable"), LENGTH_BINS)
            x, y = [np.mean(tokens[of]) for of in bins], [np.mean(qoe[of]) for of in bins]
            axes.plot(x, y, color="#444444", marker=".", linewidth=1.0)
        axes.set_title(folded(f"{policy}, mean {np.mean(qoe):.2f}"))
        axes.set_ylim(-0.04, 1.04)
    figure.supxlabel("prompt and output tokens", fontsize="medium")
    figure.supylabel("QoE", fontsize="medium")
    return figure


def timelines_figure(replies: Mapping[str, Sequence[TimedOutputs]], styles: Styles, load: str) -> Figure:
    """Draw the tokens delivered over the time since arrival, for a random sample of outputs.

    The outputs share the commonest expectation, which is the dashed line. ``replies`` has the outputs of each seed by
    policy; a seed with another commonest expectation than the first seed's is left out.
    """
    first = next(iter(replies.values()))[0].timelines
    latest_s = first.ttft_s
    expected = f"expected: {first.tds:.3g} tokens/s after {first.ttft_s:.3g} s"
    figure, panels = _panels(replies, styles, f"delivery of a random sample of outputs, {load}\n{expected}")
    for policy, axes in panels.items():
        alike = [seed.timelines for seed in replies[policy] if _expectation(seed) == (first.ttft_s, first.tds)]
        sample = [times_s for of_seed in alike for times_s in of_seed.delivered_s][:MAX_TIMELINES]
        for times_s in sample:
            steps = np.arange(1, times_s.size + 1)
            axes.step(times_s, steps, where="post", color=styles[policy]["color"], alpha=0.5, linewidth=0.7)
        replies_alike = sum(of_seed.replies for of_seed in alike)
        axes.set_title(folded(f"{policy}, {len(sample)} of {replies_alike}"))
        longest = max((times_s.size for times_s in sample), default=1)
        axes.plot(*_expected_line(first, longest), color="black", linestyle="--")
        latest_s = max([latest_s, *(float(times_s[-1]) for times_s in sample if times_s.size)])
        axes.set_xlim(0.0, latest_s)
        axes.set_ylim(bottom=0.0)
    figure.supxlabel("seconds since arrival", fontsize="medium")
    figure.supylabel("tokens", fontsize="medium")
    return figure


def _expected_line(timelines: Timelines, tokens: int) -> tuple[list[float], list[float]]:
    return [0.0, timelines.ttft_s, timelines.ttft_s + tokens / timelines.tds], [0.0, 0.0, float(tokens)]


def _expectation(replies: TimedOutputs) -> tuple[float, float]:
    return replies.timelines.ttft_s, replies.timelines.tds


def _panels(
    replies: Mapping[str, Sequence[TimedOutputs]], styles: Styles, title: str
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with a panel for each policy on common axes, the baseline's first."""
    policies = [policy for policy in baseline_first(styles) if policy in replies]
    columns = min(len(policies), MAX_COLUMNS)
    rows = -(-len(policies) // columns)
    figure = Figure(figsize=(max(2.7 * columns, 4.5), 2.5 * rows + 0.7), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for unused in grid[len(policies) :]:
        unused.set_visible(False)
    for lowest in grid[max(len(policies) - columns, 0) : len(policies)]:
        lowest.xaxis.set_tick_params(labelbottom=True)
    figure.suptitle(title, fontsize="large")
    return figure, dict(zip(policies, grid, strict=False))
