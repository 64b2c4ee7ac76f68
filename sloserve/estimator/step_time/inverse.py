"""The largest prompt chunk with a bound on the step's time within a limit.

A form gives a *bound*: a time that is never below the form's own ``step_s`` and never falls with the chunk, its prefix
or anything else in the step. The largest chunk within such a bound is monotone for the same reason, so that a budget
derived from it does not jump where a form has a kink, a set of its own, or divides by the number of requests.
"""

import math
from collections.abc import Callable

MOST_TOKENS = 2**20
"""Result where tokens cost nothing: more than any engine computes in one step."""

ROUNDING = 1.0 - 1e-9
"""A limit is narrowed by this, so that rounding errors of a bound never promise too much."""


def quadratic_root(constant: float, linear: float, square: float) -> float:
    """Return the c >= 0 at which ``linear * c + square * c ** 2`` reaches ``constant``, which may be inf.

    None of the arguments is negative.
    """
    if square > 0.0:
        # The form of the solution that does not subtract two nearly equal numbers.
        root = math.sqrt(linear * linear + 4.0 * square * constant)
        return 2.0 * constant / (linear + root) if constant > 0.0 else 0.0
    return constant / linear if linear > 0.0 else math.inf


def most_tokens(bound: Callable[[int], float], limit: float, guess: float) -> int:
    """Return the largest c in 0..MOST_TOKENS with ``bound(c) <= limit``; 0 if there is no such c from 1 on.

    Args:
        bound: A function that never falls.
        limit: The greatest value that ``bound`` may reach.
        guess: Value to try first; an exact guess takes two calls of ``bound``, another logarithmically many.
    """
    low, high = 0, MOST_TOKENS + 1  # bound(low) is within the limit, or low is 0; bound(high) is not
    at, step = int(min(max(guess, 1.0), MOST_TOKENS)), 1
    while high - low > 1:
        if bound(at) <= limit:
            low, at = at, at + step
        else:
            high, at = at, at - step
        step *= 2
        if not low < at < high:
            at = (low + high) // 2
    return low
