"""Figures against load: attainment, QoE, normalised latency, throughput with preemptions, utilisation.

Values are means over seeds, with whiskers for the interval of the mean. Further panels show the difference from the
baseline, paired by seed, with its own interval (intervals.py). Experiments at a single load are drawn as bars.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from sloserve.sim.report.compare import CAPACITY, load_of, load_unit, loads_of
from sloserve.sim.report.figure_style import (
    BAR_HEIGHT,
    DPI,
    LETTER_IN,
    Styles,
    add_legend,
    bar_style,
    bars_height_in,
    baseline_first,
    folded,
    load_name,
    name_bars,
    names_width_in,
    percent_labels,
    three_digits,
    write_value,
)
from sloserve.sim.report.intervals import Pick, drawn_difference, drawn_mean, interval_note, reference_of
from sloserve.sim.report.summary import Run

MAX_CLASS_PANELS = 3
MAX_LOAD_TICKS = 7
PANEL_IN, HEIGHT_IN, MIN_WIDTH_IN, DIFFERENCE_IN = 3.4, 3.2, 5.6, 1.9
BARS_IN, DIFFERENCES_IN = 2.0, 1.3
WIDEST, THINNEST = 2.8, 1.1
"""The widths of the line that is drawn first and of the line that is drawn last, in points."""
DODGE_SHARE, DODGED_SHARE = 0.011, 0.6
"""The space between the error bars of two policies at one load, and the most space that all of them take.

The first is a share of the axis, the second a share of the space between two loads.
"""

Panel = tuple[str, Pick]
"""The title of a panel, and the value of a run that it draws."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of the axis of values.

    Args:
        highest: Limit that neither a value nor its interval exceeds.
        common: Whether all panels share the axis, which then ranges from 0 to ``highest``.
        percent: Whether the axis is labelled in percent.
    """

    highest: float = float("inf")
    common: bool = False
    percent: bool = False


@dataclass(frozen=True, slots=True)
class _Point:
    """A value to draw, and how far its whisker reaches below and above it; a whisker ends at the limits of the value.

    Args:
        load: The load.
        value: The mean, or the mean difference.
        below: Length of the whisker below the value.
        above: Length of the whisker above the value.
    """

    load: float
    value: float
    below: float
    above: float


def attainment_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Draw SLO attainment against load: all requests that have targets, then the first classes if there are several."""
    classes = list(dict.fromkeys(name for run in runs for name in run["slo_attainment_by_class"]))
    panels: list[Panel] = [("all classes", lambda run: run["slo_attainment"])]
    if len(classes) > 1:
        panels += [(name, _of_class(name)) for name in classes[:MAX_CLASS_PANELS]]
    scale = Scale(1.0, common=True, percent=True)
    return _against_load(runs, styles, panels, scale, "requests that met every target")


def qoe_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Draw mean and 10th percentile of QoE against load."""
    panels: list[Panel] = [
        ("mean", lambda run: run["qoe_mean"]),
        ("10th percentile", lambda run: run["qoe_p10"]),
    ]
    return _against_load(runs, styles, panels, Scale(1.0, common=True), "QoE")


def normalized_latency_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Draw the mean of e2e latency per output token against load.

    Source: Andes, Fig. 21; EconoServe, Fig. 9.
    """
    return _against_load(runs, styles, [("normalised latency (ms/token)", lambda run: run["normalized_latency_ms"])])


def throughput_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Draw output throughput and preemptions per request against load. Source: Andes, Fig. 12 and 13."""
    panels: list[Panel] = [
        ("output tokens/s", lambda run: run["output_throughput"]),
        ("preemptions per request", lambda run: run["preemptions_per_request"]),
    ]
    return _against_load(runs, styles, panels)


def utilization_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Draw the KV blocks and step tokens in use, over the time of steps, against load.

    Each panel has its own scale: decoding alone fills a KV cache with a few per cent of a step's tokens. A higher share
    of step tokens is not always better, since tokens computed again after preemptions count. Source: EconoServe, Fig.
    11.
    """
    panels: list[Panel] = [
        ("KV blocks in use", lambda run: run["kv_utilization_mean"]),
        ("step tokens of the budget", lambda run: run["step_token_utilization_mean"]),
    ]
    return _against_load(runs, styles, panels, Scale(1.0, percent=True))


