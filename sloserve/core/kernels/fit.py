"""Least squares of a handful of terms, compiled: with numpy each of its calls costs more than the arithmetic.

``fit_nonnegative(*, information, aim, theta, positive, share, target, keep, leak, most_solves)`` adds the observation
``share @ theta = target`` to normal equations, and solves them for theta >= 0; in place. It adds up in one order,
whatever the CPU's linear algebra library does.

- ``information``: ``[n, n]``, symmetric and positive definite, n <= 16.
- ``aim``: ``[n]``.
- ``theta``: ``[n]``, the coefficients so far, then the new ones.
- ``positive``: ``[n]``, which of them are above 0, so far as is known.
- ``share``: ``[n]``.
- ``target``: of this observation.
- ``keep``: share of what was that stays.
- ``leak``: weight of an observation of each term alone, that it is what theta says.
- ``most_solves``: attempts to find which coefficients are 0; what is wrong then is corrected at the next call.

It raises ValueError for arrays of other sizes.
"""

from sloserve.core.kernels._csrc import fit_nonnegative

__all__ = ["fit_nonnegative"]
