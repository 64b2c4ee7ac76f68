"""Gain and cost of requests, compiled: see :mod:`sloserve.scheduler.auto.worth` for what they mean.

``worth(runs, layout, stated, counts, queued, left, per_step, prefill, again_s, weights, now_s, engine)`` returns gain
and cost, ``[n]`` each, and the mean delay in seconds.

- ``runs``: of ``n`` slots, the chance that more tokens than it looks ahead are still to come.
- ``layout``: of the KV cache.
- ``stated``: the columns ``arrival_s``, ``ttft_s``, ``tpot_s``, ``tds``, ``e2e_s`` and ``first_token_s``, by slot.
- ``counts``: the columns ``class_rank``, ``prompt_tokens``, ``output_tokens`` and ``max_tokens``.
- ``queued``: how many of the first of the ``n`` wait.
- ``left``: ``[n]``, tokens to come, expected.
- ``per_step``: ``[n]``, tokens that a step is expected to bring, at least 1.
- ``prefill``: ``[n]``, tokens to compute before the next one.
- ``again_s``: ``[n - queued]``, of those that run: seconds until the KV is back.
- ``weights``: of each class rank, the last that of all beyond.
- ``now_s``: seconds, as ``arrival_s``.
- ``engine``: the figures that :func:`sloserve.scheduler.auto.worth.worth_of` lists, in its order.

It raises ValueError where these do not fit together.
"""

from sloserve.core.kernels._csrc import worth

__all__ = ["worth"]
