"""vLLM's scheduling rules on arrays: AsyncScheduler's, for one KV cache group of full attention, text, no drafts.

What the rules are is vLLM's (v1/core/sched/scheduler.py, async_scheduler.py, kv_cache_manager.py), and the order of the
steps here is theirs, so that the two can be read side by side. A step in which running requests get their tokens costs
a few array operations, however many run; only who is admitted, preempted or ends costs something by itself.
"""

from collections.abc import Sequence

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.lso.blocks import blocks_of
from sloserve.sim.model.blocks import KVBlocks
from sloserve.sim.model.model_requests import BLOCKED, FREE, PREEMPTED, RUNNING, ModelRequest, ModelRequests
from sloserve.sim.model.prefix_cache import PrefixCache
from sloserve.sim.model.step import Admitted, Batch, StepLimits
from sloserve.sim.model.swap import KVSwap
from sloserve.virtual.engine_settings import EngineSettings
from sloserve.virtual.virtual_swap_worker import NOTHING, Told

NONE: IntArray = np.empty(0, np.int64)


class ModelScheduler:
    """Decides for one engine what each step computes.

    Between two steps ``running`` and ``waiting`` may be reordered, ``limits`` narrowed and ``paused`` set, as a plan
    asks; limits and pauses hold until they are set anew.

    running, waiting: indices of requests, first served first. holding: those that wait and hold KV, which is being
    loaded or has been. arrived: those of them whose loads are known to be done. swap: ``None`` without swap space.
    paused: indices of running requests to pass over.
    preempted: ids of the requests that were preempted, in order, until the reader clears it.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.requests = ModelRequests()
        blocks = PrefixCache if settings.enable_prefix_caching else KVBlocks
        self.kv: KVBlocks = blocks(self.requests, settings.kv_blocks, settings.block_size)
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
        """Whether there is anything to schedule."""
        return bool(self.running.size or self.waiting.size or self.holding or self._leaving or self._untold)

    @property
    def num_waiting(self) -> int:
        """Requests that do not run."""
        return int(self.waiting.size) + len(self.holding)

    def add(self, requests: Sequence[ModelRequest]) -> None:
        """New requests queue up, in order of arrival."""
        self.waiting = np.concatenate((self.waiting, [request.index for request in requests]), dtype=np.int64)

    # One step.

    def schedule(self) -> Batch:
        """What the next step computes; it counts as done from now on, but for its output."""
        self._untold = False
        limits, counts = self.limits, self.requests
        chunk = limits.chunk if self.running.size + self.num_waiting > 1 else 0
        budget = min(limits.tokens, self.settings.max_num_batched_tokens)
        running_before = self.running.size
        members, tokens = self._serve_running(budget, chunk)
        computed = counts.computed[members]
        admitted: list[int] = []
        if (self.waiting.size or self.holding) and self.running.size == running_before:
            step = self._admit(budget - int(np.add.reduce(tokens)), chunk)
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
        samples = after >= counts.tokens[members] + placeholders
        counts.placeholders[members] = placeholders + samples
        if self._prefilling:
            self._prefilling.difference_update(members[samples].tolist())
        return Batch(members, tokens, computed, samples, int(np.add.reduce(tokens)), admitted)

    def _serve_running(self, budget: int, chunk: int) -> tuple[IntArray, IntArray]:
        """Who of the running gets how many tokens; preempts from the end where KV is short."""
        counts, members = self.requests, self.running
        if not members.size:
            return members, members
        computed, placeholders = counts.computed[members], counts.placeholders[members]
        new = counts.tokens[members] + placeholders - computed
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
        if total[-1] > budget:
            new = np.clip(budget - (total - new), 0, new)
        after = computed + new
        need = blocks_of(after, self.settings.block_size) - counts.blocks[members]
        kept = self._grow(members, need, after, new)
        if kept < members.size:
            self.running = members = members[:kept]
            new = new[:kept]
        served = new > 0
        if np.logical_and.reduce(served):
            return members, new
        return members[served], new[served]

    def _grow(self, members: IntArray, need: IntArray, after: IntArray, new: IntArray) -> int:
        """Gives running requests their blocks; returns how many of them, from the first, still run."""
        counts, kv = self.requests, self.kv
        short = need > 0
        if kv.caches:
            full = np.minimum(after, counts.tokens[members]) // self.settings.block_size
            full[new == 0] = 0
            short |= full > counts.cached[members]
        elif int(np.add.reduce(need, where=short)) <= kv.free:
            rows = short.nonzero()[0]
            if rows.size:
                taken = need[rows]
                counts.blocks[members[rows]] += taken
                kv.free -= int(np.add.reduce(taken))
            return int(members.size)
        kept = int(members.size)
        for row in short.nonzero()[0].tolist():
            if row >= kept:
                break
            wanted = max(int(need[row]), 0)
            while wanted > kv.free and kept > row:
                kept -= 1
                self.preempt(int(members[kept]))
            if row >= kept:
                break
            if wanted:
                kv.take(int(members[row]), wanted)
            if kv.caches:
                kv.cache(int(members[row]), int(full[row]))
        return kept

    def _admit(self, budget: int, chunk: int) -> Admitted:
        """Admits from the head of the queue.

        Requests whose output is in flight since before their preemption are passed over.
        """
        counts, kv, swap = self.requests, self.kv, self.swap
        step = Admitted(budget, max(self.limits.running - self.running.size, 0), chunk)
        if self.holding and not self._admit_holding(step):
            return step
        passed: list[int] = []
        looked_at = 0
        # No more than these are admitted or passed over.
        most = step.places + self._num_stale + (0 if swap is None else swap.num_kept)
        for index in self.waiting[:most].tolist():
            if step.is_full:
                break
            if self._num_stale and counts.stale[index]:
                passed.append(index)
                looked_at += 1
                continue
            blocks = kv.lookup(index)
            if swap is not None:
                frontier = swap.frontier(index, len(blocks) * self.settings.block_size)
                if frontier:
                    if not self._load(step, index, blocks, frontier):
                        break
                    looked_at += 1
                    continue
            if not kv.fits(min(int(counts.tokens[index]), self.settings.max_model_len), blocks):
                break
            looked_at += 1
            kv.admit(index, blocks)
            if swap is not None:
                swap.runs(index)
            hit = len(blocks) * self.settings.block_size
            if not counts.preemptions[index]:
                counts.found[index] = hit
            self._take_in(step, index, hit)
        if looked_at > len(passed):
            rest = self.waiting[looked_at:]
            self.waiting = np.concatenate((np.array(passed, np.int64), rest)) if passed else rest
        return step

    def _take_in(self, step: Admitted, index: int, computed: int) -> None:
        """A request that fits runs from now on; it has KV of its first ``computed`` tokens."""
        counts, kv = self.requests, self.kv
        tokens = int(counts.tokens[index])
        new = tokens - computed
        if 0 < step.chunk < new:
            new = step.chunk
        new = min(new, step.budget)
        kv.take(index, blocks_of(computed + new, self.settings.block_size) - int(counts.blocks[index]))
        kv.cache(index, min(computed + new, tokens) // self.settings.block_size)
        step.budget -= new
        counts.state[index] = RUNNING
        if self.swap is not None and computed + new < tokens:
            self._prefilling.add(index)
        step.requests.append(index)
        step.computed.append(computed)
        step.tokens.append(new)

    # KV that comes from elsewhere (vLLM's KV connectors): a request holds its blocks while its KV is loaded.

    def _load(self, step: Admitted, index: int, hits: Sequence[int], frontier: int) -> bool:
        """Gives a request the blocks of its first ``frontier`` tokens and has what is not in ``hits`` loaded; ``False``
        if they do not fit.
        """
        counts, kv, swap = self.requests, self.kv, self.swap
        assert swap is not None
        full = min(int(counts.tokens[index]), self.settings.max_model_len)
        # What loads makes no progress and cannot be preempted: it leaves room for all prompts that are unfinished.
        num_blocks = blocks_of(frontier, self.settings.block_size) - len(hits)
        if not (kv.fits(full, hits) and kv.fits(frontier, hits, self._reserved(step, num_blocks))):
            return False
        kv.admit(index, hits)
        kv.take(index, num_blocks)
        swap.load(index, len(hits) * self.settings.block_size, frontier)
        counts.computed[index] = frontier
        counts.state[index] = BLOCKED
        self._prefilling.add(index)
        self.holding.append(index)
        step.places = max(step.places - 1, len(step.requests))  # the one that it will run in
        return True

    def _reserved(self, step: Admitted, num_blocks: int) -> int:
        """Blocks that unfinished prompts and loads still need, and running requests while ``num_blocks`` are loaded."""
        assert self.swap is not None
        running = np.concatenate((self.requests.computed[self.running], np.array(step.computed, np.int64)))
        growth = self.swap.control.growth_blocks(running, num_blocks)
        members = np.fromiter(self._prefilling, np.int64)
        tokens = np.minimum(self.requests.tokens[members], self.settings.max_model_len)
        return (
            int(np.maximum(blocks_of(tokens, self.settings.block_size) - self.requests.blocks[members], 0).sum())
            + growth
        )

    def _admit_holding(self, step: Admitted) -> bool:
        """Admits the requests whose KV has arrived, ahead of all others; ``False`` if admission ends with them."""
        counts, kv, block_size = self.requests, self.kv, self.settings.block_size
        waits: list[int] = []
        for place, index in enumerate(self.holding):
            fits = not step.is_full
            if fits and counts.state[index] == BLOCKED:
                if index not in self.arrived:
                    waits.append(index)
                    continue
                self.arrived.discard(index)
                counts.state[index] = PREEMPTED
                kv.cache(index, int(counts.computed[index]) // block_size)
            tokens = min(int(counts.tokens[index]), self.settings.max_model_len)
            if not fits or blocks_of(tokens, block_size) - int(counts.blocks[index]) > kv.free:
                self.holding = waits + self.holding[place:]
                return False
            self._take_in(step, index, int(counts.computed[index]))
        self.holding = waits
        return True

    def preempt(self, index: int) -> None:
        """Takes a request's KV and puts it in front of the queue; the caller takes it out of ``running``."""
        counts = self.requests
        if self.swap is not None:
            self._prefilling.discard(index)
        self.kv.release(index)
        counts.state[index] = PREEMPTED
        counts.computed[index] = counts.placeholders[index] = 0
        self._num_stale += bool(counts.in_flight[index])
        counts.stale[index] = counts.in_flight[index]
        counts.preemptions[index] += 1
        self.waiting = np.concatenate((np.array([index], np.int64), self.waiting))
        self.preempted.append(counts.handles[index].request_id)

    def abort(self, index: int) -> None:
        """Ends a request that runs or waits; its output in flight is dropped."""
        self._end(index)
        self._untold = True
        self.running = self.running[self.running != index]
        self.waiting = self.waiting[self.waiting != index]
        if index in self.holding:
            self.holding.remove(index)

    # Its output.

    def update(self, batch: Batch, told: Told = NOTHING) -> tuple[IntArray, list[int]]:
        """Takes in the output of the oldest step in flight: who got a token, and who of them ended, in order."""
        result = self._output(batch)
        if self.swap is not None:
            for index in self.swap.told(told):
                if index in self._leaving:
                    self._leaving.discard(index)
                    self.kv.release(index)
                else:
                    self.arrived.add(index)
        return result

    def _output(self, batch: Batch) -> tuple[IntArray, list[int]]:
        counts = self.requests
        members, tokens, samples = batch.requests, batch.tokens, batch.samples
        alive = counts.state[members] != FREE
        if not np.logical_and.reduce(alive):  # they ended while this step was in flight
            members, tokens, samples = members[alive], tokens[alive], samples[alive]
        counts.in_flight[members] -= tokens
        sampled: IntArray = members if np.logical_and.reduce(samples) else members[samples]
        counts.tokens[sampled] += 1
        left = counts.left[sampled] - 1
        counts.left[sampled] = left
        if self._num_stale:
            sampled_fresh = self._drain(members, tokens, sampled)
            counts.placeholders[sampled_fresh] -= 1
        else:
            counts.placeholders[sampled] -= 1
        ending = left == 0
        ends = bool(np.logical_or.reduce(ending))
        if self.kv.caches:
            self._cache_output(sampled, ending)
        elif ends:
            for index in sampled[ending].tolist():
                self._end(index)
        if not ends:
            return sampled, []
        self._untold = True
        self.running = self.running[counts.state[self.running] != FREE]
        if self.waiting.size:  # a preempted request may end by output that was in flight
            self.waiting = self.waiting[counts.state[self.waiting] != FREE]
        return sampled, sampled[ending].tolist()

    def _drain(self, members: IntArray, tokens: IntArray, sampled: IntArray) -> IntArray:
        """Takes the step's tokens off what is stale; returns those of ``sampled`` for which it was not."""
        counts = self.requests
        was_stale = counts.stale[members] > 0
        fresh: IntArray = sampled[counts.stale[sampled] == 0]
        drained = members[was_stale]
        counts.stale[drained] -= tokens[was_stale]
        self._num_stale -= int(np.count_nonzero(counts.stale[drained] == 0))
        return fresh

    def _cache_output(self, sampled: IntArray, ending: BoolArray) -> None:
        """Lets the prefix cache know of blocks that output has filled, and ends requests, each in its turn."""
        counts, kv = self.requests, self.kv
        # The newest token has no KV yet.
        full = (counts.tokens[sampled] - 1) // self.settings.block_size
        full[counts.state[sampled] != RUNNING] = 0
        for row in (ending | (full > counts.cached[sampled])).nonzero()[0].tolist():
            index = int(sampled[row])
            if full[row] > counts.cached[index]:
                kv.cache(index, int(full[row]))
            if ending[row]:
                self._end(index)

    def _end(self, index: int) -> None:
        counts = self.requests
        self._num_stale -= bool(counts.stale[index])
        if self.swap is not None:
            self._prefilling.discard(index)
            self.swap.ended(index)
        if counts.state[index] == BLOCKED and index not in self.arrived:
            self._leaving.add(index)  # its load still writes to its blocks
        else:
            self.arrived.discard(index)
            self.kv.release(index)
        self.kv.ended(index)
        counts.state[index] = FREE
