"""Which prompts join the next step: those that fill it up to its target size, as far as their KV fits (Sec. 3.3.1)."""

from dataclasses import dataclass

import numpy as np

from sloserve.kernels.rank import top_k
from sloserve.scheduler.econo.ordering import BestFit, paper_order
from sloserve.scheduler.rows import IntArray, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Admitted prompt tasks: slots, tokens of each to be computed in all, and of these still left, ``[n]`` each."""

    slots: IntArray
    tokens: IntArray
    left: IntArray


@dataclass(frozen=True, slots=True)
class Room:
    """What a step has for new prompts: tokens to compute, KV blocks of ``block_size`` tokens, requests."""

    tokens: int
    blocks: int
    block_size: int
    requests: int


def fcfs_prompts(rows: Rows, waiting: IntArray, room: Room) -> tuple[IntArray, int]:
    """Slots in the order of admission, and how many to admit: the last is cut at the end of the step."""
    seq = rows.seq[waiting]
    order = waiting[top_k(seq, seq, min(waiting.size, max(room.requests, 1)))]
    tokens = rows.prompt_tokens[order] + rows.output_tokens[order]
    before = np.cumsum(tokens) - tokens
    blocks = np.cumsum(-(-tokens // room.block_size))
    begun = int(np.searchsorted(before, room.tokens, side="left"))
    return order, min(begun, int(np.searchsorted(blocks, room.blocks, side="right")), max(room.requests, 0))


def paper_prompts(rows: Rows, waiting: IntArray, room: Room, now_s: float) -> tuple[IntArray, int]:
    """As :func:`fcfs_prompts`, in the paper's order; where the next does not fit, the longest that does, and so on."""
    tokens = rows.prompt_tokens[waiting] + rows.output_tokens[waiting]
    order = paper_order(rows, waiting, np.zeros_like(tokens), tokens, now_s)
    waiting, tokens = waiting[order], tokens[order]
    blocks = -(-tokens // room.block_size)
    fit = min(
        int(np.searchsorted(np.cumsum(tokens), room.tokens, side="right")),
        int(np.searchsorted(np.cumsum(blocks), room.blocks, side="right")),
        max(room.requests, 0),
    )
    chosen = list(range(fit))
    left_tokens = room.tokens - int(tokens[:fit].sum())
    left_blocks = room.blocks - int(blocks[:fit].sum())
    shelf = BestFit(tokens[fit:])
    while len(chosen) < room.requests:
        place = shelf.take(min(left_tokens, left_blocks * room.block_size))
        if place is None:
            break
        chosen.append(fit + place)
        left_tokens -= int(tokens[fit + place])
        left_blocks -= int(blocks[fit + place])
    first = np.array(chosen, np.int64)
    others = np.ones(waiting.size, np.bool_)
    others[first] = False
    return np.concatenate((waiting[first], waiting[others])), first.size
