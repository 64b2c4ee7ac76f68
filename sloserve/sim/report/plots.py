"""The figures of an experiment: which of them there is data for, and the files they go to.

Equal input gives equal bytes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sloserve.core.arrays import FloatArray
from sloserve.sim.report.compare import BASELINE, CAPACITY, load_of, load_unit, policies_of
from sloserve.sim.report.experience import TimedOutputs
from sloserve.sim.report.figure_style import (
    Styles,
    add_legend,
    draw_distribution,
    line_styles,
    load_name,
    panel_loads,
    plain_log_ticks,
    styled,
    write_figure,
)
from sloserve.sim.report.load_plots import (
    attainment_figure,
    normalized_latency_figure,
    qoe_figure,
    throughput_figure,
    utilization_figure,
)
from sloserve.sim.report.qoe_plots import lengths_figure, shown_load, timelines_figure
from sloserve.sim.report.split_plot import completion_split_figure
from sloserve.sim.report.summary import Latencies, LatencySample, Run
from sloserve.sim.report.task_plot import task_latency_figure
from sloserve.sim.report.task_sample import TaskSample

ATTAINMENT_PNG = "attainment.png"
LATENCY_PNG = "latency_cdf.png"
QOE_PNG = "qoe.png"
NORMALIZED_PNG = "normalized_latency.png"
THROUGHPUT_PNG = "throughput.png"
UTILIZATION_PNG = "utilization.png"
COMPLETION_SPLIT_PNG = "completion_split.png"
QOE_LENGTH_PNG = "qoe_by_length.png"
TIMELINES_PNG = "timelines.png"
TASKS_PNG = "task_latency_cdf.png"


def write_plots(
    out_dir: Path,
    runs: Sequence[Run],
    samples: Sequence[LatencySample],
    *,
    about: str,
    baseline: str = BASELINE,
    tasks: Sequence[TaskSample] = (),
) -> list[Path]:
    """Write the figures; return the paths of the written ones.

    A figure for which no run has data, such as attainment of requests without targets, is left out. Figures of QoE are
    drawn where requests promise a timeline, figures of the engine where it is seen.

    Args:
        out_dir: Folder of the files.
        runs: Records of the runs.
        samples: Latencies of each run.
        about: What was measured, to be written below each figure: workload, profile, seeds and versions.
        baseline: The policy that the others are compared with.
        tasks: Tasks of each run that has any.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    styles = line_styles(policies_of(runs), baseline)
    unit = load_unit(runs)
    in_capacity = unit == CAPACITY
    figures: dict[str, Callable[[], Figure]] = {}
    if any(run["slo_attainment"] is not None for run in runs):
        figures[ATTAINMENT_PNG] = lambda: attainment_figure(runs, styles)
    if any(sample.latencies.ttft_s.size for sample in samples):
        figures[LATENCY_PNG] = lambda: latency_figure(samples, styles, unit=unit)
    if any(sample.latency_s.size for sample in tasks):
        loads_of_tasks = panel_loads(sample.load for sample in tasks)
        figures[TASKS_PNG] = lambda: task_latency_figure(tasks, styles, loads_of_tasks, unit)
    if any(run["qoe_mean"] is not None for run in runs):
        figures[QOE_PNG] = lambda: qoe_figure(runs, styles)
    if any(run["normalized_latency_ms"] is not None for run in runs):
        figures[NORMALIZED_PNG] = lambda: normalized_latency_figure(runs, styles)
        figures[THROUGHPUT_PNG] = lambda: throughput_figure(runs, styles)
    if any(run["step_token_utilization_mean"] is not None for run in runs):
        figures[UTILIZATION_PNG] = lambda: utilization_figure(runs, styles)
    split_loads = sorted({load_of(run) for run in runs if run["completion_split"] is not None})
    if split_loads:
        split_load = shown_load(split_loads, in_capacity=in_capacity)
        figures[COMPLETION_SPLIT_PNG] = lambda: completion_split_figure(
            [run for run in runs if load_of(run) == split_load], styles, load_name(split_load, unit)
        )
    loads = sorted({sample.load for sample in samples if sample.replies is not None})
    if loads:
        load = shown_load(loads, in_capacity=in_capacity)
        replies = _replies_at(load, samples)
        name = load_name(load, unit)
        figures[QOE_LENGTH_PNG] = lambda: lengths_figure(replies, styles, name)
        figures[TIMELINES_PNG] = lambda: timelines_figure(replies, styles, name)
    for file, draw in figures.items():
        with styled():
            write_figure(draw(), out_dir / file, about)
    return [out_dir / file for file in figures]


def _replies_at(load: float, samples: Sequence[LatencySample]) -> dict[str, list[TimedOutputs]]:
    found: dict[str, list[TimedOutputs]] = {}
    for sample in samples:
        if sample.load == load and sample.replies is not None:
            found.setdefault(sample.policy, []).append(sample.replies)
    return found


def latency_figure(samples: Sequence[LatencySample], styles: Styles, *, unit: str) -> Figure:
    """Draw the distributions of TTFT and e2e latency, seeds pooled, at up to four loads from the lowest to the highest.

    The share is of all requests, so a curve ends below 100 % by the share that was not completed.
    """
    loads = panel_loads(sample.load for sample in samples)
    rows: tuple[tuple[str, Callable[[Latencies], FloatArray]], ...] = (
        ("time to first token", lambda latencies: latencies.ttft_s),
        ("end-to-end latency", lambda latencies: latencies.e2e_s),
    )
    figure = Figure(figsize=(max(2.9 * len(loads), 5.0), 5.6), dpi=150, layout="constrained")
    grid = figure.subplots(len(rows), len(loads), squeeze=False, sharey=True, sharex="row")
    for (title, pick), row in zip(rows, grid, strict=True):
        for load, axes in zip(loads, row, strict=True):
            for policy, style in styles.items():
                cell = [s.latencies for s in samples if s.policy == policy and s.load == load]
                total = sum(latencies.requests for latencies in cell)
                if not total:
                    continue
                values_s = np.concatenate([pick(latencies) for latencies in cell])
                draw_distribution(axes, values_s, total, policy, style)
            axes.set_xlabel(f"{title} (s)")
        row[0].set_ylabel("share of requests")
        for axes in row:
            plain_log_ticks(axes)
    for load, axes in zip(loads, grid[0], strict=True):
        axes.set_title(load_name(load, unit))
    add_legend(figure)
    return figure
