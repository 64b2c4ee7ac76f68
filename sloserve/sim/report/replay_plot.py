"""Requests in time along a recording: what was recorded, the replay of it, and what else was replayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from sloserve.core.arrays import FloatArray
from sloserve.sim.report.figure_style import add_legend, line_styles, percent_labels, styled, write_figure

_STRETCHES: Final = 30
_SMOOTHED: Final = 3
"""Stretches of time over which a point is the mean."""
_SIZE_IN: Final = (8.0, 3.6)
_RECORDED: Final = "#111111"


@dataclass(frozen=True, slots=True, eq=False)
class InTimeSeries:
    """The fate of requests with targets under one run.

    Args:
        name: Name of the run.
        at_s: When requests arrived in seconds, ``[n]``.
        met: Share of replays in which each was in time, ``[n]``.
    """

    name: str
    at_s: FloatArray
    met: FloatArray


def write_replay_plot(path: Path, recorded: InTimeSeries, replays: Sequence[InTimeSeries], about: str) -> None:
    """Write the figure as PNG, with ``about`` below it.

    Args:
        path: File to write.
        recorded: What was recorded.
        replays: The replay of what ran, then the others.
        about: What was replayed.
    """
    with styled():
        write_figure(replay_figure(recorded, replays), path, about)


def replay_figure(recorded: InTimeSeries, replays: Sequence[InTimeSeries]) -> Figure:
    """Return the figure; see :func:`write_replay_plot`."""
    figure = Figure(figsize=_SIZE_IN, dpi=150, layout="constrained")
    axes = figure.subplots()
    begin_s, end_s = float(recorded.at_s.min()), float(recorded.at_s.max())
    edges = np.linspace(begin_s, end_s + 1e-9, _STRETCHES + 1)
    middle_s = (edges[1:] + edges[:-1]) / 2.0 - begin_s
    axes.plot(middle_s, _share(recorded, edges), color=_RECORDED, linewidth=2.2, label="recorded")
    styles = line_styles([one.name for one in replays])
    for one in replays:
        axes.plot(middle_s, _share(one, edges), label=one.name, **styles[one.name])
    axes.set_ylim(0.0, 1.02)
    axes.yaxis.set_major_formatter(percent_labels(1.0))
    axes.set_xlabel("time of arrival (s)")
    axes.set_ylabel("requests in time")
    add_legend(figure)
    return figure


def _share(course: InTimeSeries, edges: FloatArray) -> FloatArray:
    """Return the share of requests in time around each stretch; NaN where none came."""
    met, _ = np.histogram(course.at_s, edges, weights=course.met)
    count, _ = np.histogram(course.at_s, edges)
    window = np.ones(_SMOOTHED)
    met, count = np.convolve(met, window, "same"), np.convolve(count, window, "same")
    share: FloatArray = np.where(count > 0, met / np.maximum(count, 1), np.nan)
    return share