def _against_load(
    runs: Sequence[Run], styles: Styles, panels: Sequence[Panel], scale: Scale = Scale(), name: str | None = None
) -> Figure:
    """Draw one panel per entry of ``panels``, side by side: lines over the loads, or bars where there is only one.

    ``name`` labels the axis of values, where the titles do not say it.
    """
    if len(loads_of(runs)) == 1:
        return _bars(runs, styles, panels, scale, name)
    reference = reference_of(styles, runs)
    rows = 1 if reference is None else 2
    figure = Figure(
        figsize=(max(PANEL_IN * len(panels), MIN_WIDTH_IN), HEIGHT_IN + (rows - 1) * DIFFERENCE_IN),
        dpi=DPI,
        layout="constrained",
    )
    ratios = (HEIGHT_IN, DIFFERENCE_IN)[:rows]
    grid = figure.subplots(
        rows, len(panels), squeeze=False, sharey="row" if scale.common else False, sharex=True, height_ratios=ratios
    )
    for (title, pick), axes in zip(panels, grid[0], strict=True):
        _lines(axes, runs, styles, {policy: _points(runs, policy, pick, scale) for policy in styles})
        axes.set_title(title)
        axes.set_ylim(*_limits(scale))
        if scale.percent:
            axes.yaxis.set_major_formatter(percent_labels(axes.get_ylim()[1]))
    if reference is not None:
        for (_, pick), axes in zip(panels, grid[1], strict=True):
            differences = {policy: _differences(runs, policy, reference, pick, scale) for policy in styles}
            _lines(axes, runs, styles, differences)
            axes.axhline(0.0, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
        grid[1][0].set_ylabel(_difference_name(reference, scale))
    for axes in grid[-1]:
        if len(loads_of(runs)) <= MAX_LOAD_TICKS:
            axes.set_xticks(loads_of(runs), [f"{load:.3g}" for load in loads_of(runs)])
        unit = load_unit(runs)
        axes.set_xlabel(f"load ({unit})" if unit == CAPACITY else f"offered {unit}")
    if name is not None:
        grid[0][0].set_ylabel(name)
    add_legend(figure, interval_note(runs, reference))
    return figure


def _lines(axes: Axes, runs: Sequence[Run], styles: Styles, points_of: Mapping[str, Sequence[_Point]]) -> None:
    """Draw the points of each policy as a line; lines that are drawn later are thinner, so that no line is hidden."""
    offsets = _dodge(loads_of(runs), len(styles))
    widths = np.linspace(WIDEST, THINNEST, len(styles)).tolist()
    for (policy, style), offset, width in zip(styles.items(), offsets, widths, strict=True):
        points = points_of[policy]
        axes.errorbar(
            [point.load + offset for point in points],
            [point.value for point in points],
            yerr=[[point.below for point in points], [point.above for point in points]],
            capsize=1.5,
            elinewidth=0.8,
            linewidth=width,
            label=policy,
            **style,
        )


def _bars(runs: Sequence[Run], styles: Styles, panels: Sequence[Panel], scale: Scale, name: str | None) -> Figure:
    """Draw a bar for each policy, the baseline on top; the names beside the bars are the legend.

    Beside each panel of bars there is a panel with the differences from the baseline.
    """
    policies, reference = baseline_first(styles), reference_of(styles, runs)
    each = (BARS_IN,) if reference is None else (BARS_IN, DIFFERENCES_IN)
    width_in = sum(each) * len(panels) + names_width_in(policies)
    figure = Figure(figsize=(width_in, bars_height_in(policies)), dpi=DPI, layout="constrained")
    row = figure.subplots(1, len(each) * len(panels), squeeze=False, sharey=True, width_ratios=each * len(panels))[0]
    for (title, pick), axes in zip(panels, row[:: len(each)], strict=True):
        for place, policy in enumerate(policies):
            for point in _points(runs, policy, pick, scale):
                axes.barh(place, point.value, height=BAR_HEIGHT, label=policy, **bar_style(styles[policy]))
                text = f"{100.0 * point.value:.1f} %" if scale.percent else three_digits(point.value)
                write_value(axes, place, text)
                _whisker(axes, point, place, fmt="none")
        axes.set_title(title)
        axes.set_xlim(*_limits(scale))
        if scale.percent:
            axes.xaxis.set_major_formatter(percent_labels(axes.get_xlim()[1]))
    if reference is not None:
        for (_, pick), axes in zip(panels, row[1::2], strict=True):
            for place, policy in enumerate(policies):
                for point in _differences(runs, policy, reference, pick, scale):
                    _whisker(axes, point, place, fmt="o", markersize=3.5)
            axes.axvline(0.0, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
            axes.set_title(_difference_name(reference, scale), fontsize="small")
    for axes in row:
        name_bars(axes, policies)
        axes.label_outer()
    at = load_name(loads_of(runs)[0], load_unit(runs))
    note = textwrap.fill(interval_note(runs, reference), int(width_in / LETTER_IN))
    figure.supxlabel((f"{name}, {at}" if name else at) + f"\n{note}", fontsize="medium")
    return figure


def _whisker(axes: Axes, point: _Point, place: int, **style: Any) -> None:
    """Draw the whisker of a bar, or a point with its whisker, with a white edge so that it shows on a dark bar."""
    if style["fmt"] != "none" or point.below or point.above:
        reach = [[point.below], [point.above]]
        drawn = axes.errorbar([point.value], [place], xerr=reach, color="black", capsize=2.0, elinewidth=0.9, **style)
        for artist in drawn.get_children():
            artist.set_path_effects([withStroke(linewidth=2.2, foreground="white")])


def _limits(scale: Scale) -> tuple[float, float | None]:
    return (0.0, 1.04 * scale.highest) if scale.common else (0.0, None)


def _difference_name(reference: str, scale: Scale) -> str:
    return f"difference from\n{folded(reference)}{' (points)' if scale.percent else ''}"


def _points(runs: Sequence[Run], policy: str, pick: Pick, scale: Scale) -> list[_Point]:
    """Return the means of one policy's runs, loads ascending; a load without values is left out."""
    points = []
    for load in loads_of(runs):
        found = drawn_mean([run for run in runs if load_of(run) == load], policy, pick)
        if found is not None:
            below = 0.0 if found.low is None else found.value - max(found.low, 0.0)
            above = 0.0 if found.high is None else min(found.high, scale.highest) - found.value
            points.append(_Point(load, found.value, below, above))
    return points


def _differences(runs: Sequence[Run], policy: str, reference: str, pick: Pick, scale: Scale) -> list[_Point]:
    """Return the differences of one policy from ``reference``, loads ascending; of shares in points."""
    points, unit = [], 100.0 if scale.percent else 1.0
    for load in loads_of(runs) if policy != reference else ():
        found = drawn_difference([run for run in runs if load_of(run) == load], policy, reference, pick)
        if found is not None and found.low is not None and found.high is not None:
            reach = unit * (found.high - found.value)
            points.append(_Point(load, unit * found.value, reach, reach))
    return points


def _dodge(loads: Sequence[float], policies: int) -> list[float]:
    """Return how far each policy's points stand beside their load, in its unit, so that error bars stay visible."""
    gaps = [high - low for low, high in zip(loads, loads[1:], strict=False)]
    if not gaps:
        return [0.0] * policies
    step = min(DODGE_SHARE * (loads[-1] - loads[0]), DODGED_SHARE * min(gaps) / max(policies - 1, 1))
    return [(i - (policies - 1) / 2.0) * step for i in range(policies)]


def _of_class(name: str) -> Pick:
    def attainment(run: Run) -> float | None:
        share: float | None = run["slo_attainment_by_class"].get(name)
        return share

    return attainment
