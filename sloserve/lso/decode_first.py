"""Decodes before unfinished prompts, whatever key a policy orders the running requests by.

vLLM serves ``running`` in list order and gives each request as many tokens as it can take. So an unfinished prompt
that stands before decoding requests may take the whole step, and they wait a full step for one token each. vLLM's own
order avoids this, since the request admitted first decodes first; a policy that sorts ``running`` has to restore it.

The same list is vLLM's order of victims: short of KV blocks it preempts the last. A policy's order therefore has three
parts, each in the order that the policy gave: decodes, unfinished prompts, and, if the next step may run out of blocks,
the requests that the policy would have preempted for them.
"""

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.kernels import requests
from sloserve.core.rows import Rows
from sloserve.lso.plan import EngineFacts

PREFILL_COLUMNS = frozenset({"computed_tokens", "hit_tokens", "prompt_tokens", "output_tokens", "swapped_tokens"})
"""Columns that tell decodes from unfinished prompts."""


def progress_columns(rows: Rows) -> requests.ProgressColumns:
    """Return PREFILL_COLUMNS as :mod:`sloserve.core.kernels.requests` takes them."""
    return requests.ProgressColumns(
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        computed_tokens=rows.computed_tokens,
        swapped_tokens=rows.swapped_tokens,
        hit_tokens=rows.hit_tokens,
    )


def tokens_without_kv(rows: Rows, slots: IntArray) -> IntArray:
    """Return the tokens of prompt and output, ``[len(slots)]``, that have no KV and that no step has been given.

    Neither the prefix cache nor the host pool holds these tokens. The result is below 0 if drafts are in flight.
    """
    return requests.tokens_without_kv(progress_columns(rows), slots)


def uncomputed_tokens(rows: Rows, slots: IntArray) -> IntArray:
    """Return the prefill tokens that no step has been given yet, ``[len(slots)]``.

    A waiting request has all of its prompt to compute, a decode none. A preempted request computes its prompt and its
    output so far again, both as prefill, except for what the prefix cache or the host pool has of them.
    """
    return requests.uncomputed_tokens(progress_columns(rows), slots)


def unfinished(rows: Rows, slots: IntArray) -> BoolArray:
    """Return which running requests have prefill tokens that no step has been given yet, ``[len(slots)]``.

    The others decode.
    """
    found: BoolArray = uncomputed_tokens(rows, slots) > 0
    return found


def decode_first(rows: Rows, order: IntArray) -> IntArray:
    """Return ``order``, running slots in a policy's order of service, with decodes before unfinished prompts.

    Both parts keep the policy's order.
    """
    prompts = unfinished(rows, order)
    return np.concatenate((order[~prompts], order[prompts])) if prompts.any() else order


def service_order(rows: Rows, order: IntArray, engine: EngineFacts, token_budget: int | None = None) -> IntArray:
    """Return ``order`` as a plan should have it: decodes, unfinished prompts, the next victims. See this module.

    The victims are the last of ``order``, as many as hold the blocks that the next step may lack, and none if blocks
    suffice. A request that no plan may preempt is not among them.

    Args:
        rows: The request table.
        order: Running slots in a policy's order of service, which is from its end the policy's order of victims.
        engine: What the engine can do.
        token_budget: Tokens that the step may compute; ``None`` for the engine's own limit.
    """
    found = requests.service_order(
        progress_columns(rows),
        rows.preemptable,
        order,
        layout=engine.layout,
        free_blocks=engine.free_blocks,
        token_budget=engine.token_budget if token_budget is None else token_budget,
        decode_tokens=engine.decode_tokens,
    )
    return found if found.size else order
