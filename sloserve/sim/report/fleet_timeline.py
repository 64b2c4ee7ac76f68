"""The timeline of models on instances for each dispatcher: a bar for each instance, a colour for each model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sloserve.core.spans import Phase, PhaseSpan
from sloserve.sim.report.figure_style import COLOURS, folded, paler, styled, write_figure

TIMELINE_PNG = "timeline.png"
_SWAP_COLOUR = "#222222"
_DRAIN_PALENESS = 0.6
_ROW_IN, _PANEL_IN, _WIDTH_IN = 0.17, 0.45, 8.0


def timeline_figure(spans: Mapping[str, Sequence[PhaseSpan]], title: str) -> Figure:
    """Return the figure of the spans of each dispatcher, in runs of the same requests.

    A model's colour is pale while its streams drain; a swap is black.
    """
    models = sorted({span.model for of in spans.values() for span in of if span.model is not None})
    colours = {model: COLOURS[i % len(COLOURS)] for i, model in enumerate(models)}
    instances = sorted({span.instance for of in spans.values() for span in of})
    height_in = 0.9 + len(spans) * (_PANEL_IN + _ROW_IN * len(instances))
    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=150, layout="constrained")
    panels = figure.subplots(len(spans), 1, squeeze=False, sharex=True)[:, 0]
    place = {instance: i for i, instance in enumerate(instances)}
    for axes, (name, of) in zip(panels, spans.items(), strict=True):
        for span in of:
            colour = colours.get(span.model or "", "#DDDDDD")
            if span.phase is Phase.SWITCHING:
                colour = _SWAP_COLOUR
            elif span.phase is Phase.DRAINING:
                colour = paler(colour, _DRAIN_PALENESS)
            axes.barh(place[span.instance], span.end_s - span.start_s, left=span.start_s, height=0.85, color=colour)
        axes.set_yticks(range(len(instances)), instances)
        axes.invert_yaxis()
        axes.set_title(folded(name, 60), loc="left")
        axes.grid(visible=False)
    panels[-1].set_xlabel("time (s)")
    panels[-1].set_xlim(left=0.0)
    handles = [Patch(color=colour, label=model) for model, colour in colours.items()]
    handles.append(Patch(color=_SWAP_COLOUR, label="swap"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), title=title)
    return figure


def write_timeline(out_dir: Path, spans: Mapping[str, Sequence[PhaseSpan]], title: str, about: str) -> Path:
    """Write the figure, with ``about`` below it; return its path."""
    with styled():
        write_figure(timeline_figure(spans, title), out_dir / TIMELINE_PNG, about)
    return out_dir / TIMELINE_PNG
