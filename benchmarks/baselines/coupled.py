"""Exact allocation of prompt and output together: MultiRes, and SyncCoupled, which admits synced groups.

Every request reserves the KV of its predicted length when it is admitted. The two policies differ only in the order of
admission. Where a length was predicted too short, vLLM preempts, as under block-allocation.

Source: EconoServe, Sec. 2.1 (MultiRes, after [32]) and 2.2 (SyncCoupled; it calls MultiRes UnsyncCoupled as well).
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.baselines.allocation import RESERVATION_COLUMNS, admit, exact_blocks, oldest
from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, PredictingPolicy, Snapshot


@dataclass(frozen=True)
class ExactSettings(Policy.Settings):
    length: str = "predicted"
    """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
    length_error: float = 0.0
    """relative error of the oracle's lengths"""
    padding: float = 0.15
    """share of the predicted output added to it; the paper's best for ShareGPT, 0.1 for Alpaca, 0.2 for BookCorpus"""

    def __post_init__(self) -> None:
        check_lengths(self.length, self.length_error)
        check_within(self, 0, 10, "padding")


class _Exact(PredictingPolicy):
    """What both share: lengths, and reservations."""

    full_attention_only = True
    needs = RESERVATION_COLUMNS | LENGTH_COLUMNS

    def _blocks(self, snapshot: Snapshot, slots: IntArray) -> IntArray:
        left = self._lengths.left(snapshot.rows, slots)
        return exact_blocks(snapshot.rows, slots, left, self.settings.padding, snapshot.engine)


class MultiRes(_Exact):
    """Repeatedly admits the waiting request whose demand is nearest to the free compute and KV.

    Source: EconoServe, Sec. 2.1: Euclidean distance, repeated until none fits, O(n^2). Differs: the paper names no
    unit; here both demands are shares of what is available, so the distance is to (1, 1). A prompt longer than the
    step's rest demands all of that, since vLLM cuts it. Only the ``window`` oldest requests are considered, and no more
    are admitted than there are free seats, so a plan costs at most seats * window.
    """

    needs = _Exact.needs | {"computed_tokens"}

    @dataclass(frozen=True)
    class Settings(ExactSettings):
        window: int = 512
        """waiting requests looked at, the oldest"""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.window < 1:
                raise ValueError(f"window: {self.window} waiting requests is not at least 1")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running, engine = snapshot.rows, snapshot.running, snapshot.engine
        candidates = oldest(rows, snapshot.waiting, self.settings.window)
        reserved = int(self._blocks(snapshot, running).sum())
        blocks = self._blocks(snapshot, candidates)
        chosen = nearest(
            _uncomputed(rows, candidates),
            blocks,
            engine.token_budget - int(_uncomputed(rows, running).sum()),
            engine.capacity_blocks - reserved,
            engine.free_slots,
        )
        return admit(snapshot, candidates[chosen], partial(self._blocks, snapshot), reserved)


def _uncomputed(rows: Rows, slots: IntArray) -> IntArray:
    """Tokens that each request could compute in a step: its prefill, or one token to decode."""
    tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots] - rows.computed_tokens[slots]
    uncomputed: IntArray = np.maximum(tokens, 1)
    return uncomputed


def nearest(tokens: IntArray, blocks: IntArray, free_tokens: int, free_blocks: int, most: int) -> IntArray:
    """Indices of the requests to admit, in order; of equally near ones the first.

    Args:
        tokens: ``[n]``; tokens that each request demands of the step.
        blocks: ``[n]``; KV blocks that it demands.
        free_tokens: tokens that the step has left.
        free_blocks: KV blocks that are not reserved.
        most: requests to admit at most.
    """
    fits = blocks <= free_blocks
    taken: list[int] = []
    while free_tokens > 0 and len(taken) < most and fits.any():
        missing = (1.0 - np.minimum(tokens / free_tokens, 1.0)) ** 2 + (1.0 - blocks / free_blocks) ** 2
        one = int(np.where(fits, missing, np.inf).argmin())
        taken.append(one)
        free_tokens -= int(tokens[one])
        free_blocks -= int(blocks[one])
        fits &= blocks <= free_blocks
        fits[one] = False
    return np.array(taken, np.int64)


class SyncCoupled(_Exact):
    """Admits groups of equal predicted length, so that requests that begin together end together.

    The group of the oldest request is admitted first, whole if it fits; else its oldest members are admitted now, and
    the others when there is room.

    Source: EconoServe, Sec. 2.2 (SyncCoupled). Differs: plans are made anew in each step, where the paper saves
    planning until a group ends.
    """

    @dataclass(frozen=True)
    class Settings(ExactSettings):
        sync_tokens: int = 32
        """predicted lengths that differ by less make one group; the default is the paper's KV block"""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.sync_tokens < 1:
                raise ValueError(f"sync_tokens: {self.sync_tokens} is not at least 1")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine = snapshot.rows, snapshot.engine
        waiting = snapshot.waiting
        whole = rows.output_tokens[waiting] + self._lengths.left(rows, waiting)
        in_groups = grouped(np.ceil(whole / self.settings.sync_tokens).astype(np.int64), rows.seq[waiting])
        order = waiting[in_groups[: engine.max_num_seqs]]
        reserved = int(self._blocks(snapshot, snapshot.running).sum())
        return admit(snapshot, order, partial(self._blocks, snapshot), reserved)


def grouped(groups: IntArray, seqs: IntArray) -> IntArray:
    """Places in the order of groups by their oldest member, and by ``seqs`` within; ``groups``, ``seqs``: ``[n]``."""
    _, group = np.unique(groups, return_inverse=True)
    first = np.full(group.size, np.iinfo(np.int64).max)
    np.minimum.at(first, group, seqs)
    order: IntArray = np.lexsort((seqs, first[group]))
    return order
