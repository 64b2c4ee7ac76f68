"""The section ``derived`` of a profile's file, and folded text in such a file."""

import textwrap
from typing import NamedTuple


class Comparison(NamedTuple):
    """How a derived profile compares with published times: see the profile's ``derived.published``."""

    source: str
    figures: int
    mape_percent: float
    ratio: float


def folded(text: str, indent: str) -> str:
    """Return the text in lines of at most 118 characters, as a folded block of YAML has it."""
    return textwrap.fill(" ".join(text.split()), 118, initial_indent=indent, subsequent_indent=indent)


def derived_text(method: str, published: Comparison | None = None) -> str:
    """Return the section as YAML, without a line break at its end."""
    lines = ["derived:", "  method: >-", folded(method, "    ")]
    if published is None:
        return "\n".join([*lines, "  published: null"])
    lines += ["  published:", "    source: >-", folded(published.source, "      ")]
    lines += [f"    figures: {published.figures}", f"    mape_percent: {published.mape_percent:.1f}"]
    return "\n".join([*lines, f"    ratio: {published.ratio:.2f}"])
