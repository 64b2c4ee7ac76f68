"""What the requests of a step can bear, compiled: see :mod:`sloserve.lso.step_budget`.

``stated`` is the columns ``(arrival_s, ttft_s, tpot_s, tds, e2e_s, first_token_s)`` of :mod:`sloserve.core.rows`,
``counted`` the columns ``(output_tokens, in_flight_tokens)``, ``progress`` as in :mod:`sloserve.core.kernels.requests`.
All raise ValueError for a slot that the columns do not have, tokens below 0 or above 2^32 - 1, and what does not fit
together.
"""

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import Decoding, StepPrompts
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.requests import Progress

__all__ = ["Counted", "Decoding", "Stated", "StepPrompts", "any_promised", "decoding", "step_prompts"]

Stated = tuple[NDArray[np.float64], ...]
Counted = tuple[NDArray[np.int64], ...]


def any_promised(stated: Stated, counted: Counted, slots: NDArray[np.int64]) -> bool:
    """Whether one of ``slots`` states a pace or a time for its whole reply."""
    return _csrc.any_promised(stated, counted, slots)


def decoding(
    stated: Stated,
    counted: Counted,
    slots: NDArray[np.int64],
    left: NDArray[np.float64],
    per_step: NDArray[np.float64],
    *,
    starts_s: float,
    alone_s: float,
    headroom: float,
    spend_tokens: float,
) -> Decoding:
    """Those of ``slots``, which decode, that were promised a pace and are not late whatever is done: ``len()`` of them,
    in order of the longest steps that they can bear until they end, ``bearable_s(place)``.

    ``lost(step_s, rate, pending, arrival_rate)``: how many can still meet all their targets, which is all but
    ``lost_already``, and do not if steps with prompts take ``step_s`` and compute ``rate`` prompt tokens per second,
    above 0, where ``pending`` are to be computed and ``arrival_rate`` arrive per second.

    Args:
        left: ``[len(slots)]``, tokens to come, those in flight included.
        per_step: ``[len(slots)]``, tokens that a step is expected to bring, at least 1.
        starts_s: when the step can begin, on the clock of ``arrival_s``.
        alone_s: of a step without prompts.
        headroom: share of the time that a request can bear which is planned for.
        spend_tokens: over which a lead on the pace is spent; a lag is made up over all tokens to come.
    """
    return Decoding(stated, counted, slots, left, per_step, starts_s, alone_s, headroom, spend_tokens)


def step_prompts(
    progress: Progress,
    in_progress: NDArray[np.int64],
    waiting: NDArray[np.int64],
    *,
    layout: KVLayout,
    free_blocks: int,
) -> StepPrompts:
    """Prompts in order of service, ``slots``: those in progress, then the first of ``waiting`` that have KV blocks
    beside what the former still need, and compute something. ``startable`` counts also those that compute nothing.

    ``end(place)`` is the prompt tokens of a step that computes each and those before it, ``prefix(place)`` the tokens
    computed of it. ``load(tokens)``: prompt tokens, chunks, and ``sum(chunk * (chunk + 2 * prefix))`` of a step of so
    many, in order. ``in_chunks(tokens, longest, multiple)``: the same where no chunk is longer than ``longest``, and
    one that does not end its prompt ends at a multiple.

    ``promise(stated, counted, left, step_s, starts_s)`` says when each must be computed, from the tokens ``left`` of
    its reply, of ``step_s`` each; after it ``late(rate, full_rate)`` says how many are late at ``rate`` prompt tokens
    per second and would be in time at ``full_rate``, and ``late_by_token`` the same for seconds a token.
    """
    return StepPrompts(progress, np.ascontiguousarray(in_progress), np.ascontiguousarray(waiting), layout, free_blocks)
