"""What the requests of a step can bear, compiled: see :mod:`sloserve.lso.step_budget`.

``columns`` and ``progress`` are columns of :mod:`sloserve.core.rows`. All functions raise ValueError for a slot that
the columns do not have, for tokens below 0 or above 2^32 - 1, and for arrays that do not fit together.
"""

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import Decoding, ProgressColumns, PromiseColumns, StepPrompts
from sloserve.core.kernels.kv_layout import KVLayout

__all__ = ["Decoding", "PromiseColumns", "StepPrompts", "any_promised", "decoding", "step_prompts"]


def any_promised(columns: PromiseColumns, slots: NDArray[np.int64]) -> bool:
    """Return whether one of ``slots`` states a pace or a time for its whole output."""
    return _csrc.any_promised(columns, slots)


def decoding(
    columns: PromiseColumns,
    slots: NDArray[np.int64],
    *,
    left: NDArray[np.float64],
    per_step: NDArray[np.float64],
    starts_s: float,
    alone_s: float,
    headroom: float,
    spend_tokens: float,
) -> Decoding:
    """Return the decoding requests among ``slots`` that were promised a pace and can still meet it.

    ``lost(step_s=, rate=, pending=, arrival_rate=)`` is how many can still meet all their targets, which is all but
    ``lost_already``, and do not if steps with prompts take ``step_s`` and compute ``rate`` prompt tokens per second,
    above 0, where ``pending`` are to be computed and ``arrival_rate`` arrive per second.

    Args:
        columns: Columns of the request table with what requests state and have got.
        slots: Slots of decoding requests, ``[n]``.
        left: Tokens to come, tokens in flight included, ``[len(slots)]``.
        per_step: Tokens that a step is expected to bring, at least 1, ``[len(slots)]``.
        starts_s: Time at which the step can begin, on the clock of ``arrival_s``.
        alone_s: Seconds that a step without prompts takes.
        headroom: Share of the time that a request can bear for which the plan is made.
        spend_tokens: Tokens over which a lead on the pace is spent; a lag is made up over all tokens to come.
    """
    return Decoding(
        columns,
        slots,
        left=left,
        per_step=per_step,
        starts_s=starts_s,
        alone_s=alone_s,
        headroom=headroom,
        spend_tokens=spend_tokens,
    )


def step_prompts(
    progress: ProgressColumns,
    in_progress: NDArray[np.int64],
    waiting: NDArray[np.int64],
    *,
    layout: KVLayout,
    free_blocks: int,
) -> StepPrompts:
    """Return prompts in order of service, ``slots``: prompts in progress, then the first waiting ones with blocks.

    A waiting prompt is among them if it has KV blocks beside what the prompts in progress still need, and computes
    something; ``startable`` counts prompts that compute nothing as well.

    ``end(place)`` is the prompt tokens of a step that computes the prompts up to ``place``, ``prefix(place)`` the
    tokens computed of that prompt before. ``load(tokens)`` is the prompt tokens, the chunks, and ``sum(chunk * (chunk +
    2 * prefix))`` of a step of ``tokens`` tokens, in order. ``in_chunks(tokens, longest, multiple)`` is the same where
    no chunk is longer than ``longest``, and a chunk that does not end its prompt ends at a multiple.

    ``promise(columns, left=, step_s=, starts_s=)`` says when each must be computed, from the tokens ``left`` of its
    output, of ``step_s`` each. After it ``slack_s`` is the seconds from ``starts_s`` on within which each must be
    computed, nan where nothing says when; ``late(rate, full_rate)`` says how many are late at ``rate`` prompt tokens
    per second and would be in time at ``full_rate``, and ``late_by_token`` the same for seconds a token.
    """
    return StepPrompts(
        progress,
        in_progress=np.ascontiguousarray(in_progress),
        waiting=np.ascontiguousarray(waiting),
        layout=layout,
        free_blocks=free_blocks,
    )
