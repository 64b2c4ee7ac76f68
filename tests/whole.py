"""What only ``make whole`` runs: the longest tests, and of a table of cases those that repeat what others show.

A test with the marker ``whole`` is skipped elsewhere; ``SLOSERVE_TESTS=whole pytest FILE`` runs it too. Tests that
serve fewer cases in one function ask :data:`WHOLE` instead.
"""

import os
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any, Final

import pytest

WHOLE: Final = os.environ.get("SLOSERVE_TESTS") == "whole"
"""Whether the longest tests run in full, as ``make whole`` has it; else a part."""

SKIPPED: Final = pytest.mark.skip(reason="part of make whole (SLOSERVE_TESTS=whole)")


def sampled(values: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Return values for ``parametrize``, of which ``make test`` runs those that are ``kept``."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.whole) for value in values]


def first_of_each(values: Iterable[Any], *axes: Callable[[Any], Hashable]) -> list[Any]:
    """Return values for ``parametrize``, of which ``make test`` runs those in which something comes first.

    Args:
        values: the cases.
        axes: each returns one aspect of a case, such as its policy.
    """
    seen, found = set[tuple[int, Hashable]](), []
    for value in values:
        shown = {(number, aspect(value)) for number, aspect in enumerate(axes)}
        found.append(pytest.param(value, marks=pytest.mark.whole if shown <= seen else ()))
        seen |= shown
    return found


def skip_the_rest(items: Iterable[pytest.Item]) -> None:
    """Skip what only ``make whole`` runs, unless this is it."""
    if WHOLE:
        return
    for item in items:
        if item.get_closest_marker("whole"):
            item.add_marker(SKIPPED)
