"""Gain and cost of requests, compiled: see :mod:`sloserve.scheduler.auto.worth` for what they mean.

``worth(runs, layout, engine, columns, *, queued, left, per_step, prefill, again_s, weights, now_s)`` returns gain and
cost, ``[n]`` each, and the mean delay in seconds. Whatever could be taken for something else is given by name.

- ``runs``: the chance that more tokens than it looks ahead are still to come, of ``n`` slots.
- ``layout``: the layout of the KV cache.
- ``engine``: how fast the engine is, what it can hold, and what gains are weighed by; see ``WorthEngine`` in
  ``csrc/include/sloserve/worth.h``.
- ``columns``: columns of the request table.
- ``queued``: how many of the first of the ``n`` requests wait.
- ``left``: ``[n]``, the expected tokens still to come.
- ``per_step``: ``[n]``, the tokens that a step is expected to bring, at least 1.
- ``prefill``: ``[n]``, the tokens to compute before the next one.
- ``again_s``: ``[n - queued]``, the seconds until each running request has its KV back.
- ``weights``: the weight of each class rank; the last one holds for all ranks beyond.
- ``now_s``: the time now in seconds, on the clock of ``arrival_s``.

It raises ValueError where these do not fit together.
"""

from sloserve.core.kernels._csrc import worth
from sloserve.kernels._csrc import WorthColumns, WorthEngine, worth

__all__ = ["WorthColumns", "WorthEngine", "worth"]
