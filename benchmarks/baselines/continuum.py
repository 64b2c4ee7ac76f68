"""Continuum with a fixed time to live: the KV of a call that ended is kept some seconds for its program's next call.

Waiting calls are admitted in this order: preempted ones; calls of programs whose KV is kept; then by the arrival of the
program's first call. A call that finds no room stops those behind it. KV is kept until the program's next call is
admitted, until ``ttl_s`` seconds are over and no call of the program waits, or until the program ends. With
``gives_way`` KV is given up where a call finds no room otherwise.

Source: Continuum (arXiv 2511.02230), Algorithm 1, Sec. 4.3 and, for ``gives_way``, Sec. 5.2; the fixed time is that of
Sec. 4.2 for a start without records, 2 s in the released code. Differs: the original holds the blocks themselves, which
no policy can. Here as many blocks are left free as the kept KV takes. A prefix cache reuses first what was free for the
longest time, so that it reuses the kept blocks last. What follows from this: decodes that grow may take kept blocks,
where the original preempts a request; with ``gives_way`` the oldest KV goes first, where the original gives up that of
the program that came last; and where nothing runs, one call is admitted even if its room was to be left free, where the
original waits for the time to be over. The prompt that all programs share counts once, as far as the last program's
first prompt hit it. Tools are not told apart, and the time to live is not learned: this part of the paper is left out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines.programs import PROGRAM_COLUMNS, Program, Programs
from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows, State
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, Snapshot


@dataclass(slots=True)
class _Kept:
    """KV of a program that is kept.

    Args:
        until_s: Time in epoch seconds at which it is given up, if no call of the program waits then.
        tokens: Tokens of which KV is kept.
    """

    program: Program
    until_s: float
    tokens: int


class Continuum(Policy):
    """Serves programs in order of arrival; leaves room for the KV of calls that ended a moment ago."""

    needs = PROGRAM_COLUMNS | {"prompt_tokens", "output_tokens"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        ttl_s: float = 2.0
        """seconds for which KV is kept after a call"""
        gives_way: bool = False
        """whether kept KV is given up where a call finds no room otherwise"""

        def __post_init__(self) -> None:
            check_within(self, 0, np.inf, "ttl_s")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._programs = Programs()
        self._kept: dict[int, _Kept] = {}  # by key of the program, the latest last

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._programs.arrived(rows, slot)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        tokens = int(rows.prompt_tokens[slot] + rows.output_tokens[slot])
        program = self._programs.finished(rows, slot, tokens, now_s)
        self._kept.pop(program.key, None)
        if self._programs.by_key(program.key) is program and not rows.aborted[slot]:
            self._kept[program.key] = _Kept(program, now_s + self.settings.ttl_s, tokens)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, waiting, running = snapshot.rows, snapshot.waiting, snapshot.running
        for slot in running.tolist():  # its next call was admitted
            self._kept.pop(self._programs.of(rows, slot).key, None)
        programs = [self._programs.of(rows, slot) for slot in waiting.tolist()]
        queued = {program.key for program in programs}
        self._kept = {key: one for key, one in self._kept.items() if one.until_s > now_s or key in queued}
        if not waiting.size:
            return Plan.IDENTITY
        order = np.lexsort(
            (
                rows.seq[waiting],
                np.array([program.first_s for program in programs]),
                np.array([program.key not in self._kept for program in programs]),
                rows.state[waiting] != State.PREEMPTED,
            )
        )
        in_order = waiting[order]
        admitted = self._admitted(snapshot, in_order, [programs[place] for place in order.tolist()])
        return Plan(waiting=in_order, max_running=max(int(running.size) + admitted, 1))

    def _admitted(self, snapshot: Snapshot, order: IntArray, programs: list[Program]) -> int:
        """Return how many of ``order``, waiting calls of ``programs``, may be admitted beside the KV that is kept."""
        rows, engine = snapshot.rows, snapshot.engine
        if self.settings.gives_way:
            return engine.free_slots
        block_size = engine.layout.block_size
        shared = self._programs.shared_tokens // block_size
        kept = {key: max(blocks_of(one.tokens, block_size) - shared, 0) for key, one in self._kept.items()}
        needed = engine.layout.to_admit(rows.prompt_tokens[order] + rows.output_tokens[order])
        if snapshot.running.size:  # they hold the prompt that all share
            needed = np.maximum(needed - shared, 0)
        room, left_free = engine.admission_blocks, sum(kept.values()) + (shared if kept else 0)
        for place, program in enumerate(programs):
            left_free -= kept.pop(program.key, 0)
            room -= int(needed[place])
            if room < left_free:
                return place
        return len(programs)
