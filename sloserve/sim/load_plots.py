"""Figures against load: attainment, QoE, normalised latency, throughput with preemptions, utilisation.

Bars are 95 % confidence intervals over seeds.
"""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sloserve.sim.compare import load_of, loads_of
from sloserve.sim.figure_style import Styles, add_legend
from sloserve.sim.statistics import mean_interval
from sloserve.sim.summary import Run

MAX_CLASS_PANELS = 3
MAX_LOAD_TICKS = 7

Panel = tuple[str, Callable[[Run], float | None]]
"""Title, and the value of a run that is drawn."""


def counts_in_capacity(runs: Sequence[Run]) -> bool:
    """Whether the load axis is in multiples of stock's capacity, not in requests per second."""
    return any("load" in run for run in runs)


def attainment_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """SLO attainment against load: all requests that have targets, then the first classes if there are several."""
    classes = list(dict.fromkeys(name for run in runs for name in run["slo_attainment_by_class"]))
    panels: list[Panel] = [("all classes", lambda run: run["slo_attainment"])]
    if len(classes) > 1:
        panels += [(name, _of_class(name)) for name in classes[:MAX_CLASS_PANELS]]
    figure = _shares_against_load(runs, styles, panels, "requests that met every target")
    for axes in figure.axes:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    return figure


def qoe_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Mean and 10th percentile of QoE against load."""
    panels: list[Panel] = [
        ("mean", lambda run: run["qoe_mean"]),
        ("10th percentile", lambda run: run["qoe_p10"]),
    ]
    return _shares_against_load(runs, styles, panels, "QoE")


def normalized_latency_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Mean of e2e latency per output token against load. Source: Andes, Fig. 21; EconoServe, Fig. 9."""

    def seconds(run: Run) -> float | None:
        value_ms = run["normalized_latency_ms"]
        return None if value_ms is None else float(value_ms) / 1e3

    return _against_load(runs, styles, [("normalised latency (s/token)", seconds)])


def throughput_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """Output throughput and preemptions per request against load. Source: Andes, Fig. 12 and 13."""
    panels: list[Panel] = [
        ("output tokens/s", lambda run: run["output_throughput"]),
        ("preemptions per request", lambda run: run["preemptions_per_request"]),
    ]
    return _against_load(runs, styles, panels)


def utilization_figure(runs: Sequence[Run], styles: Styles) -> Figure:
    """KV blocks and step tokens in use, over the time of steps, against load. Source: EconoServe, Fig. 11.

    Each panel has its own scale: decoding alone fills a KV cache with a few per cent of a step's tokens. More of them
    is not always better, since tokens computed again after evictions count.
    """
    panels: list[Panel] = [
        ("KV blocks in use", lambda run: run["kv_utilization_mean"]),
        ("step tokens of the budget", lambda run: run["step_token_utilization_mean"]),
    ]
    figure = _against_load(runs, styles, panels, highest=1.0)
    for axes in figure.axes:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    return figure


def _shares_against_load(runs: Sequence[Run], styles: Styles, panels: Sequence[Panel], ylabel: str) -> Figure:
    """Panels of values in 0..1 on the same vertical axis."""
    figure = _against_load(runs, styles, panels, highest=1.0)
    for axes in figure.axes:
        axes.set_ylim(-0.02, 1.04)
        axes.label_outer()
    figure.axes[0].set_ylabel(ylabel)
    return figure


def _against_load(
    runs: Sequence[Run], styles: Styles, panels: Sequence[Panel], highest: float = float("inf")
) -> Figure:
    """One panel per entry of ``panels``, side by side; values, and so what their intervals may reach, lie between 0 and
    ``highest``.
    """
    figure = Figure(figsize=(max(3.1 * len(panels), 4.5), 3.5), dpi=150, layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False)[0]
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
                # What cannot be below 0 or above the highest value is not drawn so, whatever the t interval says.
                yerr=[
                    [0.0 if found.low is None else found.value - max(found.low, 0.0) for _, found in points],
                    [0.0 if found.high is None else min(found.high, highest) - found.value for _, found in points],
                ],
                capsize=2.5,
                elinewidth=1.0,
                label=policy,
                **style,
            )
        axes.set_title(title)
        axes.set_ylim(bottom=0.0)
        if len(loads_of(runs)) <= MAX_LOAD_TICKS:
            axes.set_xticks(loads_of(runs), [f"{load:.3g}" for load in loads_of(runs)])
        axes.set_xlabel("load (x stock's capacity)" if counts_in_capacity(runs) else "offered requests/s")
    add_legend(figure)
    return figure


def _of_class(name: str) -> Callable[[Run], float | None]:
    def attainment(run: Run) -> float | None:
        share: float | None = run["slo_attainment_by_class"].get(name)
        return share

    return attainment
