"""Frames of texts as the Markdown that pages show."""

import re

import pandas as pd

from benchmarks.publish import markdown

_SIGNS = ((re.compile(r"(?<=\d)%"), " %"), (re.compile(r" *\+- *"), " ± "), (re.compile(r"(?<!\w)-(?=\d)"), "−"))


def frame_table(frame: pd.DataFrame) -> str:
    """Return a frame of texts as a table of Markdown; the name of its index is the head of the first column."""
    body = ([str(name), *row] for name, row in zip(frame.index, frame.to_numpy(), strict=True))
    return typeset("\n".join(markdown([[frame.index.name or "", *frame.columns], *body])) + "\n")


def typeset(text: str) -> str:
    """Return ``text`` with a space before each per cent sign, a minus for a hyphen before a digit and ``±`` for +-."""
    for sign, shown in _SIGNS:
        text = sign.sub(shown, text)
    return text
