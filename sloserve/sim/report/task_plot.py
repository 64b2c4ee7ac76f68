"""The figure of tasks: the distribution of their latency by policy, at several loads."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sloserve.sim.report.figure_style import Styles, add_legend, draw_distribution, load_name, plain_log_ticks
from sloserve.sim.report.task_sample import TaskSample


def task_latency_figure(samples: Sequence[TaskSample], styles: Styles, loads: Sequence[float], unit: str) -> Figure:
    """Draw the distribution of the latency of tasks, seeds pooled, with a panel for each of ``loads``.

    The share is of all tasks, so a curve ends below 100 % by the share that did not finish.
    """
    figure = Figure(figsize=(max(2.9 * len(loads), 5.0), 3.4), dpi=150, layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, len(loads), squeeze=False, sharey=True, sharex=True)[0]
    for load, axes in zip(loads, panels, strict=True):
        for policy, style in styles.items():
            cell = [sample for sample in samples if sample.policy == policy and sample.load == load]
            if total := sum(sample.tasks for sample in cell):
                draw_distribution(axes, np.concatenate([sample.latency_s for sample in cell]), total, policy, style)
        axes.set_xlabel("latency of a task (s)")
        axes.set_title(load_name(load, unit))
    panels[0].set_ylabel("share of tasks")
    for axes in panels:
        plain_log_ticks(axes)
    add_legend(figure)
    return figure
