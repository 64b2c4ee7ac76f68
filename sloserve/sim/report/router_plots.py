"""Figures of a router: its reward by rate and where it sends requests, and how it follows rates that change.

Source: Quality-of-Service Aware LLM Serving, Fig. 4, 5, 6 and 9.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sloserve.core.arrays import FloatArray
from sloserve.sim.report.figure_style import COLOURS, DASHES, MARKERS, add_legend, plain_log_ticks, styled, write_figure


def plot_rates(
    path: Path,
    rates: Sequence[float],
    rewards: Mapping[str, Sequence[float]],
    shares: Mapping[str, FloatArray],
    about: str,
) -> None:
    """Plot the reward of each rule by rate, and beside it the share of each model: of all requests, and of each task.

    Args:
        path: Path of the file.
        rates: Requests per second.
        rewards: Reward at each rate by rule.
        shares: Shares by ``all`` or task, ``[rates, models]``; models are named as the rules of ``rewards`` that come
            first.
        about: What was simulated, to be written below the figure.
    """
    with styled():
        panels = 1 + len(shares)
        columns = min(panels, 3)
        rows = -(-panels // columns)
        figure = Figure(figsize=(3.1 * columns + 0.4, 2.4 * rows + 0.5), dpi=110, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for i, (name, values) in enumerate(rewards.items()):
            style = {
                "color": COLOURS[i % len(COLOURS)],
                "marker": MARKERS[i % len(MARKERS)],
                "linestyle": DASHES[i % len(DASHES)],
            }
            axes[0].plot(rates, values, label=name, **style)
        axes[0].set(xscale="log", ylim=(0.0, 1.02), ylabel="mean quality in time", title="reward")
        for at, (task, of) in zip(axes[1:], shares.items(), strict=False):
            for i in range(of.shape[1]):
                at.plot(rates, of[:, i], color=COLOURS[i], marker=MARKERS[i], linestyle=DASHES[i % len(DASHES)])
            at.set(ylim=(0.0, 1.02), title=f"sent to: {task}")
        for at in axes[panels:]:
            at.set_axis_off()
        for at in axes[max(panels - columns, 0) : panels]:
            at.set_xlabel("requests/s")
            at.tick_params(labelbottom=True)
        plain_log_ticks(axes[0])
        add_legend(figure)
        write_figure(figure, path, about)


def plot_changing(
    path: Path,
    rate_per_s: FloatArray,
    windowed: Mapping[str, tuple[FloatArray, FloatArray]],
    running: Mapping[str, tuple[FloatArray, FloatArray]],
    about: str,
) -> None:
    """Plot the running mean and the mean of the last 20 requests of each rule, above the rate of arrivals.

    Args:
        path: Path of the file.
        rate_per_s: Requests per second at each request.
        windowed: Number of requests served until then and the mean of the last 20, request by request, by rule.
        running: The same with the mean of all requests until then.
        about: What was simulated, to be written below the figure.
    """
    with styled():
        figure = Figure(figsize=(7.2, 5.4), dpi=110, layout="constrained")
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
        for at, lines, label in ((axes[0], running, "running mean"), (axes[1], windowed, "mean of 20")):
            for i, (name, (x, y)) in enumerate(lines.items()):
                at.plot(x, y, label=name, color=COLOURS[i % len(COLOURS)], linewidth=1.0)
            at.set(ylim=(0.0, 1.02), ylabel=label)
        axes[2].plot(range(rate_per_s.size), rate_per_s, color="black", linewidth=0.8)
        axes[2].set(yscale="log", ylabel="requests/s", xlabel="request")
        add_legend(figure)
        write_figure(figure, path, about)
