"""The look of all figures: one colour per policy in every figure, and what figures share.

The baseline is black and dashed and drawn last, so that a policy that equals it shows beneath. The colours are the
palette of Okabe and Ito, which colour-blind readers can distinguish; markers differ as well.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray
from PIL import Image

from sloserve.core.arrays import FloatArray
from sloserve.sim.report.compare import BASELINE

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY = "#E69F00", "#56B4E9", "#999999"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
_COLOURS_KEPT = 64
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

POLICY_COLOURS: Mapping[str, str] = {
    "stock": "black",
    "edf": BLUE,
    "sjf": ORANGE,
    "andes": GREEN,
    "econo": VERMILION,
    "sa": PURPLE,
    "rr": SKY,
    "fcfs": GREY,
    "priority": PURPLE,
    "econo-paper": SKY,
}
"""The colours of policies that appear in published figures.

Any other policy gets a colour that its figure does not use yet.
"""

DASHES: Sequence[Any] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
PALENESS = (0.0, 0.35, 0.55)
"""The share of white in the colour of a policy with the 1st, 2nd and 3rd set of its options."""

BAR_IN, BAR_HEIGHT = 0.24, 0.7
"""The height in inches of a bar with the space around it, and the share of it that is bar."""
LETTER_IN = 0.075
"""The approximate width of a letter, in inches."""
NAME_LETTERS = 34
"""The longest line of a policy's name in letters, beside a bar or above a panel."""
MAX_LOAD_PANELS = 4
"""The most panels of a figure that has one for each load."""
DPI = 100
"""Pixels per inch of figures against load."""
CAPTION_SIZE, CAPTION_LINE_IN, CAPTION_LETTER_IN = 7, 0.135, 0.06
"""The size of the letters below a figure in points, the height of a line and the mean width of a letter in inches."""
LEGEND_ROW_IN = 0.19
"""The height of a row of the legend, in inches."""

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
    "legend.title_fontsize": 8,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def styled() -> AbstractContextManager[None]:
    """Return a context in which figures look as all do, whatever the user's settings of matplotlib are."""
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE})


def write_figure(figure: Figure, path: Path, about: str = "", *, colours: int = _COLOURS_KEPT) -> None:
    """Write the figure as PNG with a palette, a third of the size; equal figures leave equal bytes.

    Args:
        figure: The figure.
        path: Path of the file.
        about: What was measured, which is written below the figure: workload, profile, load, seeds, versions.
        colours: Number of colours of the palette.
    """
    pixels = _pixels(figure)
    if about:
        lines = textwrap.wrap(about, int(figure.get_figwidth() / CAPTION_LETTER_IN), break_on_hyphens=False)
        height_in = CAPTION_LINE_IN * (len(lines) + 0.6)
        strip = Figure(figsize=(figure.get_figwidth(), height_in), dpi=figure.dpi)
        strip.text(0.01, 0.98, "\n".join(lines), va="top", fontsize=CAPTION_SIZE, color="#444444")
        below = _pixels(strip)[:, : pixels.shape[1]]
        pixels = np.concatenate([pixels, np.pad(below, _missing(pixels, below), constant_values=255)])
    Image.fromarray(pixels).convert("RGB").quantize(colours).save(path, optimize=True)


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _missing(wide: NDArray[np.uint8], narrow: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return by how much to pad each axis of ``narrow``, which may lack a column of pixels by rounding."""
    return [(0, 0), (0, wide.shape[1] - narrow.shape[1]), (0, 0)]


Styles = Mapping[str, Mapping[str, Any]]
"""The keyword arguments of each policy's line, in the order in which they are drawn."""


def line_styles(policies: Sequence[str], baseline: str = BASELINE) -> dict[str, dict[str, Any]]:
    """Return colour, marker and dashes of each policy, in the order of ``policies`` with the baseline last.

    Neighbours differ in colour, marker and dashes, so that lines that cover each other differ. A policy with
    options (``sjf:length=oracle``, ``edf+predict``) has the colour of the plain policy, paler.
    """
    others = [policy for policy in policies if policy != baseline]
    colours = _colours(others)
    options: dict[str, list[str]] = {}
    styles: dict[str, dict[str, Any]] = {}
    for i, policy in enumerate(others):
        name = plain_name(policy)
        seen = options.setdefault(name, [name])
        if policy not in seen:
            seen.append(policy)
        variant = seen.index(policy)
        styles[policy] = {
            "color": paler(colours[name], PALENESS[variant % len(PALENESS)]),
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i % len(DASHES)],
        }
    if baseline in policies:
        styles[baseline] = {"color": "black", "marker": "o", "markerfacecolor": "white", "linestyle": (0, (4, 2))}
    return styles


