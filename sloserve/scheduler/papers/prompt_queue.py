"""Prompts that join the next step: they fill it up to its target size, as far as their KV fits (Sec. 3.3.1)."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.rank import top_k
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.papers.paper_order import BestFit, paper_order
from sloserve.scheduler.policy import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedPrompts:
    """Admitted prompt tasks, ``[n]`` each.

    Args:
        tokens: Tokens to compute in all.
        left: Tokens of these that are not computed yet.
    """

    slots: IntArray
    tokens: IntArray
    left: IntArray


@dataclass(frozen=True, slots=True)
class StepRoom:
    """Room that a step has for new prompts: tokens to compute, KV blocks of ``block_size`` tokens, requests."""

    tokens: int
    blocks: int
    block_size: int
    requests: int


def fcfs_prompts(snapshot: Snapshot, room: StepRoom) -> tuple[IntArray, int]:
    """Return slots in the order of admission, and how many to admit: the last is cut at the end of the step."""
    rows, waiting = snapshot.rows, snapshot.waiting
    seq = rows.seq[waiting]
    order = snapshot.woven(waiting[top_k(seq, seq, min(waiting.size, max(room.requests, 1)))])
    tokens = rows.prompt_tokens[order] + rows.output_tokens[order]
    before = np.cumsum(tokens) - tokens
    blocks = np.cumsum(blocks_of(tokens, room.block_size))
    begun = int(np.searchsorted(before, room.tokens, side="left"))
    return order, min(begun, int(np.searchsorted(blocks, room.blocks, side="right")), max(room.requests, 0))


def paper_prompts(snapshot: Snapshot, room: StepRoom, now_s: float) -> tuple[IntArray, int]:
    """Return what :func:`fcfs_prompts` does, but in the paper's order.

    If the next prompt does not fit, the longest one that fits comes next.
    """
    rows, waiting = snapshot.rows, snapshot.waiting
    tokens = rows.prompt_tokens[waiting] + rows.output_tokens[waiting]
    order = paper_order(rows, waiting, np.zeros_like(tokens), tokens, now_s)
    waiting, tokens = waiting[order], tokens[order]
    fit = min(_leading(tokens, room), max(room.requests, 0))
    chosen = list(range(fit))
    left_tokens = room.tokens - int(tokens[:fit].sum())
    left_blocks = room.blocks - int(blocks_of(tokens[:fit], room.block_size).sum())
    shelf = BestFit(tokens[fit:])
    while len(chosen) < room.requests:
        place = shelf.take(min(left_tokens, left_blocks * room.block_size))
        if place is None:
            break
        chosen.append(fit + place)
        left_tokens -= int(tokens[fit + place])
        left_blocks -= blocks_of(int(tokens[fit + place]), room.block_size)
    first = np.array(chosen, np.int64)
    others = np.ones(waiting.size, np.bool_)
    others[first] = False
    order = snapshot.woven(np.concatenate((waiting[first], waiting[others])))
    chosen_tokens = rows.prompt_tokens[order[: first.size]] + rows.output_tokens[order[: first.size]]
    return order, _leading(chosen_tokens, room)


def _leading(tokens: IntArray, room: StepRoom) -> int:
    """Return how many prompts of an ordered list fit, none of them cut."""
    blocks = blocks_of(tokens, room.block_size)
    return min(
        int(np.searchsorted(np.cumsum(tokens), room.tokens, side="right")),
        int(np.searchsorted(np.cumsum(blocks), room.blocks, side="right")),
    )
