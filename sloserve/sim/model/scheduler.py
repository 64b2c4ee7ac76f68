"""vLLM's scheduling rules on arrays: AsyncScheduler's, for text, with drafts or without.

The rules are vLLM's (v1/core/sched/scheduler.py, async_scheduler.py, kv_cache_manager.py), and so is the order of the
steps here, so that the two can be read side by side. A step in which running requests get their tokens costs a few
array operations, however many run; only a request that is admitted, preempted or ended has a cost of its own.
"""

from collections.abc import Sequence

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.virtual_swap_worker import NOTHING, Told
from sloserve.sim.model.adapters import Adapters
from sloserve.sim.model.blocks import Hit, KVBlocks
from sloserve.sim.model.chunks import ChunkEnds, PromptPart
from sloserve.sim.model.drafted import ModelDrafts
from sloserve.sim.model.grouped_blocks import GroupedBlocks
from sloserve.sim.model.model_requests import BLOCKED, FREE, PREEMPTED, RUNNING, ModelRequest, ModelRequests
from sloserve.sim.model.prefix_cache import PrefixCache
from sloserve.sim.model.step import Admitted, StepBatch, StepLimits
from sloserve.sim.model.swap import KVSwap

NONE: IntArray = np.empty(0, np.int64)
ONE: IntArray = np.ones((), np.int64)


