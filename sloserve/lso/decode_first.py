"""Decodes before unfinished prompts, whatever key a policy orders the running requests by.

vLLM serves ``running`` in list order and gives each request as many tokens as it can take. So an unfinished prompt
that stands before decoding requests may take the whole step, and they wait a full step for one token each. vLLM's own
order avoids this, since who was admitted first decodes first; a policy that sorts ``running`` has to restore it.
"""

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.rows import Rows

PREFILL_COLUMNS = frozenset({"computed_tokens", "prompt_tokens", "output_tokens"})
"""Columns that tell decodes from unfinished prompts."""


def uncomputed_tokens(rows: Rows, slots: IntArray) -> IntArray:
    """Prefill tokens that no step has been given yet, ``[len(slots)]``: of a waiting request all, of a decode none.

    After a preemption the prompt and the output so far are computed again: both are prefill.
    """
    output = rows.output_tokens[slots]
    left = rows.prompt_tokens[slots] + output - rows.computed_tokens[slots]
    # The last token of a reply has no KV yet, unless the step that computes it is in flight.
    left[left <= (output > 0)] = 0
    return left


def unfinished(rows: Rows, slots: IntArray) -> BoolArray:
    """Which running requests have prefill tokens that no step has been given yet, ``[len(slots)]``; others decode."""
    found: BoolArray = uncomputed_tokens(rows, slots) > 0
    return found


def decode_first(rows: Rows, order: IntArray) -> IntArray:
    """``order``, running slots in a policy's order of service, with decodes before unfinished prompts.

    Both parts keep the policy's order.
    """
    prompts = unfinished(rows, order)
    return np.concatenate((order[~prompts], order[prompts])) if prompts.any() else order
