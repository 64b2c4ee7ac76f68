"""Figures of an experiment: attainment and QoE against load, and the distribution of latency.

Stock, or whatever the baseline is, is black and dashed in all of them and drawn last, so that a policy that equals it
shows beneath. Colours are those of Okabe and Ito, told apart by colour-blind readers; markers differ as well. Bars
are 95 % confidence intervals over seeds. Equal input gives equal bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from sloserve.sim.compare import BASELINE, load_of, loads_of, policies_of
from sloserve.sim.statistics import mean_interval
from sloserve.sim.summary import FloatArray, Latencies, Run

ATTAINMENT_PNG = "attainment.png"
LATENCY_PNG = "latency_cdf.png"
QOE_PNG = "qoe.png"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Panel = tuple[str, Callable[[Run], float | None]]
"""Title, and the value of a run in 0..1 that is drawn."""

MAX_CLASS_PANELS = 3
MAX_LOAD_PANELS = 4
MAX_LOAD_TICKS = 7

STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True, slots=True, eq=False)
class LatencySample:
    """The latencies of one run, kept for the distribution plot."""

    policy: str
    load: float
    latencies: Latencies


def write_plots(
    out_dir: Path, runs: Sequence[Run], samples: Sequence[LatencySample], *, baseline: str = BASELINE
) -> list[Path]:
    """Writes ``attainment.png``, ``latency_cdf.png`` and ``qoe.png``, and returns the paths of those written.

    A figure for which no run has data, such as attainment of requests without targets, is left out.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    styles = line_styles(policies_of(runs), baseline)
    figures: dict[str, Callable[[], Figure]] = {}
    if any(run["slo_attainment"] is not None for run in runs):
        figures[ATTAINMENT_PNG] = lambda: attainment_figure(runs, styles)
    if any(sample.latencies.ttft_s.size for sample in samples):
        figures[LATENCY_PNG] = lambda: latency_figure(samples, styles, in_capacity=_in_capacity(runs))
    if any(run["qoe_mean"] is not None for run in runs):
        figures[QOE_PNG] = lambda: qoe_figure(runs, styles)
    for name, draw in figures.items():
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
            figure = draw()
            FigureCanvasAgg(figure).print_png(out_dir / name, metadata={"Software": None})
    return [out_dir / name for name in figures]


def line_styles(policies: Sequence[str], baseline: str = BASELINE) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each policy, in the order of ``policies`` with the baseline last."""
    others = [policy for policy in policies if policy != baseline]
    styles: dict[str, dict[str, Any]] = {
        policy: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": "-"}
        for i, policy in enumerate(others)
    }
    if baseline in policies:
        styles[baseline] = {"color": "black", "marker": "o", "markerfacecolor": "white", "linestyle": (0, (4, 2))}
    return styles


def attainment_figure(runs: Sequence[Run], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """SLO attainment against load: all requests that have targets, then the first classes if there are several."""
    classes = list(dict.fromkeys(name for run in runs for name in run["slo_attainment_by_class"]))
    panels: list[Panel] = [("all classes", lambda run: run["slo_attainment"])]
    if len(classes) > 1:
        panels += [(name, _of_class(name)) for name in classes[:MAX_CLASS_PANELS]]
    figure = _against_load(runs, styles, panels, "requests that met every target")
    for axes in figure.axes:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    return figure


def qoe_figure(runs: Sequence[Run], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Mean and 10th percentile of QoE against load."""
    panels: list[Panel] = [
        ("mean", lambda run: run["qoe_mean"]),
        ("10th percentile", lambda run: run["qoe_p10"]),
    ]
    return _against_load(runs, styles, panels, "QoE")


def latency_figure(
    samples: Sequence[LatencySample], styles: Mapping[str, Mapping[str, Any]], *, in_capacity: bool
) -> Figure:
    """Distribution of TTFT and e2e latency, seeds pooled, at up to four loads from the lowest to the highest.

    The share is of all requests, so a curve ends below 100 % by as much as was not completed.
    """
    all_loads = sorted({sample.load for sample in samples})
    picked = np.unique(np.linspace(0, len(all_loads) - 1, min(MAX_LOAD_PANELS, len(all_loads))).round().astype(int))
    loads = [all_loads[i] for i in picked]
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
                values_s = np.sort(np.concatenate([pick(latencies) for latencies in cell]))
                share = np.arange(1, values_s.size + 1) / total
                line = {key: value for key, value in style.items() if key in ("color", "linestyle")}
                axes.step(values_s, share, where="post", label=policy, **line)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
            axes.set_ylim(0.0, 1.02)
            axes.set_xlabel(f"{title} (s)")
        row[0].set_ylabel("share of requests")
    for load, axes in zip(loads, grid[0], strict=True):
        axes.set_title(f"{load:.3g} x stock's capacity" if in_capacity else f"{load:.3g} requests/s")
    _legend(figure, styles)
    return figure


def _against_load(
    runs: Sequence[Run],
    styles: Mapping[str, Mapping[str, Any]],
    panels: Sequence[Panel],
    ylabel: str,
) -> Figure:
    """One panel per entry of ``panels``, side by side on the same vertical axis."""
    figure = Figure(figsize=(max(3.1 * len(panels), 4.5), 3.5), dpi=150, layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for (title, pick), axes in zip(panels, row, strict=True):
        for policy, style in styles.items():
            own = [run for run in runs if run["policy"] == policy]
            points = [
                (load, found)
                for load in loads_of(own)
                if (found := mean_interval([v for run in own if load_of(run) == load and (v := pick(run)) is not None]))
            ]
            axes.errorbar(
                [load for load, _ in points],
                [found.value for _, found in points],
                # Shares cannot leave 0..1, whatever the t interval says.
                yerr=[
                    [0.0 if found.low is None else found.value - max(found.low, 0.0) for _, found in points],
                    [0.0 if found.high is None else min(found.high, 1.0) - found.value for _, found in points],
                ],
                capsize=2.5,
                elinewidth=1.0,
                label=policy,
                **style,
            )
        axes.set_title(title)
        axes.set_ylim(-0.02, 1.04)
        if len(loads_of(runs)) <= MAX_LOAD_TICKS:
            axes.set_xticks(loads_of(runs), [f"{load:.3g}" for load in loads_of(runs)])
        axes.set_xlabel("load (x stock's capacity)" if _in_capacity(runs) else "offered requests/s")
    row[0].set_ylabel(ylabel)
    _legend(figure, styles)
    return figure


def _of_class(name: str) -> Callable[[Run], float | None]:
    def attainment(run: Run) -> float | None:
        share: float | None = run["slo_attainment_by_class"].get(name)
        return share

    return attainment


def _legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(styles), 6))


def _in_capacity(runs: Sequence[Run]) -> bool:
    return any("load" in run for run in runs)
