"""The request table that policies read: one slot per unfinished request, one numpy array per column.

The adapter writes it when a request is added, makes progress, changes state or ends; nothing is rebuilt per step. A
slot is reused after its request ended, so slots are no order: ties between requests end in ``seq``, the enqueue
counter. A policy declares the columns it reads (``Policy.needs``); only those are kept up to date, the others raise on
access.
"""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import BoolArray, FloatArray, IntArray


class State(IntEnum):
    """State of a request in the engine."""

    FREE = 0
    """No request has this slot."""
    WAITING = 1
    """The request was never admitted and holds no KV blocks."""
    PREEMPTED = 2
    """The request was preempted and waits to be recomputed, or loaded from the host. It holds no KV blocks."""
    RUNNING = 3
    """The request is admitted: it holds KV blocks and one of the model runner's slots."""
    BLOCKED = 4
    """The request waits for what the scheduler cannot give: a grammar, remote KV, a session's next input."""


COLUMNS: dict[str, tuple[type, float]] = {
    # name: (dtype, value in a fresh row). Seconds are epoch seconds or durations as named; nan where there is none.
    "seq": (np.int64, 0),  # enqueue counter: total order of arrival
    "state": (np.int8, State.FREE),
    "arrival_s": (np.float64, np.nan),
    "priority": (np.int64, 0),  # the request's own number, lower is earlier (vLLM)
    "class_rank": (np.int64, 0),  # rank of its service class, lower is more urgent
    "class_id": (np.int64, 0),  # index of its service class in the deployment's table
    "account": (np.int64, 0),  # number of its tenant's account in the deployment's table
    "task": (np.int64, 0),  # number of the task that it is a call of; 0 for none
    "task_due_s": (np.float64, np.nan),  # epoch seconds at which the last call of its task should have ended
    "task_calls": (np.int64, 0),  # calls that its client expects the task to make in all; 0 if it does not say
    "task_last": (np.bool_, False),  # whether its client says that it is the last call of the task
    "ttft_s": (np.float64, np.nan),  # targets: nan where the request has none
    "tpot_s": (np.float64, np.nan),
    "e2e_s": (np.float64, np.nan),
    "own_e2e_s": (np.float64, np.nan),  # e2e_s, without a deadline that later calls of its task have to keep as well
    "tds": (np.float64, np.nan),
    "prompt_tokens": (np.int64, 0),
    "max_tokens": (np.int64, 0),
    "item_tokens": (np.int64, 0),  # the largest multimodal item of the prompt, which no chunk may divide
    # Of a request at the head of the queue, with an encoder: tokens of the items that the encoder has to compute before
    # the request can begin, and of all items that it has to compute for the rest of the prompt.
    "first_item_tokens": (np.int64, 0),
    "left_item_tokens": (np.int64, 0),
    "oracle_output_tokens": (np.int64, -1),  # known only to a simulator or a client that says so; -1 where unknown
    "length_p10": (np.float64, np.nan),  # quantiles of the output's whole length, as the front end predicted; else nan
    "length_p25": (np.float64, np.nan),
    "length_p50": (np.float64, np.nan),
    "length_p75": (np.float64, np.nan),
    "length_p90": (np.float64, np.nan),
    # Prompt tokens found in the prefix cache at first admission.
    "cached_tokens": (np.int64, 0),
    # Tokens of a waiting request in the engine's own prefix cache, as of when it was last asked: when the request was
    # queued or preempted, and from time to time while it is near the head of the queue.
    "hit_tokens": (np.int64, 0),
    "computed_tokens": (np.int64, 0),  # tokens with KV, including tokens in flight
    # Scheduled, result not yet seen: the step budget counts them when it works out a request's slack.
    "in_flight_tokens": (np.int64, 0),
    "output_tokens": (np.int64, 0),
    # What the KV layout makes of computed and in-flight tokens; shared prefix blocks count for every holder.
    "kv_blocks": (np.int64, 0),
    "swapped_tokens": (np.int64, 0),  # tokens of a waiting request of which the host pool keeps KV
    "num_preemptions": (np.int64, 0),
    # With speculative decoding: drafts of the request that were accepted since its row was made, and how many would
    # have been of the mean request.
    "drafts_promised": (np.float64, 0.0),
    "drafts_accepted": (np.float64, 0.0),
    "first_token_s": (np.float64, np.nan),
    # Epoch seconds from which on it comes first, as its targets were promised at its admission; else nan.
    "first_from_s": (np.float64, np.nan),
    "preemptable": (np.bool_, True),  # False: the guards forbid preempting it
    "pausable": (np.bool_, True),
    "aborted": (np.bool_, False),  # of a request that ends: its client left it, or an error ended it
}

LENGTH_QUANTILES = ("length_p10", "length_p25", "length_p50", "length_p75", "length_p90")
"""Columns at the levels of :data:`sloserve.estimator.length.at_admission.LEVELS`, in their order."""

ALWAYS_KEPT = frozenset({"seq", "state", "first_from_s", "preemptable", "pausable"})
"""Columns that the contract itself reads."""

READ_COLUMNS = frozenset({"computed_tokens", "in_flight_tokens", "output_tokens"})
"""Columns read from the running requests just before a plan is made; ``kv_blocks`` follows from them."""


