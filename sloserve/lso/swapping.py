"""Recompute or swap? The engine time that each takes, for a request at the moment it is preempted.

*Recomputed*, its context passes through the model once more, chunk by chunk beside what runs, and every step is longer
by that. *Swapped*, its KV goes to the host and back by the link, which takes nothing from those who run but

* the packing and unpacking on the device, and
* what the device cannot take out of the cache at once (``staging_bytes``): the next step waits until the link has it.

The victim itself waits for both copies, behind those that are queued; but it waits for its turn anyhow, and its delay
counts only beyond that. The KV is swapped if that is less than the recomputation.

Source: QLM, Sec. 5 and Insight 2. Differs: QLM compares one request's own times.
"""

from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import Rows, State
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.lso.needed_blocks import needed_blocks
from sloserve.lso.plan import EngineFacts, SwapFacts

__all__ = ["SwapFacts", "cheaper_later", "preemption_price", "recompute_s", "swap_s", "swap_worth_s"]

STAGING_BYTES_PER_S: Final = 0.7e12
"""At which KV is packed and unpacked: each byte is read and written once, at half of an A100's memory bandwidth of
1.55e12 bytes/s. Newer devices are faster. 1,000 tokens of Llama 3 8B take 0.2 ms.
"""
_CONTEXTS: Final = 12
"""Contexts at which the price of a preemption is computed; between them it is a line."""


def recompute_s(tokens: int, running: StepLoad, engine: EngineFacts) -> float:
    """Engine seconds that steps with ``running`` last longer because they compute ``tokens`` of context again.

    The context is computed in chunks that fill the steps, in full attention to what is before. The steps compute other
    prompts too, since some wait where requests are preempted: what the first prompt adds to a step of decodes is not
    charged. Never falls with ``tokens`` where the latency does not.
    """
    if tokens <= 0:
        return 0.0
    latency = engine.step_latency
    alone_s = latency.step_s(StepLoad(1, 1, running.decode_seqs, running.decode_context_tokens, 1))
    room = engine.token_budget - running.decode_seqs * engine.decode_tokens
    chunk = max(min(room, tokens), 1)
    whole, rest = divmod(tokens, chunk)
    done = whole * chunk
    # Steps are linear in the pairs attended, so all whole chunks take as long as so many of their mean.
    taken_s = whole * _longer_s(latency, running, chunk, chunk * done, alone_s)
    if rest:
        taken_s += _longer_s(latency, running, rest, rest * (rest + 2 * done), alone_s)
    return taken_s


def _longer_s(latency: StepLatency, running: StepLoad, chunk: int, pairs: int, alone_s: float) -> float:
    load = StepLoad(chunk + 1, 2, running.decode_seqs, running.decode_context_tokens, pairs + 1)
    return max(latency.step_s(load) - alone_s, 0.0)


def stall_s(num_bytes: int, swap: SwapFacts) -> float:
    """Seconds that the next step waits for the link, which takes what is beyond the staging memory."""
    return max(swap.out_s + (num_bytes - swap.staging_bytes) / swap.bytes_per_s, 0.0)


def swap_s(tokens: int, layout: KVLayout, swap: SwapFacts) -> float:
    """What it costs to swap the KV of ``tokens`` out and in, to be held against :func:`recompute_s`."""
    num_bytes = int(needed_blocks(layout, np.array([tokens], np.int64))[0]) * swap.block_bytes
    copies_s = swap.out_s + swap.in_s + 2.0 * num_bytes / swap.bytes_per_s
    own_s = max(copies_s - swap.wait_s, 0.0)
    return 2.0 * num_bytes / STAGING_BYTES_PER_S + max(stall_s(num_bytes, swap), own_s)


def swap_worth_s(tokens: int, running: StepLoad, engine: EngineFacts) -> float:
    """Engine seconds saved by swapping a request of ``tokens`` with KV instead of recomputing it; 0 or less: none.

    running: decodes that run beside. engine: with ``swap``; without, nothing is ever saved.
    """
    if engine.swap is None:
        return 0.0
    return recompute_s(tokens, running, engine) - swap_s(tokens, engine.layout, engine.swap)


def preemption_price(rows: Rows, slots: IntArray, engine: EngineFacts) -> FloatArray:
    """What preempting each of ``slots`` costs the engine, as a share of computing it again: ``[len(slots)]``, 0 to 1.

    1 where there is nothing to swap to, or no room. A policy multiplies by it what it charges a preemption.
    """
    price = np.ones(slots.size)
    swap = engine.swap
    if swap is None or not swap.free_blocks or not slots.size:
        return price
    tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots]
    running = _decodes(rows)
    contexts = np.unique(np.geomspace(max(int(tokens.min()), 1), max(int(tokens.max()), 1), _CONTEXTS).astype(np.int64))
    again = [recompute_s(context, running, engine) for context in contexts.tolist()]
    copied = [swap_s(context, engine.layout, swap) for context in contexts.tolist()]
    shares = [min(s / r, 1.0) if r > 0.0 else 1.0 for s, r in zip(copied, again, strict=True)]
    found: FloatArray = np.interp(tokens, contexts, shares)
    # A full pool gives up what it keeps for another, which is then computed again.
    found[needed_blocks(engine.layout, tokens) > swap.free_blocks] = 1.0
    return found


def cheaper_later(key: FloatArray, margin: float, price: FloatArray, wait_s: float = 0.0) -> FloatArray:
    """Keys by which victims are chosen: a victim's must exceed that of the request that it gives way to by ``margin``,
    which stands for its wait for another turn and for computing it again.

    One whose preemption costs the share ``price`` needs that share of the margin, hence ranks later by the rest of it.
    But it waits for its turn however its KV comes back: where keys are times, it needs no less than ``wait_s``, or else
    cheap preemptions thrash in a queue that grows (docs/swap.md#recompute-or-swap).

    key, price: ``[n]``; ``key`` is as it was where the price is 1. wait_s: of :class:`~sloserve.lso.plan.SwapFacts`,
    where ``key`` and ``margin`` are seconds.
    """
    if margin <= 0.0:
        return key
    return key + margin * (1.0 - np.maximum(price, min(wait_s / margin, 1.0)))


def _decodes(rows: Rows) -> StepLoad:
    running = rows.slots_in(State.RUNNING)
    context = int(rows.prompt_tokens[running].sum() + rows.output_tokens[running].sum())
    return StepLoad(decode_seqs=running.size, decode_context_tokens=context)