def bar_style(style: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style of a bar that belongs to a line of ``style``.

    The baseline's bar is white with a black edge, as its markers are; names stand beside the others.
    """
    if "markerfacecolor" in style:
        return {"color": style["markerfacecolor"], "edgecolor": style["color"], "linewidth": 1.0}
    return {"color": style["color"]}


def plain_name(policy: str) -> str:
    """Return the policy's name without options and admission."""
    return policy.partition("+")[0].partition(":")[0]


def _colours(policies: Sequence[str]) -> dict[str, str]:
    """Return the colour of each plain name: its fixed colour, else a colour that is not used here, else any."""
    names = list(dict.fromkeys(plain_name(policy) for policy in policies))
    found = {name: POLICY_COLOURS[name] for name in names if name in POLICY_COLOURS}
    free = [colour for colour in COLOURS if colour not in found.values()] or list(COLOURS)
    unnamed = [name for name in names if name not in found]
    return found | {name: free[i % len(free)] for i, name in enumerate(unnamed)}


def paler(colour: str, amount: float) -> str:
    """Return ``colour`` mixed with white; the amount 0 leaves it unchanged, 1 is white."""
    return to_hex([part + (1.0 - part) * amount for part in to_rgb(colour)])


def has_baseline(styles: Styles) -> bool:
    """Return whether the last style is the style of a baseline, which alone has white markers."""
    return any("markerfacecolor" in style for style in styles.values())


def baseline_first(styles: Styles) -> list[str]:
    """Return the policies in the order of a reader: the styles have the baseline last, here it comes first."""
    return list(styles)[-1:] + list(styles)[:-1]


def folded(label: str, width: int = NAME_LETTERS) -> str:
    """Return a policy's name in lines of at most ``width`` characters, broken before its options."""
    lines = [""]
    for part in re.split(r"(?=[:+ ])", label):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines)


def bars_height_in(policies: Sequence[str]) -> float:
    """Return the height of a figure with a horizontal bar for each policy, in inches."""
    return BAR_IN * sum(folded(policy).count("\n") + 1 for policy in policies) + 1.1


def names_width_in(policies: Sequence[str]) -> float:
    """Return the width of the names beside the bars, in inches."""
    return LETTER_IN * max(len(line) for policy in policies for line in folded(policy).split("\n")) + 0.4


def write_value(axes: Axes, place: int, text: str) -> None:
    """Write the value of a bar at its foot, where no interval covers it."""
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.annotate(
        text, (0.0, place), xytext=(3.0, 0.0), textcoords="offset points", va="center", fontsize="x-small", bbox=box
    )


def three_digits(value: float) -> str:
    """Return the value with three significant digits, or with more if more stand before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def name_bars(axes: Axes, policies: Sequence[str]) -> None:
    """Write the names of horizontal bars at 0, 1, ..., the first on top."""
    axes.set_yticks(range(len(policies)), [folded(policy) for policy in policies])
    axes.set_ylim(len(policies) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def add_legend(figure: Figure, note: str | None = None) -> None:
    """Add one legend for all panels below them, in as many columns as fit; the figure grows by its rows.

    A ``note`` stands above the names.
    """
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if not labels:
        return
    for rows in range(1, len(labels) + 1):
        columns = -(-len(labels) // rows)
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.4, title=note
        )
        if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * (rows - 1 + (note is not None)))
    figure.set_figwidth(max(figure.get_figwidth(), legend.get_window_extent().width / figure.dpi + 0.1))


def plain_log_ticks(axes: Axes) -> None:
    """Label the ticks of a logarithmic x axis with plain numbers.

    The ticks are 0.5, 1, 2 where the data span little, else powers of ten. Call it when all data of the axis, shared
    axes included, have been drawn.
    """
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 100.0 * low else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def percent_labels(highest: float) -> PercentFormatter:
    """Return the labels of an axis of shares up to ``highest``, in percent."""
    return PercentFormatter(xmax=1.0, decimals=0 if highest > 0.1 else 1)


def draw_distribution(axes: Axes, values: FloatArray, total: int, label: str, style: Mapping[str, Any]) -> None:
    """Draw the share of ``total`` that has at most each of ``values``, over a logarithmic axis."""
    ordered = np.sort(values)
    line = {key: value for key, value in style.items() if key in ("color", "linestyle")}
    axes.step(ordered, np.arange(1, ordered.size + 1) / total, where="post", label=label, **line)
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.set_ylim(0.0, 1.02)


def panel_loads(loads: Iterable[float]) -> list[float]:
    """Return up to ``MAX_LOAD_PANELS`` of the different ``loads``, from the lowest to the highest."""
    found = sorted(set(loads))
    picked = np.unique(np.linspace(0, len(found) - 1, min(MAX_LOAD_PANELS, len(found))).round().astype(int))
    return [found[i] for i in picked]


def load_name(load: float, unit: str) -> str:
    """Return a load in words; its unit is what :func:`~sloserve.sim.report.compare.load_unit` returns."""
    return f"{load:.3g} {unit}"
