"""The engine time of recomputing and of swapping, for a request at the moment it is preempted.

*Recomputed*, its context passes through the model once more, chunk by chunk beside what runs, and every step is longer
by that. *Swapped*, its KV goes to the host and back by the link, which takes nothing from running requests but

* the packing and unpacking on the device, and
* what the device cannot take out of the cache at once (``staging_bytes``): the next step waits until the link has it.

The victim itself waits for both copies, behind copies that are queued; but it waits for its turn anyhow, and its delay
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

__all__ = [
    "SwapFacts",
    "cheaper_later",
    "preemption_price",
    "recompute_s",
    "retention_cost_s",
    "swap_s",
    "swap_worth_s",
]

STAGING_BYTES_PER_S: Final = 0.7e12
"""Rate at which KV is packed and unpacked.

Each byte is read and written once, at half of an A100's memory bandwidth of 1.55e12 bytes/s. Newer devices are faster.
1,000 tokens of Llama 3 8B take 0.2 ms.
"""
_CONTEXTS: Final = 12
"""Contexts at which the price of a preemption is computed; between them it is a line."""


def recompute_s(tokens: int, running: StepLoad, engine: EngineFacts) -> float:
    """Return the engine seconds that steps with ``running`` last longer if they compute ``tokens`` of context again.

    The context is computed in chunks that fill the steps, in full attention to what is before. The steps compute other
    prompts too, since some wait where requests are preempted: what the first prompt adds to a step of decodes is not
    charged. The result never falls with ``tokens`` where the latency does not.
    """
    if tokens <= 0:
        return 0.0
    latency = engine.step_latency
    alone_s = latency.step_s(StepLoad(1, 1, running.decode_seqs, running.decode_context_tokens, 1))
    room = engine.token_budget - running.decode_seqs * engine.decode_tokens
    chunk = max(min(room, tokens), 1)
    whole, rest = divmod(tokens, chunk)
    done = whole * chunk
    # Steps are linear in the pairs attended, so all whole chunks together take as long as equal ones of their mean.
    taken_s = whole * _longer_s(latency, running, chunk, chunk * done, alone_s)
    if rest:
        taken_s += _longer_s(latency, running, rest, rest * (rest + 2 * done), alone_s)
    return taken_s


def _longer_s(latency: StepLatency, running: StepLoad, chunk: int, pairs: int, alone_s: float) -> float:
    load = StepLoad(chunk + 1, 2, running.decode_seqs, running.decode_context_tokens, pairs + 1)
    return max(latency.step_s(load) - alone_s, 0.0)


def stall_s(num_bytes: int, swap: SwapFacts) -> float:
    """Return the seconds that the next step waits for the link, which takes what is beyond the staging memory."""
    return max(swap.out_s + (num_bytes - swap.staging_bytes) / swap.bytes_per_s, 0.0)


def swap_s(tokens: int, layout: KVLayout, swap: SwapFacts) -> float:
    """Return the engine seconds that swapping the KV of ``tokens`` out and in costs.

    Compare it with :func:`recompute_s`.
    """
    num_bytes = int(needed_blocks(layout, np.array([tokens], np.int64))[0]) * swap.block_bytes
    copies_s = swap.out_s + swap.in_s + 2.0 * num_bytes / swap.bytes_per_s
    own_s = max(copies_s - swap.wait_s, 0.0)
    return 2.0 * num_bytes / STAGING_BYTES_PER_S + max(stall_s(num_bytes, swap), own_s)


def retention_cost_s(tokens: int, running: StepLoad, engine: EngineFacts) -> float:
    """Return the engine seconds that it takes to copy the KV of ``tokens`` of a request that ends to the host.

    No request waits for the copy, and most of it need never come back. Steps go on beside it until one writes its
    blocks, so that only packing counts, and what the copy takes longer than that.
    """
    if tokens <= 0 or engine.swap is None:
        return 0.0
    num_bytes = int(needed_blocks(engine.layout, np.array([tokens], np.int64))[0]) * engine.swap.block_bytes
    waits_s = max(stall_s(num_bytes, engine.swap) - unwritten_s(running, engine), 0.0)
    return num_bytes / STAGING_BYTES_PER_S + waits_s


def unwritten_s(running: StepLoad, engine: EngineFacts) -> float:
    """Return the seconds for which steps write no block that is freed now.

    All blocks that are free by now are written first. A step that is full of one new prompt writes the most of them
    for its time: the blocks of its tokens, and one more of each request in each group.
    """
    room = max(engine.token_budget - running.decode_seqs * engine.decode_tokens, 1)
    one, chunk = needed_blocks(engine.layout, np.array([1, room], np.int64)).tolist()
    steps = engine.free_blocks // max(int(chunk + one * (running.decode_seqs + 1)), 1)
    load = StepLoad(room, 1, running.decode_seqs, running.decode_context_tokens, room * room)
    return steps * engine.step_latency.step_s(load)


def swap_worth_s(tokens: int, running: StepLoad, engine: EngineFacts) -> float:
    """Return the engine seconds that swapping saves compared with recomputing; 0 or less for none.

    Args:
        tokens: Tokens of the request that have KV.
        running: Decodes that run beside it.
        engine: What the engine can do; without ``swap``, nothing is ever saved.
    """
    if engine.swap is None:
        return 0.0
    return recompute_s(tokens, running, engine) - swap_s(tokens, engine.layout, engine.swap)


def preemption_price(rows: Rows, slots: IntArray, engine: EngineFacts) -> FloatArray:
    """Return what preempting each of ``slots`` costs, as a share of computing it again, ``[len(slots)]``, 0 to 1.

    The share is 1 if there is no swap space, or no room in it. A policy multiplies its charge for a preemption by it.
    """
    price = np.ones(slots.size)
    swap = engine.swap
    if swap is None or not swap.available_blocks or not slots.size:
        return price
    tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots]
    running = _decodes(rows)
    contexts = np.unique(np.geomspace(max(int(tokens.min()), 1), max(int(tokens.max()), 1), _CONTEXTS).astype(np.int64))
    again = [recompute_s(context, running, engine) for context in contexts.tolist()]
    copied = [swap_s(context, engine.layout, swap) for context in contexts.tolist()]
    shares = [min(s / r, 1.0) if r > 0.0 else 1.0 for s, r in zip(copied, again, strict=True)]
    found: FloatArray = np.interp(tokens, contexts, shares)
    # A full pool gives up what it keeps for another preempted request, which is then computed again.
    found[needed_blocks(engine.layout, tokens) > swap.available_blocks] = 1.0
    return found


def cheaper_later(key: FloatArray, margin: float, price: FloatArray, wait_s: float = 0.0) -> FloatArray:
    """Return keys by which victims are chosen: cheap preemptions rank later.

    A victim's key must exceed the key of the request that it gives way to by ``margin``, which stands for its wait for
    another turn and for computing it again. A victim with a preemption that costs the share ``price`` needs that share
    of the margin, so it ranks later by the rest of it. But it waits for its turn however its KV comes back: where keys
    are times, it needs no less than ``wait_s``, or else cheap preemptions thrash in a queue that grows
    (docs/swap.md#recompute-or-swap).

    Args:
        key: Keys of the candidates, ``[n]``; a key stays as it is where the price is 1.
        margin: The margin, in the unit of ``key``.
        price: Cost of preempting each candidate as a share of computing it again, ``[n]``.
        wait_s: ``wait_s`` of :class:`~sloserve.lso.plan.SwapFacts`, where ``key`` and ``margin`` are seconds.
    """
    if margin <= 0.0:
        return key
    return key + margin * (1.0 - np.maximum(price, min(wait_s / margin, 1.0)))


def _decodes(rows: Rows) -> StepLoad:
    running = rows.slots_in(State.RUNNING)
    context = int(rows.prompt_tokens[running].sum() + rows.output_tokens[running].sum())
    return StepLoad(decode_seqs=running.size, decode_context_tokens=context)
