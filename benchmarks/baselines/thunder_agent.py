"""ThunderAgent's scheduler: programs are paused at their tool calls where their KV would not fit the cache together.

A program reasons while a call of it is in flight, and acts between two calls. Active programs, whether they reason or
act, count with the tokens of their latest call and a buffer for the next output; the prompt that all share counts once.
Calls of active programs are served in order of arrival. A paused program's calls wait.

Every ``interval_s`` seconds the policy first resumes programs as far as they fit: those with a call that waits, then
new ones, then those that act, in each group the one with the fewest tokens first. If the active programs then exceed
``threshold`` of the cache, it pauses those that act, the one with the fewest tokens first, since recomputation grows
with the square of the tokens; then it marks reasoning ones, in the same order, which are paused once their calls have
ended. A new program is active at once if no program is paused and it fits. After ``resume_after_s`` a paused program is
resumed whether it fits or not.

Source: ThunderAgent (arXiv 2602.13692), its scheduler for one backend, with the constants of its released router: 5 s,
256 tokens, 1800 s and the whole cache. Differs: it stands in a proxy, which reads the length of a prompt from its text;
here token counts are exact. The length of the shared prompt is what the prefix cache had of the last program's first
prompt. A program ends when its client says so, or is forgotten as :mod:`benchmarks.baselines.programs` says, where the
original waits for a message. Where no active program has a call, the engine is not left idle: the paused call that
would be resumed first runs. Programs do not move between backends, and tools' own resources are not part of this.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines.programs import PROGRAM_COLUMNS, Program, Programs
from sloserve.core.rows import Rows, State
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, Snapshot


class ThunderAgent(Policy):
    """Serves in order of arrival; holds back programs for which the KV cache has no room, the shortest ones first."""

    needs = PROGRAM_COLUMNS | {"prompt_tokens", "output_tokens"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        threshold: float = 1.0
        """share of the KV cache that active programs may fill"""
        buffer_tokens: int = 256
        """tokens counted for the output to come of each active program"""
        interval_s: float = 5.0
        """seconds between two looks at what is to be paused or resumed"""
        resume_after_s: float = 1800.0
        """seconds after which a paused program is resumed whether it fits or not"""

        def __post_init__(self) -> None:
            check_within(self, 0.0, 1.0, "threshold")
            check_within(self, 0, np.inf, "buffer_tokens", "interval_s", "resume_after_s")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._programs = Programs()
        self._paused: dict[int, float] = {}
        """The time in epoch seconds at which each paused program was paused, by key."""
        self._marked: set[int] = set()
        self._new: list[Program] = []
        self._looked_s = -np.inf

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        program = self._programs.arrived(rows, slot)
        program.tokens = max(int(rows.prompt_tokens[slot]), program.tokens if program.in_flight > 1 else 0)
        if program.calls == 1:
            self._new.append(program)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        tokens = int(rows.prompt_tokens[slot] + rows.output_tokens[slot])
        program = self._programs.finished(rows, slot, tokens, now_s)
        if program.in_flight == 0 and program.key in self._marked:
            self._marked.discard(program.key)
            self._paused[program.key] = now_s

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self._forget()
        capacity = self.settings.threshold * snapshot.engine.capacity_blocks * snapshot.engine.layout.block_size
        others_wait = bool(self._paused)
        self._paused.update((program.key, now_s) for program in self._new)
        for program in self._new:
            since_s = self._paused.pop(program.key)
            if others_wait or self._used() > capacity:
                self._paused[program.key], others_wait = since_s, True
        self._new.clear()
        if self._looked_s == -np.inf:
            self._looked_s = now_s
        if now_s >= self._looked_s + self.settings.interval_s:
            self._looked_s = now_s
            for slot in snapshot.running.tolist():
                program = self._programs.of(snapshot.rows, slot)
                tokens = int(snapshot.rows.prompt_tokens[slot] + snapshot.rows.output_tokens[slot])
                program.tokens = max(program.tokens, tokens)
            self._resume(capacity, now_s)
            self._pause(capacity, now_s)
        rows, waiting = snapshot.rows, snapshot.waiting
        if not waiting.size:
            return Plan.IDENTITY
        in_order = waiting[np.lexsort((rows.seq[waiting], rows.state[waiting] != State.PREEMPTED))]
        keys = [self._programs.of(rows, slot).key for slot in in_order.tolist()]
        # A request that was admitted already keeps its place, whatever has become of its program.
        free = np.array([key not in self._paused for key in keys]) | (rows.state[in_order] == State.PREEMPTED)
        admitted = in_order[free]
        held = sorted(
            zip(in_order[~free].tolist(), np.array(keys)[~free].tolist(), strict=True),
            key=lambda one: self._order(one[1]),
        )
        order = np.array([*admitted.tolist(), *(slot for slot, _ in held)], np.int64)
        return Plan(waiting=order, max_running=max(int(snapshot.running.size + admitted.size), 1))

    def _forget(self) -> None:
        known = {program.key for program in self._programs}
        self._paused = {key: since_s for key, since_s in self._paused.items() if key in known}
        self._marked &= known

    def _used(self) -> float:
        """Return the tokens that active programs are counted with, without those that will be paused."""
        active = [one for one in self._programs if one.key not in self._paused and one.key not in self._marked]
        shared = max(len(active) - 1, 0) * self._programs.shared_tokens
        buffers: float = len(active) * self.settings.buffer_tokens
        return sum(one.tokens for one in active) + buffers - shared

    def _order(self, key: int) -> tuple[int, int, int]:
        """Return the key by which paused programs are resumed."""
        program = self._programs.by_key(key)
        if program is None:
            return 2, 0, key
        group = 2 if program.in_flight == 0 else 1 if program.calls == 1 else 0
        return group, program.tokens, key

    def _resume(self, capacity: float, now_s: float) -> None:
        for key in sorted(self._paused, key=self._order):
            since_s = self._paused.pop(key)
            if self._used() > capacity and now_s - since_s < self.settings.resume_after_s:
                self._paused[key] = since_s

    def _pause(self, capacity: float, now_s: float) -> None:
        active = [one for one in self._programs if one.key not in self._paused and one.key not in self._marked]
        for program in sorted(active, key=lambda one: (one.in_flight > 0, one.tokens, one.key)):
            if self._used() <= capacity:
                return
            if program.in_flight:
                self._marked.add(program.key)
            else:
                self._paused[program.key] = now_s