class Rows:
    """Columns as attributes (``rows.arrival_s``), each ``[capacity]``; index them with slots.

    Args:
        needs: Columns to keep, beside :data:`ALWAYS_KEPT`.
    """

    def __init__(self, needs: frozenset[str], capacity: int = 64) -> None:
        unknown = sorted(needs - COLUMNS.keys())
        if unknown:
            raise ValueError(f"unknown row columns {unknown}; known: {', '.join(COLUMNS)}")
        self.kept = needs | ALWAYS_KEPT
        self._capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._next_seq = 0
        self._blocks: list[tuple[NDArray[Any], list[float]]] = []
        """Columns of a dtype, ``[columns, capacity]``, and their values in a fresh row: rows are written in one go."""
        self._place: dict[str, tuple[int, int]] = {}
        """The block and the place within it, by the name of a column."""
        self._make_columns()

    # Declared for type checkers; an attribute exists only for a kept column.
    seq: IntArray
    state: NDArray[np.int8]
    arrival_s: FloatArray
    priority: IntArray
    class_rank: IntArray
    class_id: IntArray
    account: IntArray
    task: IntArray
    task_due_s: FloatArray
    task_calls: IntArray
    task_last: BoolArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    own_e2e_s: FloatArray
    tds: FloatArray
    first_from_s: FloatArray
    prompt_tokens: IntArray
    max_tokens: IntArray
    item_tokens: IntArray
    first_item_tokens: IntArray
    left_item_tokens: IntArray
    oracle_output_tokens: IntArray
    length_p10: FloatArray
    length_p25: FloatArray
    length_p50: FloatArray
    length_p75: FloatArray
    length_p90: FloatArray
    cached_tokens: IntArray
    hit_tokens: IntArray
    computed_tokens: IntArray
    in_flight_tokens: IntArray
    output_tokens: IntArray
    kv_blocks: IntArray
    swapped_tokens: IntArray
    num_preemptions: IntArray
    drafts_promised: FloatArray
    drafts_accepted: FloatArray
    first_token_s: FloatArray
    preemptable: BoolArray
    pausable: BoolArray
    aborted: BoolArray

    @property
    def capacity(self) -> int:
        """Length of every column."""
        return self._capacity

    @property
    def last_seq(self) -> int:
        """``seq`` of the latest request, -1 before the first."""
        return self._next_seq - 1

    def __len__(self) -> int:
        return self._capacity - len(self._free)

    def _make_columns(self) -> None:
        """Make the columns of the present capacity, and copy what the previous columns hold."""
        before = {name: self.__dict__.pop(name) for name in COLUMNS if name in self.__dict__}
        of_dtype: dict[type, list[str]] = {}
        for name in sorted(self.kept):
            of_dtype.setdefault(COLUMNS[name][0], []).append(name)
        self._blocks, self._place = [], {}
        for dtype, names in of_dtype.items():
            fresh = [COLUMNS[name][1] for name in names]
            block: NDArray[Any] = np.repeat(np.array(fresh, dtype)[:, None], self._capacity, axis=1)
            for place, name in enumerate(names):
                self._place[name] = len(self._blocks), place
                column = block[place]
                if name in before:
                    column[: len(before[name])] = before[name]
                setattr(self, name, column)
            self._blocks.append((block, fresh))

    def blocks(self) -> list[tuple[list[str], NDArray[Any]]]:
        """Return the columns by type: their names, and the columns themselves, ``[columns, capacity]``."""
        names: list[list[str]] = [[] for _ in self._blocks]
        for name, (block, _) in self._place.items():  # in the order of their places
            names[block].append(name)
        return [(of_block, columns) for of_block, (columns, _) in zip(names, self._blocks, strict=True)]

    def keep(self, needs: frozenset[str]) -> frozenset[str]:
        """Keep these columns, and no others beside :data:`ALWAYS_KEPT`; return the new ones.

        New columns hold their fresh value in every slot.
        """
        wanted = needs | ALWAYS_KEPT
        new = wanted - self.kept
        for name in self.kept - wanted:
            delattr(self, name)
        self.kept = wanted
        self._make_columns()
        return new

    def add(self, **values: float) -> int:
        """Take a slot for a new request, with the next ``seq`` and state WAITING, and return it.

        Values for columns that are not kept are ignored; kept columns without a value get the column's fresh value.
        """
        if not self._free:
            self._free.extend(range(2 * self._capacity - 1, self._capacity - 1, -1))
            self._capacity *= 2
            self._make_columns()
        slot, place = self._free.pop(), self._place
        rows = [fresh.copy() for _, fresh in self._blocks]
        for name, value in values.items():
            if name in place:
                block, at = place[name]
                rows[block][at] = value
        for (columns, _), row in zip(self._blocks, rows, strict=True):
            columns[:, slot] = np.array(row, columns.dtype)
        self.seq[slot] = self._next_seq
        self._next_seq += 1
        if "state" not in values:
            self.state[slot] = State.WAITING
        return slot

    def free(self, slot: int) -> None:
        """Give the slot back; the next :meth:`add` may use it again."""
        self.state[slot] = State.FREE
        self._free.append(slot)

    def count(self, *states: State) -> int:
        """Return how many requests are in one of ``states``."""
        found = self.state.tobytes()  # bytes count in a third of the time of numpy
        return sum(map(found.count, states))

    def marks(self, *slots: IntArray) -> BoolArray:
        """Return which slots are among these, ``[capacity]``; cheaper than a search where many slots are looked up."""
        found = np.zeros(self._capacity, np.bool_)
        for some in slots:
            found[some] = True
        return found

    def slots_in(self, *states: State) -> IntArray:
        """Return the slots of all requests in one of ``states``, ascending, which is not an order of service."""
        mask = self.state == int(states[0])
        for state in states[1:]:
            mask |= self.state == int(state)
        slots: IntArray = mask.nonzero()[0]
        return slots
