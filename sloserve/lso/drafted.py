"""Tokens that a step brings each request under speculative decoding.

A target per token is a target per step times these: an output of ``n`` tokens takes ``n / tokens_per_step`` steps, and
a request that may take 20 ms for a token may take 50 ms for a step of 2.5 tokens.
"""

from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso.plan import EngineFacts

DRAFT_COLUMNS: Final = frozenset({"class_id", "drafts_promised", "drafts_accepted"})
"""Columns that :func:`tokens_per_step` reads."""
_CLASS_STEPS: Final = 16.0
"""Steps for which its class counts beside a request's own: requests of a class differ by a third or so of what one step
differs from the next.
"""


def draft_luck(rows: Rows, slots: IntArray, engine: EngineFacts) -> FloatArray:
    """Return each request's accepted drafts over the drafts that their places promise, ``[len(slots)]``.

    The ratio is of the request's own drafts; its class stands in for drafts that the request has not had. Call it only
    for an engine with drafts.
    """
    drafts = engine.drafts
    assert drafts is not None
    of_class = drafts.of_class[np.minimum(rows.class_id[slots], drafts.of_class.size - 1)]
    known = _CLASS_STEPS * max(drafts.promised, 1e-6)
    found: FloatArray = (known * of_class + rows.drafts_accepted[slots]) / (known + rows.drafts_promised[slots])
    return found


def tokens_per_step(rows: Rows, slots: IntArray, engine: EngineFacts) -> FloatArray:
    """Return the tokens that a step is expected to bring each of ``slots``, ``[len(slots)]``; 1 without drafts.

    The step is taken to have the number of drafts that decodes have had recently.
    """
    drafts = engine.drafts
    if drafts is None:
        return np.ones(slots.size)
    found: FloatArray = np.minimum(1.0 + draft_luck(rows, slots, engine) * drafts.promised, drafts.accepted.size + 1.0)
    return found


def mean_tokens_per_step(engine: EngineFacts) -> float:
    """Return the tokens that a step brings a decode, on average over all requests; 1 without drafts."""
    return 1.0 if engine.drafts is None else engine.drafts.tokens_per_step
