"""Seeds of random tests: a few among the fast tests, all of them among the slow ones."""

import pytest


def seeds(fast: int, all_of_them: int) -> list[object]:
    """From 0; those from ``fast`` on are marked slow."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, all_of_them))]
