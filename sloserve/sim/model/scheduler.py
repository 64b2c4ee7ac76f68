"""vLLM's scheduling rules on arrays: AsyncScheduler's, for one KV cache group of full attention, text, no drafts.

What the rules are is vLLM's (v1/core/sched/scheduler.py, async_scheduler.py, kv_cache_manager.py), and the order of the
steps here is theirs, so that the two can be read side by side. A step in which running requests get their tokens costs
a few array operations, however many run; only who is admitted, preempted or ends costs something by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.lso.blocks import blocks_of
from sloserve.sim.model.blocks import KVBlocks
from sloserve.sim.model.prefix_cache import PrefixCache
from sloserve.sim.model.requests import FREE, PREEMPTED, RUNNING, ModelRequest, Requests
from sloserve.vllm_plugin.virtual.engine_settings import EngineSettings

NONE: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one step. running: no admission while so many run. tokens: of the step. chunk: most of one request, 0
    for any number.
    """

    running: int
    tokens: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step computes, as vLLM's SchedulerOutput. Arrays: ``[requests in the step]``, in its order.

    requests: indices. tokens: how many each gets. computed: with KV before this step. samples: whether the step gives
    the request a token. num_tokens: in all. admitted: indices of the requests that it admitted, in order.
    """

    requests: IntArray
    tokens: IntArray
    computed: IntArray
    samples: BoolArray
    num_tokens: int
    admitted: list[int] = field(default_factory=list)


class ModelScheduler:
    """Decides for one engine what each step computes.

    Between two steps ``running`` and ``waiting`` may be reordered, ``limits`` narrowed and ``paused`` set, as a plan
    asks; limits and pauses hold until they are set anew.

    running, waiting: indices of requests, first served first. paused: indices of running requests to pass over.
    preempted: ids of the requests that were preempted, in order, until the reader clears it.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.requests = Requests()
        blocks = PrefixCache if settings.enable_prefix_caching else KVBlocks
        self.kv: KVBlocks = blocks(self.requests, settings.kv_blocks, settings.block_size)
        self.running = NONE
        self.waiting = NONE
        self.paused = NONE
        self.limits = Limits(settings.max_num_seqs, settings.max_num_batched_tokens)
        self.preempted: list[str] = []
        self._num_stale = 0  # requests with stale tokens
        self._untold = False  # requests ended; vLLM makes one more step to tell its workers

    def has_requests(self) -> bool:
        """Whether there is anything to schedule."""
        return bool(self.running.size or self.waiting.size or self._untold)

    def add(self, requests: Sequence[ModelRequest]) -> None:
        """New requests queue up, in order of arrival."""
        self.waiting = np.concatenate((self.waiting, [request.index for request in requests]), dtype=np.int64)

    # One step.

    def schedule(self) -> Batch:
        """What the next step computes; it counts as done from now on, but for its output."""
        self._untold = False
        limits, counts = self.limits, self.requests
        chunk = limits.chunk if self.running.size + self.waiting.size > 1 else 0
        budget = min(limits.tokens, self.settings.max_num_batched_tokens)
        running_before = self.running.size
        members, tokens = self._serve_running(budget, chunk)
        computed = counts.computed[members]
        admitted: list[int] = []
        if self.waiting.size and self.running.size == running_before:
            admitted, hits, chunks = self._admit(budget - int(np.add.reduce(tokens)), chunk)
            if admitted:
                new = np.array(admitted, np.int64)
                self.running = np.concatenate((self.running, new))
                members = np.concatenate((members, new))
                tokens = np.concatenate((tokens, np.array(chunks, np.int64)))
                computed = np.concatenate((computed, np.array(hits, np.int64)))
        after = computed + tokens
        counts.computed[members] = after
        counts.in_flight[members] += tokens
        placeholders = counts.placeholders[members]
        samples = after >= counts.tokens[members] + placeholders
        counts.placeholders[members] = placeholders + samples
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

    def _admit(self, budget: int, chunk: int) -> tuple[list[int], list[int], list[int]]:
        """Admits from the head of the queue: who, with how many tokens from the cache, and how many tokens of its own.

        Requests whose output is in flight since before their preemption are passed over.
        """
        counts, kv, block_size = self.requests, self.kv, self.settings.block_size
        places = max(self.limits.running - self.running.size, 0)
        admitted: list[int] = []
        hits: list[int] = []
        chunks: list[int] = []
        passed: list[int] = []
        looked_at = 0
        # No more than these are admitted or passed over.
        for index in self.waiting[: places + self._num_stale].tolist():
            if budget <= 0 or len(admitted) >= places:
                break
            if self._num_stale and counts.stale[index]:
                passed.append(index)
                looked_at += 1
                continue
            tokens = int(counts.tokens[index])
            blocks = kv.lookup(index)
            if not kv.fits(min(tokens, self.settings.max_model_len), blocks):
                break
            looked_at += 1
            hit = len(blocks) * block_size
            new = tokens - hit
            if 0 < chunk < new:
                new = chunk
            new = min(new, budget)
            kv.admit(index, blocks)
            kv.take(index, blocks_of(hit + new, block_size) - len(blocks))
            kv.cache(index, min(hit + new, tokens) // block_size)
            budget -= new
            counts.state[index] = RUNNING
            if not counts.preemptions[index]:
                counts.found[index] = hit
            admitted.append(index)
            hits.append(hit)
            chunks.append(new)
        if admitted:
            rest = self.waiting[looked_at:]
            self.waiting = np.concatenate((np.array(passed, np.int64), rest)) if passed else rest
        return admitted, hits, chunks

    def preempt(self, index: int) -> None:
        """Takes a request's KV and puts it in front of the queue; the caller takes it out of ``running``."""
        counts = self.requests
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

    # Its output.

    def update(self, batch: Batch) -> tuple[IntArray, list[int]]:
        """Takes in the output of the oldest step in flight: who got a token, and who of them ended, in order."""
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
        self.kv.release(index)
        self.kv.ended(index)
        counts.state[index] = FREE
