"""How all figures look.

Stock, or whatever the baseline is, is black and dashed in all of them and drawn last, so that a policy that equals it
shows beneath. Colours are those of Okabe and Ito, told apart by colour-blind readers; markers differ as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from sloserve.sim.compare import BASELINE

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEGEND_COLUMNS = 6
ENTRY_IN, LETTER_IN = 0.75, 0.075
"""About what an entry of the legend takes without its label, and a letter of it, at this size of type."""

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

Styles = Mapping[str, Mapping[str, Any]]
"""Of each policy, in the order in which they are drawn."""


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


def add_legend(figure: Figure) -> None:
    """One legend for all panels, below them, in as many rows as its labels need."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    widest_in = ENTRY_IN + LETTER_IN * max((len(label) for label in labels), default=0)
    fit = max(int(figure.get_figwidth() / widest_in), 1)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), fit, LEGEND_COLUMNS))


def load_name(load: float, *, in_capacity: bool) -> str:
    """A load in words; in_capacity: it counts in multiples of stock's capacity, else in requests per second."""
    return f"{load:.3g} x stock's capacity" if in_capacity else f"{load:.3g} requests/s"
