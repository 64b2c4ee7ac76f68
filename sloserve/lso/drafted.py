"""How many tokens a step brings each request under speculative decoding.

A target per token is a target per step times these: a reply of ``n`` tokens takes ``n / tokens_per_step`` steps, and a
request that may take 20 ms for a token may take 50 ms for a step of 2.5 tokens.
"""

from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso.plan import EngineFacts

DRAFT_COLUMNS: Final = frozenset({"class_id", "decode_steps", "decoded_tokens"})
"""Columns that :func:`tokens_per_step` reads."""
_CLASS_STEPS: Final = 16.0
"""Steps for which the mean of its class counts beside a request's own: requests of a class differ by a third or so of
what one step differs from the next.
"""


def tokens_per_step(rows: Rows, slots: IntArray, engine: EngineFacts) -> FloatArray:
    """Return the tokens that a step is expected to bring each of ``slots``, ``[len(slots)]``; 1 without drafts.

    It is the mean of the request's own steps, with that of its class for those it has not had.
    """
    drafts = engine.drafts
    if drafts is None:
        return np.ones(slots.size)
    of_class = drafts.of_class[np.minimum(rows.class_id[slots], drafts.of_class.size - 1)]
    found: FloatArray = (_CLASS_STEPS * of_class + rows.decoded_tokens[slots]) / (
        _CLASS_STEPS + rows.decode_steps[slots]
    )
    return found


def mean_tokens_per_step(engine: EngineFacts) -> float:
    """Return the tokens that a step brings a decode, on average over all requests; 1 without drafts."""
    return 1.0 if engine.drafts is None else engine.drafts.tokens_per_step
