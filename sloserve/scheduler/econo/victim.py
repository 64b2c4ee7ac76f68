"""Choice of the running request to preempt for the waiting ones: the one that saves most, if any saves something.

The KV cache is a machine that serves ``total`` tokens in each step; a request occupies it alone for its KV tokens x
steps to go, divided by that. After a preemption all waiting requests with a smaller key go before the victim: each of
them gains the time that the victim would have occupied, the victim loses the time that they occupy, and all requests
lose the time of computing its context again, or what swapping it takes. Delays count as shares of the target, as in the
order of service.

EconoServe ranks admissions and never takes KV back for them. This is Smith's rule with preemption that costs.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray

TOKENS_PER_STEP: Final = 150.0
"""Prompt tokens that take as long to compute as a step of decoding: the latter reads all weights, the former multiply
with them, and a GPU multiplies that much faster than it reads (A100 130, H100 185, for two bytes a weight and as far as
either is ever reached)."""


@dataclass(frozen=True, slots=True, eq=False)
class ServiceOrder:
    """Requests in the order of service; all ``[n]``.

    Args:
        key: Keys, ascending.
        work: KV tokens x steps to go.
        target_s: Seconds from its arrival within which a request should end.
    """

    slots: IntArray
    key: FloatArray
    work: FloatArray
    target_s: FloatArray


def victim_worth_preempting(
    waiting: ServiceOrder,
    running: ServiceOrder,
    again_tokens: FloatArray,
    may_preempt: BoolArray,
    *,
    total_tokens: float,
    tokens_per_step: float = TOKENS_PER_STEP,
) -> int | None:
    """Return the index in ``running`` of the request that saves most if it is preempted; ``None`` if none does.

    Args:
        waiting: The waiting requests, in the order of service.
        running: The running requests, in the order of service, ``[n]``.
        again_tokens: Cost of a preemption, in tokens to compute again, ``[n]``.
        may_preempt: Whether each running request may be preempted, ``[n]``.
        total_tokens: Tokens that the KV cache holds.
        tokens_per_step: Tokens that can be computed again in the time of one step.
    """
    before = np.searchsorted(waiting.key, running.key)
    weight = np.append(0.0, np.cumsum(1.0 / waiting.target_s))
    their_steps = np.append(0.0, np.cumsum(waiting.work / total_tokens))[before]
    of_all = weight[-1] + (1.0 / running.target_s).sum()
    saved = (
        weight[before] * running.work / total_tokens
        - their_steps / running.target_s
        - of_all * again_tokens / tokens_per_step
    )
    saved[~may_preempt] = 0.0
    if not saved.size or saved.max() <= 0.0:
        return None
    return int(np.argmax(saved))
