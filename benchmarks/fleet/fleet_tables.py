"""Tables and plots of ``fleet_qlm.py``, from the rows of its runs."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet.cells import Row
from sloserve.report.load_capacity import load_capacity
from sloserve.report.statistics import mean_interval
from sloserve.sim.fleet.simulate_fleet import IN_TIME

SHARES = ("in_time", "interactive", "batch", "kv_used", "swapping", "draining", "serving")
"""In percent."""
NAMES = {
    "in_time": "all in time",
    "interactive": "latency-sensitive in time",
    "batch": "batch in time",
    "kv_used": "KV in use",
    "hol_s": "wait for a first token, s",
    "done_s": "done after, s",
    "served_per_s": "served/s",
    "cpu_s": "CPU s",
}


def table(question: str, axis: str, rows: Sequence[Row], shows: Sequence[str], *, ladder: bool) -> str:
    """A block for each figure in ``shows``: policies by points of ``axis``, means over seeds, shares in percent; of a
    ladder, the rates that are carried.
    """
    return "\n".join([question, *(_throughput(axis, rows) if ladder else _blocks(axis, rows, shows))]) + "\n"


def _blocks(axis: str, rows: Sequence[Row], shows: Sequence[str]) -> list[str]:
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    lines = []
    for key in shows:
        lines += ["", f"{NAMES.get(key, key) + (' (%)' if key in SHARES else ''):34}" + _heading(axis, points)]
        lines += [f"{policy:34}" + "".join(_cell(rows, policy, point, key) for point in points) for policy in policies]
    return lines


def _heading(axis: str, points: Sequence[float]) -> str:
    return "".join(f"{axis + ' ' + format(point, '.3g'):>22}" for point in points)


def _cell(rows: Sequence[Row], policy: str, point: float, key: str) -> str:
    scale = 100.0 if key in SHARES else 1.0
    found = mean_interval([scale * row[key] for row in rows if (row["policy"], row["value"]) == (policy, point)])
    if found is None:
        return f"{'':22}"
    spread = "" if found.low is None else f" +- {found.value - found.low:.1f}"
    return f"{format(found.value, '.1f') + spread:>22}"


def _throughput(axis: str, rows: Sequence[Row]) -> list[str]:
    """By policy and point, the rate at which so many are in time, and its multiple of on-demand's."""
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    found = {
        (capacity.policy, point): capacity
        for point in points
        for capacity in load_capacity(
            [row for row in rows if row["value"] == point], "in_time", IN_TIME, baseline="on-demand"
        )
    }
    lines = ["", f"{f'req/s with {IN_TIME:.0%} in time (x on-demand)':34}" + _heading(axis, points)]
    for policy in policies:
        cells = []
        for point in points:
            capacity = found.get((policy, point))
            rates = [row["rps"] for row in rows if (row["policy"], row["value"]) == (policy, point)]
            load = capacity.load if capacity else None
            if load is not None:
                shown = f"{'' if load.bound == 'exact' else load.bound + ' '}{load.value:.1f}"
            else:
                shown = f"below {min(rates):g}" if rates else ""
            ratio = capacity.ratio if capacity else None
            shown += "" if ratio is None else f" ({ratio.value:.2f})"
            cells.append(f"{shown:>22}")
        lines.append(f"{policy:34}" + "".join(cells))
    return lines


def figure(path: Path, axis: str, rows: Sequence[Row], question: str) -> None:
    """Latency-sensitive requests in time against the axis, a line a policy; nothing where there is one point."""
    from matplotlib.figure import Figure

    from sloserve.report.figure_style import add_legend, line_styles, percent_labels, styled, write_figure

    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    if len(points) == 1:
        return
    with styled():
        made = Figure(figsize=(5.6, 3.4), dpi=80, layout="constrained")
        axes = made.subplots()
        for policy, style in line_styles(policies, baseline="on-demand").items():
            means = [
                sum(of) / len(of)
                for point in points
                if (of := [row["interactive"] for row in rows if (row["policy"], row["value"]) == (policy, point)])
            ]
            axes.plot(points[: len(means)], means, label=policy, **style)
        axes.set_xlabel(axis)
        axes.set_ylim(0.0, 1.02)
        axes.yaxis.set_major_formatter(percent_labels(1.0))
        axes.set_title(question, fontsize=8, wrap=True)
        axes.set_ylabel("latency-sensitive in time")
        add_legend(made)
        write_figure(made, path)
