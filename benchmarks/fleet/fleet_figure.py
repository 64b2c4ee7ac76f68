"""The plot of a section of ``fleet_qlm.py``."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.fleet.cells import Row
from benchmarks.fleet.fleet_qlm import FigureSection
from benchmarks.fleet.fleet_tables import NAMES, RATE
from sloserve.fleet.simulated.simulate_fleet import IN_TIME
from sloserve.sim.report import figure_style
from sloserve.sim.report.compare import MIN_PAIRS
from sloserve.sim.report.figure_style import DASHES, add_legend, percent_labels, styled, write_figure
from sloserve.sim.report.statistics import Mean, mean_interval

COLOURS = (*figure_style.COLOURS, "#332288", "#882255", "#117733", "#661100", "#AA4499", "#DDCC77", "#44AA99")
MARKERS = (*figure_style.MARKERS, "<", ">", "p", "h", "*", "d", "H")
"""Enough that no two lines of a figure share either."""


def draw(section: FigureSection, rows: Sequence[Row], path: Path, about: str) -> None:
    """A section's plot: of a ladder, the share of all requests that is in time by the rate, at its first point, with
    the share that counts as carried; else the share of the latency-sensitive ones by point.
    """
    first = section.cells[0]
    if not section.rates:
        figure(path, first.axis, rows, section.question, "interactive", section.baseline, about)
        return
    at_first = [row | {"value": row["rps"]} for row in rows if row["value"] == first.value]
    where = "" if first.axis == RATE else f"; {first.axis} {first.value:g}"
    question = section.question.partition(":")[0]
    title = f"{question}: all requests in time against the rate, and the share that is to be{where}"
    figure(path, RATE, at_first, title, "in_time", section.baseline, about)


def figure(path: Path, axis: str, rows: Sequence[Row], title: str, key: str, baseline: str, about: str) -> None:
    """Draw a share in time against the axis, a line a policy, as means over seeds with their 95 % intervals.

    Nothing is drawn where there is one point.

    Args:
        path: Path of the file.
        axis: Name of the axis.
        rows: The runs.
        title: Title of the figure.
        key: Which requests count.
        baseline: The policy that is drawn black.
        about: What was measured, to be written below the figure.
    """
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    if len(points) == 1:
        return
    with styled():
        made = Figure(figsize=(6.4, 4.0), dpi=100, layout="constrained")
        axes = made.subplots()
        others = [policy for policy in policies if policy != baseline]
        for policy in policies:
            own = [[row[key] for row in rows if (row["policy"], row["value"]) == (policy, point)] for point in points]
            found = [(point, mean) for point, of in zip(points, own, strict=True) if (mean := drawn(of))]
            whiskers = [(0.0 if m.low is None else m.value - max(m.low, 0.0)) for _, m in found]
            above = [(0.0 if m.high is None else min(m.high, 1.0) - m.value) for _, m in found]
            place = 0 if policy == baseline else others.index(policy)
            axes.errorbar(
                [point for point, _ in found],
                [mean.value for _, mean in found],
                yerr=[whiskers, above],
                label=policy,
                color="black" if policy == baseline else COLOURS[place % len(COLOURS)],
                marker="o" if policy == baseline else MARKERS[place % len(MARKERS)],
                markerfacecolor="white" if policy == baseline else None,
                linestyle="--" if policy == baseline else DASHES[place % len(DASHES)],
                elinewidth=0.7,
                capsize=2.0,
            )
        if key == "in_time":
            axes.axhline(IN_TIME, color="#555555", linewidth=0.8, zorder=0)
        if axis == RATE:
            axes.set_xscale("log", base=2)
            axes.set_xticks(points, [f"{point:g}" for point in points])
        axes.set_xlabel(axis)
        axes.set_ylim(0.1 * int(10 * min(row[key] for row in rows)), 1.02)
        axes.yaxis.set_major_formatter(percent_labels(1.0))
        axes.set_title(title, fontsize=8, wrap=True)
        axes.set_ylabel(NAMES[key])
        add_legend(made)
        # With 64 colours, those of policies with few points would be alike.
        seeds = len({row["seed"] for row in rows})
        write_figure(made, path, f"{about}; {seeds} seed{'s' if seeds > 1 else ''}", colours=256)


def drawn(values: Sequence[float]) -> Mean | None:
    """Return the mean, with its interval if the seeds are enough for one."""
    found = mean_interval(values)
    return found if found is None or found.n >= MIN_PAIRS else Mean(found.value, None, None, found.n)
