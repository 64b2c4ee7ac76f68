"""Limits of a policy's options. An error names the option, its value and what is allowed."""

import math


def check_within(options: object, least: float, most: float, *names: str) -> None:
    """Raise ValueError unless each option is a finite number within ``least..most``, ends included."""
    for name in names:
        value = getattr(options, name)
        if not (least <= value <= most and math.isfinite(value)):
            allowed = f"{least:g} or more, and finite" if most == math.inf else f"within {least:g}..{most:g}"
            raise ValueError(f"{name}: {value} is not {allowed}")
