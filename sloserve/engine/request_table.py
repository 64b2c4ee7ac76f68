"""Keeps the request table in step with an engine: which request has which slot, and what its columns say."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.requests import slots_in_order
from sloserve.core.rows import READ_COLUMNS, Rows, State
from sloserve.core.stated import StatedSLO
from sloserve.engine.kept_elsewhere import KeptElsewhere
from sloserve.engine.port import EngineRequest, RequestReader
from sloserve.engine.preemption_marks import PreemptionMarks
from sloserve.engine.step_counts import CHECKS, StepCounts, check_columns
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Snapshot

_RUNNING = int(State.RUNNING)

FEWEST_FOLLOWED: Final = 1 if CHECKS else 64
"""Requests in a step from which on counts are followed.

To read the counts of fewer requests, where a plan needs them, costs less.
"""


class RequestTable:
    """The rows of one engine's requests.

    ``slot_of`` is the slot of each request with a row, by id; ``request_at`` is the request in each of the ``capacity``
    slots, ``None`` in a free one.

    Args:
        needs: Columns to keep.
        reader: Reads the engine's requests; requests that it calls not plannable (in vLLM sessions with streaming
            input) have no row, so that no policy can touch them.
    """

    def __init__(self, needs: frozenset[str], reader: RequestReader) -> None:
        self.rows = Rows(_with_counts(needs))
        self._reader = reader
        self.slot_of: dict[str, int] = {}
        self.request_at: list[Any] = [None] * self.rows.capacity
        self._read = self._columns_to_read()
        self._counts, self._follows = StepCounts(self.rows), False
        self._blocked: dict[int, EngineRequest] = {}
        self._loading: set[int] = set()
        self._unanswered: set[int] = set()  # admitted, without a first token so far as is known
        # Admitted, with prefill tokens that no step has been given so far as is known.
        self._computing: set[int] = set()
        self._elsewhere = KeptElsewhere(self.rows, reader, self.request_at)
        self.marks = PreemptionMarks(self.rows, reader, self.request_at)
        self._num_promised = 0

    def add(self, request: EngineRequest, stated: StatedSLO) -> int | None:
        """Add a row for a newly queued request; return its slot, or ``None`` for a request that is not ours to plan."""
        self.marks.arrived(request)
        if not self._reader.is_plannable(request):
            return None
        slot = self.rows.add(**self._reader.static_columns(request, stated))
        self.request_at += [None] * (self.rows.capacity - len(self.request_at))
        self.slot_of[request.request_id] = slot
        self.request_at[slot] = request
        self._num_promised += stated.first_from_s is not None
        if self._reader.is_blocked(request):
            self.rows.state[slot] = State.BLOCKED
            self._blocked[slot] = request
        self._elsewhere.note(slot, request)
        self.marks.mark(slot)
        return slot

    def add_live(self, request: EngineRequest, stated: StatedSLO, now_s: float) -> int | None:
        """Add a row for a request that vLLM has had for a while, as if it had had one from the start."""
        slot = self.add(request, stated)
        if slot is not None:
            if self.rows.state[slot] != State.BLOCKED:
                self.rows.state[slot] = self._reader.state_of(request)
            self._fill(slot, self._reader.live_columns(request, stated, now_s), self.rows.kept)
            self._unanswered.add(slot)
            self._computing.add(slot)
            self._elsewhere.note(slot, request)
        return slot

    def keep(self, needs: frozenset[str], slo_of: Mapping[str, StatedSLO], now_s: float) -> None:
        """Keep exactly these columns, with slots and order unchanged, and fill in columns that were not kept before.

        What is noted beside the rows for the sake of a column goes with it.
        """
        new = self.rows.keep(_with_counts(needs))
        self._read = self._columns_to_read()
        self._elsewhere.forget()
        self._counts.keep()
        self._unanswered.update(self.slot_of.values())
        for request_id, slot in self.slot_of.items():
            request, stated = self.request_at[slot], slo_of[request_id]
            self._fill(
                slot,
                self._reader.static_columns(request, stated) | self._reader.live_columns(request, stated, now_s),
                new,
            )
            self._elsewhere.note(slot, request)

    def note_items(self, heads: IntArray) -> None:
        """Note what the encoder has to compute for the waiting requests in these slots, as of now."""
        rows = self.rows
        if "first_item_tokens" not in rows.kept:
            return
        for slot in heads.tolist():
            computed = max(int(rows.hit_tokens[slot]), int(rows.swapped_tokens[slot]))
            items = self._reader.items_to_encode(self.request_at[slot], computed)
            rows.first_item_tokens[slot], rows.left_item_tokens[slot] = items

    def look_up(self, order: IntArray) -> None:
        """Ask the prefix cache again about some of the first slots of ``order``, each in its turn."""
        self._elsewhere.look_up(order)

    def _columns_to_read(self) -> tuple[str, ...]:
        return tuple(sorted(self.rows.kept & READ_COLUMNS))

    def _fill(self, slot: int, values: Mapping[str, float], columns: frozenset[str]) -> None:
        for name in columns & values.keys():
            getattr(self.rows, name)[slot] = values[name]

    @property
    def num_running(self) -> int:
        """How many requests with a row run."""
        return self.rows.count(State.RUNNING)

    @property
    def num_waiting(self) -> int:
        """How many requests with a row could be admitted, blocked ones left out."""
        return self.rows.count(State.WAITING, State.PREEMPTED)

    def has_all(self, requests: Mapping[str, EngineRequest]) -> bool:
        """Return whether each of ``requests``, which are all that vLLM has, has a row."""
        return len(requests) == len(self.slot_of)

    def requests_in(self, slots: IntArray) -> list[Any]:
        """Return the requests in ``slots``, each of which has one, in this order."""
        return [self.request_at[slot] for slot in slots.tolist()]

    def running_in_order(self, queue: Sequence[EngineRequest]) -> IntArray:
        """Return the slots of the running requests in the order of ``queue``, which may hold others without a row."""
        return slots_in_order(self.request_at, self.rows.slots_in(State.RUNNING), queue)

    def others(self, requests: Mapping[str, EngineRequest]) -> list[EngineRequest]:
        """Return the requests that no snapshot shows although they may hold KV.

        Args:
            requests: All requests that vLLM has, by id.
        """
        blocked = list(self._blocked.values())
        if self.has_all(requests):
            return blocked
        return blocked + [request for request_id, request in requests.items() if request_id not in self.slot_of]

    def preempted(self, request: EngineRequest) -> int | None:
        """Note that a request lost its KV; return its slot, if it has one."""
        slot = self.slot_of.get(request.request_id)
        if slot is None:
            return None
        self._counts.left(request.request_id, slot)
        rows = self.rows
        rows.state[slot] = State.PREEMPTED
        self._elsewhere.note(slot, request)
        for name, value in (
            ("computed_tokens", 0),
            ("kv_blocks", 0),
            ("in_flight_tokens", request.num_in_flight_tokens),
            ("output_tokens", request.num_output_tokens),
            ("num_preemptions", request.num_preemptions),
        ):
            if name in rows.kept:
                getattr(rows, name)[slot] = value
        return slot

    def unblock(self) -> int:
        """Note which requests are not blocked any more; return how many still are."""
        if not self._blocked:
            return 0
        for slot, request in list(self._blocked.items()):
            if not self._reader.is_blocked(request):
                del self._blocked[slot]
                self._loading.discard(slot)  # its load failed, or was given up
                self.rows.state[slot] = self._reader.state_of(request)
        return len(self._blocked)

    def loading(self, requests: Iterable[EngineRequest]) -> IntArray:
        """Note the requests with KV that the engine loads; return the slots of the new ones.

        They are blocked until they run.
        """
        found = {self.slot_of[r.request_id]: r for r in requests if r.request_id in self.slot_of}
        found = {slot: r for slot, r in found.items() if slot not in self._loading}
        slots = np.array(list(found), np.int64)
        self.rows.state[slots] = State.BLOCKED
        self._blocked.update(found)
        self._loading.update(found)
        return slots

    def admitted(self, output: Any) -> IntArray:
        """Mark what a scheduled step admitted as running; return the slots in order of admission.

        Requests with loaded KV are left out: the load began with their admission.
        """
        ids = self._reader.admitted_ids(output)
        if not ids:
            return NO_SLOTS
        slots = np.array([self.slot_of[i] for i in ids if i in self.slot_of], np.int64)
        self.rows.state[slots] = State.RUNNING
        self._unanswered.update(slots.tolist())
        self._computing.update(slots.tolist())
        if self._blocked:
            for slot in slots:
                self._blocked.pop(int(slot), None)
        self._elsewhere.admitted(slots)
        if "cached_tokens" in self.rows.kept:
            for slot in slots:
                cached_tokens = self._reader.cached_tokens(self.request_at[slot])
                if cached_tokens is not None:
                    self.rows.cached_tokens[slot] = cached_tokens
        if self._loading:
            loaded = np.isin(slots, list(self._loading))
            self._loading.difference_update(slots.tolist())
            slots = slots[~loaded]
        return slots

    def scheduled(self, step: Any, requests: Mapping[str, EngineRequest]) -> None:
        """Record that a step was scheduled, which was passed to :meth:`admitted` before.

        A request in the step without a row, because it is not ours to plan or its arrival could not be counted, would
        be taken for one that a plan pauses. If such a request only waits, as idle sessions do, the step is followed.

        Args:
            step: The step.
            requests: All requests that the engine has, by id.
        """
        counts = self._reader.tokens_scheduled(step) if self._read else None
        if counts is not None and not self.has_all(requests) and not counts[0].keys() <= self.slot_of.keys():
            counts = None
        self._follows = counts is not None and len(counts[0]) >= FEWEST_FOLLOWED
        if counts is None or not self._follows:
            self._counts.lost()
            return
        rows = self.rows
        prompts = {self.request_at[slot].request_id: slot for slot in self._computing if rows.state[slot] == _RUNNING}
        if prompts:
            self.has_prompts()  # forgets requests that have got their last prefill tokens in this step
        self._counts.scheduled(step, *counts, prompts)

    def produced(self, step: Any, results: Any) -> None:
        """Take in the results of a step, after :meth:`finished` was called for the requests that ended with them."""
        found = self._reader.tokens_sampled(results) if self._follows else None
        if found is not None:
            self._counts.produced(step, *found)

    def note_first_tokens(self, now_s: float) -> None:
        """Record ``now_s`` as the time of the first token of each request that got it from a step's results."""
        if "first_token_s" not in self.rows.kept:
            return
        for slot in list(self._unanswered):
            if self.request_at[slot].num_output_tokens > 0:
                self._unanswered.discard(slot)
                if np.isnan(self.rows.first_token_s[slot]):
                    self.rows.first_token_s[slot] = now_s

    def has_prompts(self) -> bool:
        """Return whether a running request may have prefill tokens that no step has been given yet; others decode."""
        rows, found = self.rows, False
        for slot in list(self._computing):
            if rows.state[slot] != _RUNNING:
                continue  # it lost its KV, and begins again
            request = self.request_at[slot]
            done = request.num_output_tokens
            if int(rows.prompt_tokens[slot]) + done - request.num_computed_tokens <= (done > 0):
                self._computing.discard(slot)
            else:
                found = True
        return found

    def new_tokens(self, outputs: Any, step: Any = None) -> tuple[IntArray, IntArray, IntArray]:
        """Return the requests that a step's results brought new tokens and that go on, ``[n]`` for each of three.

        Returns: their slots, how many tokens each got, and how many drafts ``step`` verified of each; 0 without a step.
        """
        ids, counts = self._reader.new_tokens(outputs)
        slots = np.fromiter(map(self.slot_of.get, ids, repeat(-1)), np.int64, len(ids))
        tokens = np.array(counts, np.int64)
        drafts = np.zeros_like(slots)
        if step is not None:
            drafts = np.fromiter(self._reader.drafts_of(step, ids), np.int64, len(ids))
        known = slots >= 0
        return (slots, tokens, drafts) if known.all() else (slots[known], tokens[known], drafts[known])

    def finished(self, request: EngineRequest) -> int | None:
        """Complete the row of a request that ends, if it has one; the caller forgets it with :meth:`drop`."""
        slot = self.slot_of.get(request.request_id)
        if slot is not None and "output_tokens" in self.rows.kept:
            self.rows.output_tokens[slot] = request.num_output_tokens
        if slot is not None and "aborted" in self.rows.kept:
            self.rows.aborted[slot] = self._reader.is_aborted(request)
        return slot

    def drop(self, request: EngineRequest) -> None:
        """Forget a request, with a row or without."""
        slot = self.slot_of.pop(request.request_id, None)
        self.marks.dropped(request.request_id, slot)
        if slot is None:
            return
        self._counts.left(request.request_id, None)
        self._num_promised -= not math.isnan(self.rows.first_from_s[slot])
        self.request_at[slot] = None
        self._blocked.pop(slot, None)
        self._loading.discard(slot)
        self._unanswered.discard(slot)
        self._computing.discard(slot)
        self._elsewhere.dropped(slot)
        self.rows.free(slot)

    def snapshot(
        self,
        engine: EngineFacts,
        holding: Callable[[EngineRequest], Holding] | None = None,
    ) -> Snapshot:
        """Return the engine's state for a policy, as of now.

        Args:
            engine: What the engine can do.
            holding: Function that returns what KV blocks a request holds, if it is called.
        """
        self.unblock()
        rows, running, shared_blocks = self.rows, self.read_running(), 0
        if "kv_blocks" in rows.kept:
            held = engine.layout.held(rows.computed_tokens[running], rows.in_flight_tokens[running])
            rows.kv_blocks[running] = held
            # However much is shared, the request that holds most holds its own.
            most = int(held.sum() - held.max(initial=0))
            shared_blocks = min(max(int(held.sum()) - engine.held_blocks, 0), most)
        return Snapshot(
            rows,
            rows.slots_in(State.WAITING, State.PREEMPTED),
            running,
            engine,
            None if holding is None else lambda slot: holding(self.request_at[slot]),
            shared_blocks=shared_blocks,
        )

    @property
    def has_promised(self) -> bool:
        """Whether any request was promised its targets."""
        return self._num_promised > 0

    def read_running(self) -> IntArray:
        """Update what changes with every step, in the rows of the running requests; return their slots.

        ``kv_blocks`` is left out: only :meth:`snapshot` computes it. What the host pool keeps for others changes too:
        it may give up or lose what it keeps.
        """
        rows = self.rows
        self._elsewhere.read_swapped()
        running = rows.slots_in(State.RUNNING)
        if self._read and running.size:
            columns = {name: getattr(rows, name) for name in self._read}
            to_read = self._counts.to_read(running)
            if to_read.size:
                self._reader.read(self.request_at, to_read, columns)
            if CHECKS and to_read.size < running.size:
                check_columns(self._reader, self.request_at, running, columns)
        return running


def _with_counts(needs: frozenset[str]) -> frozenset[str]:
    """Return ``needs``, and the counts that the blocks follow from."""
    return needs | {"computed_tokens", "in_flight_tokens"} if "kv_blocks" in needs else needs