class ModelScheduler:
    """The scheduler of one engine: it decides what each step computes.

    Between two steps ``running`` and ``waiting`` may be reordered, ``limits`` narrowed and ``paused`` set, as a plan
    asks; limits and pauses hold until they are set again.

    Args:
        running: Indices of running requests; the first is served first.
        waiting: Indices of waiting requests; the first is served first.
        holding: Waiting requests that hold KV blocks for KV that is being loaded or has been loaded.
        arrived: The requests of ``holding`` with loads that are known to be done.
        swap: The swap space, or ``None`` without one.
        paused: Indices of running requests to pass over.
        preempted: Ids of the requests that were preempted, in order, until the reader clears it.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.requests = ModelRequests()
        self.layout, caches = settings.layout, settings.enable_prefix_caching
        self.kv: KVBlocks
        drops = caches and settings.drops_found_block
        if not self.layout.is_full:
            self.kv = GroupedBlocks(self.requests, settings.kv_blocks, self.layout, caches=caches, drops=drops)
        elif caches:
            self.kv = PrefixCache(self.requests, settings.kv_blocks, self.layout, drops=drops)
        else:
            self.kv = KVBlocks(self.requests, settings.kv_blocks, self.layout)
        self.drafts = None if settings.drafts is None else ModelDrafts(self.requests, settings.drafts)
        self.adapters = None if settings.max_loras is None else Adapters(self.requests, settings.max_loras)
        self._aligned = self.layout.chunk_multiple > 1
        self.running = NONE
        self.waiting = NONE
        self.holding: list[int] = []
        self.arrived: set[int] = set()
        self.swap: KVSwap | None = None
        self.paused = NONE
        self.limits = StepLimits(settings.max_num_seqs, settings.max_num_batched_tokens)
        self.preempted: list[str] = []
        self._num_stale = 0  # requests with stale tokens
        self._prefilling: set[int] = set()  # prompts that are unfinished, and loads; kept only with a swap
        self._leaving: set[int] = set()  # ended while their KV was loaded
        self._untold = False  # requests ended; vLLM makes one more step to tell its workers

    def has_requests(self) -> bool:
        """Return whether there is anything to schedule."""
        return bool(self.running.size or self.waiting.size or self.holding or self._leaving or self._untold)

    @property
    def num_waiting(self) -> int:
        """The number of requests that do not run."""
        return int(self.waiting.size) + len(self.holding)

    def add(self, requests: Sequence[ModelRequest]) -> None:
        """Add new requests to the end of the queue, in order of arrival."""
        if self.drafts is not None:
            self.drafts.add(requests)
        self.waiting = np.concatenate((self.waiting, [request.index for request in requests]), dtype=np.int64)

    # These methods schedule one step.

    def schedule(self) -> StepBatch:
        """Return what the next step computes, and count it as done except for its output."""
        self._untold = False
        if self.kv.caches:
            self.kv.step_begins()
        limits, counts = self.limits, self.requests
        chunk = limits.chunk if self.running.size + self.num_waiting > 1 else 0
        budget = min(limits.tokens, self.settings.max_num_batched_tokens)
        running_before = self.running.size
        members, tokens = self._serve_running(budget, chunk)
        computed = counts.computed[members]
        if self.adapters is not None:
            self.adapters.step_begins(members)
        admitted: list[int] = []
        if (self.waiting.size or self.holding) and self.running.size == running_before:
            places = max(limits.running - running_before, 0)
            padding = 0 if self.drafts is None else self.drafts.padding(members)
            step = Admitted(budget - int(np.add.reduce(tokens)), places, chunk, padding, bool(members.size))
            self._admit(step)
            admitted = step.requests
            if admitted:
                new = np.array(admitted, np.int64)
                self.running = np.concatenate((self.running, new))
                members = np.concatenate((members, new))
                tokens = np.concatenate((tokens, np.array(step.tokens, np.int64)))
                computed = np.concatenate((computed, np.array(step.computed, np.int64)))
        after = computed + tokens
        counts.computed[members] = after
        counts.in_flight[members] += tokens
        placeholders = counts.placeholders[members]
        awaited = counts.tokens[members] + placeholders
        samples = after >= awaited
        counts.placeholders[members] = placeholders + samples
        drafts = None if self.drafts is None else self.drafts.scheduled(members, after - awaited, samples)
        if self._prefilling:
            self._prefilling.difference_update(members[samples].tolist())
        return StepBatch(members, tokens, computed, samples, int(np.add.reduce(tokens)), admitted, drafts)

    def _serve_running(self, budget: int, chunk: int) -> tuple[IntArray, IntArray]:
        """Return the running requests and the tokens that each gets; preempt from the end where KV is short."""
        counts, members = self.requests, self.running
        if not members.size:
            return members, members
        computed, placeholders = counts.computed[members], counts.placeholders[members]
        new = counts.tokens[members] + placeholders - computed
        if self.drafts is not None:
            new += counts.proposed[members]
        if chunk:
            np.minimum(new, chunk, out=new)
        np.minimum(new, self.settings.max_model_len - 1 - computed, out=new)
        # The output in flight is the last that max_tokens allows.
        new[(placeholders > 0) & (computed + 2 - placeholders >= counts.last[members])] = 0
        if self.paused.size:
            counts.marked[self.paused] = True
            new[counts.marked[members]] = 0
            counts.marked[self.paused] = False
        total = np.cumsum(new)
        if self._aligned and (prompts := PromptPart.unfinished(counts, members, computed)):
            self._chunk_ends().of_step(prompts, new, budget)
        elif total[-1] > budget:
            new = np.clip(budget - (total - new), 0, new)
        after = computed + new
        kept = self._grow(members, after, new)
        if kept < members.size:
            self.running = members = members[:kept]
            new = new[:kept]
        served = new > 0
        if np.logical_and.reduce(served):
            return members, new
        return members[served], new[served]

    def _chunk_ends(self) -> ChunkEnds:
        """Return the rule for where chunks of this step may end."""
        most, chunk = min(self.limits.tokens, self.settings.max_num_batched_tokens), self.limits.chunk
        most = min(most, chunk) if chunk > 0 else most
        return ChunkEnds(self.layout.chunk_multiple, most, drops=self.settings.drops_found_block)

    def _grow(self, members: IntArray, after: IntArray, new: IntArray) -> int:
        """Give running requests their blocks; return how many of them, from the first, still run."""
        counts, kv = self.requests, self.kv
        kept = int(members.size)
        if kv.grow_all(members, after):
            return kept
        for row in kv.changed(members, after, new).tolist():
            if row >= kept:
                break
            index, tokens = int(members[row]), int(after[row])
            wanted = kv.need(index, tokens)
            while wanted > kv.free and kept > row:
                kept -= 1
                self.preempt(int(members[kept]))
            if row >= kept:
                break
            kv.grow(index, tokens)
            kv.cache(index, min(tokens, int(counts.tokens[index])))
        return kept

    def _admit(self, step: Admitted) -> None:
        """Admit requests from the head of the queue.

        It passes over requests that still have output in flight from before their preemption, and over requests with an
        adapter that has no place in the step.
        """
        counts, kv, swap = self.requests, self.kv, self.swap
        if self.holding and not self._admit_holding(step):
            return
        passed: list[int] = []
        looked_at = 0
        # At most this many requests are admitted or passed over.
        most = step.places + self._num_stale + (0 if swap is None else swap.num_kept)
        if self.adapters is not None:
            most = self.waiting.size
        for index in self.waiting[:most].tolist():
            if step.is_full:
                break
            is_stale = bool(self._num_stale and counts.stale[index])
            if is_stale or not (self.adapters is None or self.adapters.fits(index)):
                passed.append(index)
                looked_at += 1
                continue
            hit = kv.lookup(index)
            counts.junction[index] = hit.junction
            if swap is not None:
                frontier = swap.frontier(index, hit.tokens)
                if frontier:
                    if not self._load(step, index, hit, frontier):
                        break
                    looked_at += 1
                    continue
            new = self._first_chunk(step, index, hit.tokens)
            tokens = min(int(counts.tokens[index]), self.settings.max_model_len)
            if not (new and kv.fits(hit, tokens, hit.tokens + new)):
                break
            looked_at += 1
            kv.admit(index, hit)
            if swap is not None:
                swap.runs(index)
            if not counts.preemptions[index]:
                counts.found[index] = hit.tokens
            self._take_in(step, index, hit.tokens, new)
        if looked_at > len(passed):
            rest = self.waiting[looked_at:]
            self.waiting = np.concatenate((np.array(passed, np.int64), rest)) if passed else rest

    def _first_chunk(self, step: Admitted, index: int, computed: int) -> int:
        """Return the first chunk, in tokens, of an admitted request with KV of its first ``computed`` tokens."""
        new, padded = int(self.requests.tokens[index]) - computed, False
        if new == 1 and step.padding and (step.beside_others or computed):
            if computed + 1 + step.padding < self.settings.max_model_len:
                new, padded = (1 + step.padding if step.padding < step.budget else 0), True
        if 0 < step.chunk < new:
            new = step.chunk
        new = min(new, step.budget)
        if not (self._aligned and new):
            return new
        cut = self._chunk_ends().within(PromptPart.of(self.requests, index, computed), new)
        return min(cut, 1) if padded and cut != new else cut  # part of the padding is of no use

    def _take_in(self, step: Admitted, index: int, computed: int, new: int) -> None:
        """Let a request that fits run with KV of ``computed`` tokens; the step computes ``new`` more."""
        counts, tokens = self.requests, int(self.requests.tokens[index])
        self.kv.grow(index, computed + new)
        self.kv.cache(index, min(computed + new, tokens))
        step.budget -= new
        counts.state[index] = RUNNING
        if self.adapters is not None:
            self.adapters.admit(index)
        if self.swap is not None and computed + new < tokens:
            self._prefilling.add(index)
        step.requests.append(index)
        step.computed.append(computed)
        step.tokens.append(new)

    # KV that comes from elsewhere (vLLM's KV connectors): a request holds its blocks while its KV is loaded.

    def _load(self, step: Admitted, index: int, hit: Hit, frontier: int) -> bool:
        """Give a request blocks for its first ``frontier`` tokens and load the KV that ``hit`` lacks.

        Returns ``False``, and changes nothing, if the blocks do not fit.
        """
        counts, kv, swap = self.requests, self.kv, self.swap
        assert swap is not None
        full = min(int(counts.tokens[index]), self.settings.max_model_len)
        # A request that loads makes no progress and cannot be preempted: it leaves room for all unfinished prompts.
        num_blocks = swap.control.store.blocks_to_load(hit.tokens, frontier)
        if not kv.fits(hit, full, frontier, self._reserved(step, num_blocks), loaded=frontier):
            return False
        kv.load(index, hit, frontier)
        swap.load(index, hit.tokens, frontier)
        counts.computed[index] = frontier
        counts.state[index] = BLOCKED
        self._prefilling.add(index)
        self.holding.append(index)
        step.places = max(step.places - 1, len(step.requests))  # the one that it will run in
        return True

    def _reserved(self, step: Admitted, num_blocks: int) -> int:
        """Return the blocks that must stay free while ``num_blocks`` blocks are loaded.

        Unfinished prompts, loads and the growth of running requests need these blocks.
        """
        assert self.swap is not None
        running = np.concatenate((self.requests.computed[self.running], np.array(step.computed, np.int64)))
        growth = self.swap.control.growth_blocks(running, num_blocks)
        members = np.fromiter(self._prefilling, np.int64)
        tokens = np.minimum(self.requests.tokens[members], self.settings.max_model_len)
        if self.drafts is None:
            return self.kv.lacking(members, tokens) + growth
        ahead = 1 + self.drafts.num_tokens + self.layout.lookahead_tokens
        return self.kv.lacking(members, tokens, ahead) + self.kv.step_blocks(ahead) + growth

    def _admit_holding(self, step: Admitted) -> bool:
        """Admit the requests with loaded KV ahead of all others; return ``False`` if admission ends with them."""
        counts, kv = self.requests, self.kv
        waits: list[int] = []
        for place, index in enumerate(self.holding):
            fits = not step.is_full
            if fits and counts.state[index] == BLOCKED:
                if index not in self.arrived:
                    waits.append(index)
                    continue
                self.arrived.discard(index)
                counts.state[index] = PREEMPTED
                kv.cache(index, int(counts.computed[index]))
            computed, full = int(counts.computed[index]), min(int(counts.tokens[index]), self.settings.max_model_len)
            new = self._first_chunk(step, index, computed) if fits else 0
            if not (new and kv.has_room(index, full, computed + new)):
                self.holding = waits + self.holding[place:]
                return False
            if not counts.preemptions[index]:
                counts.found[index] = computed
            self._take_in(step, index, computed, new)
        self.holding = waits
        return True

    def preempt(self, index: int) -> None:
        """Take a request's KV and put it in front of the queue; the caller takes it out of ``running``."""
        counts = self.requests
        if self.swap is not None:
            self._prefilling.discard(index)
        self.kv.release(index)
        counts.state[index] = PREEMPTED
        counts.computed[index] = counts.placeholders[index] = counts.proposed[index] = 0
        self._num_stale += bool(counts.in_flight[index])
        counts.stale[index] = counts.in_flight[index]
        counts.preemptions[index] += 1
        self.waiting = np.concatenate((np.array([index], np.int64), self.waiting))
        self.preempted.append(counts.handles[index].request_id)

    def abort(self, index: int) -> None:
        """End a request that runs or waits, and drop its output in flight."""
        self._end(index)
        self._untold = True
        self.running = self.running[self.running != index]
        self.waiting = self.waiting[self.waiting != index]
        if index in self.holding:
            self.holding.remove(index)

    # These methods process the output of a step.

    def update(self, batch: StepBatch, told: Told = NOTHING) -> tuple[IntArray, list[int]]:
        """Process the output of the oldest step in flight; return the owner of each token and the ended requests.

        Requests are given by index, in order.
        """
        result = self._output(batch)
        if self.swap is not None:
            for index in self.swap.told(told):
                if index in self._leaving:
                    self._leaving.discard(index)
                    self.kv.release(index)
                else:
                    self.arrived.add(index)
        return result

    def _output(self, batch: StepBatch) -> tuple[IntArray, list[int]]:
        counts = self.requests
        members, tokens = batch.requests, batch.tokens
        alive = counts.state[members] != FREE
        gets = alive & batch.samples
        if not np.logical_and.reduce(alive):  # they ended while this step was in flight
            members, tokens = members[alive], tokens[alive]
        counts.in_flight[members] -= tokens
        sampled: IntArray = batch.requests[gets]
        fresh = self._drain(members, tokens, sampled) if self._num_stale else None
        owners, taken = sampled, ONE
        if self.drafts is None:
            counts.placeholders[sampled if fresh is None else sampled[fresh]] -= 1
        else:
            taken = self.drafts.output(batch, gets, fresh)
            owners = np.repeat(sampled, taken)
        counts.tokens[sampled] += taken
        counts.left[sampled] -= taken
        ending = counts.left[sampled] == 0
        ends = bool(np.logical_or.reduce(ending))
        if self.kv.caches:
            self._cache_output(sampled, ending)
        elif ends:
            for index in sampled[ending].tolist():
                self._end(index)
        if not ends:
            return owners, []
        self._untold = True
        self.running = self.running[counts.state[self.running] != FREE]
        if self.waiting.size:  # a preempted request may end by output that was in flight
            self.waiting = self.waiting[counts.state[self.waiting] != FREE]
        return owners, sampled[ending].tolist()

    def _drain(self, members: IntArray, tokens: IntArray, sampled: IntArray) -> BoolArray:
        """Take the step's tokens off what is stale; return for which of ``sampled`` the output is not stale."""
        counts = self.requests
        was_stale = counts.stale[members] > 0
        fresh: BoolArray = counts.stale[sampled] == 0
        drained = members[was_stale]
        counts.stale[drained] -= tokens[was_stale]
        self._num_stale -= int(np.count_nonzero(counts.stale[drained] == 0))
        return fresh

    def _cache_output(self, sampled: IntArray, ending: BoolArray) -> None:
        """Enter the blocks that output has filled in the cache, and end finished requests, in the order of the step."""
        counts, kv = self.requests, self.kv
        # The newest token has no KV yet.
        full = (counts.tokens[sampled] - 1) // kv.block_size
        full[counts.state[sampled] != RUNNING] = 0
        for row in (ending | (full > counts.cached[sampled])).nonzero()[0].tolist():
            index = int(sampled[row])
            if full[row] > counts.cached[index]:
                kv.cache(index, int(full[row]) * kv.block_size)
            if ending[row]:
                self._end(index)

    def _end(self, index: int) -> None:
        counts = self.requests
        self._num_stale -= bool(counts.stale[index])
        if self.swap is not None:
            self._prefilling.discard(index)
            self.swap.ended(index)
            self.kv.settle(index)  # as vLLM does for a connector; it decides which blocks are used again first
        if counts.state[index] == BLOCKED and index not in self.arrived:
            self._leaving.add(index)  # its load still writes to its blocks
        else:
            self.arrived.discard(index)
            self.kv.release(index)
        self.kv.ended(index)
        counts.state[index] = FREE
