"""How many requests fit into the KV cache until all have ended, compiled: see :mod:`sloserve.lso.forecast`.

``how_many_fit(runs, layout, *, tokens, grown, held, asked, capacity, sigmas)`` returns how many of ``asked``, in order,
fit beside ``held``: none after the first that does not.

- ``runs``: of ``n`` requests, that each still runs at each of ``t`` steps.
- ``tokens``: ``[n]``, that each has in its KV, or will when it is admitted.
- ``grown``: ``[t]``, tokens that come until each step.
- ``layout``: of the KV cache.
- ``held``, ``asked``: places among the ``n``, contiguous.
- ``capacity``: blocks that there are.
- ``sigmas``: standard deviations of the sum to keep free.

It raises ValueError for places that there are not, or arrays that do not fit together.
"""

from sloserve.core.kernels._csrc import how_many_fit

__all__ = ["how_many_fit"]
