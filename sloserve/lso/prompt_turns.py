"""Order of the prompts of a step: a prompt that has begun lets others pass that would otherwise be late.

vLLM computes the prompts that it has begun before it begins others. A prompt of 30,000 tokens so takes whole steps for
a second or more, in which no other request has its first token, whatever the policy's order of admission. Here such a
prompt skips the steps in which a shorter prompt needs its turn. It keeps its KV and its slot, so that all it loses is
time.

The prompts of a step are jobs for one machine: first the prompts in progress, in order of service, then the waiting
prompts that can start, in order of admission. Each takes its tokens at the rate of a full step, and has the time until
its first token is due, or until its output has to begin for a deadline. Where a prompt would be late in its place and
in time further ahead, prompts in progress before it go behind it, the last first, until it is in time, if that is
possible and each of them can afford it:

- it is in time behind the other prompt, too, with ``HEADROOM``; or
- it has no target, or is late in any case, and neither is its class more urgent than the other's nor its tenant on a
  lower level of shares.

The step then computes the prompts that pass and no others: a step filled up with further prompts would begin more and
more of them. The order of the running requests stays, which is vLLM's order of victims too. Aged and promised requests,
and requests that no plan may pause, let no other pass. Waiting prompts keep their order. Where vLLM limits the chunk of
a prompt (``long_prefill_token_threshold``), prompts share a step already, and none waits for another.

While prompts in progress wait, they still get at least ``LEAST_SHARE`` of the time, in full steps, so that none holds
KV for ever without being computed. A request that was to begin first and was not admitted (for lack of an adapter, say)
is waited for no longer.

No paper has it. Niyama (Sec. 3) orders all prompts by deadline at each step, and changes the order of admission by that
as well; here the policy decides on that order, and only prompts in progress move.
"""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.kernels.requests import places_stated
from sloserve.core.rows import Rows
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.drafted import tokens_per_step
from sloserve.lso.lengths import Lengths
from sloserve.lso.plan import EngineFacts
from sloserve.lso.prompts_beside_decodes import (
    HEADROOM,
    LEAST_SHARE,
    PromptsBesideDecodes,
    StepContents,
    promise_columns,
)
from sloserve.lso.standing import Standing

MOST_IN_PROGRESS: Final = 16
"""Prompts in progress among which turns are given; more of them are short, or share their steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """Prompts in progress that let others pass in the next step.

    Args:
        held_back: Slots of the prompts, which get nothing of the step.
        tokens: Prompt tokens of the prompts that pass, which are all that the step computes.
        first: ``seq`` of the request that begins first; ``None`` if that is one in progress.
    """

    held_back: IntArray
    tokens: int
    first: int | None


class PromptTurns:
    """Decides at each step which prompts in progress let others pass, and keeps what these are owed."""

    NEEDS: Final = frozenset({"class_rank", "account", "ttft_s", "own_e2e_s"})
    """Columns that this class reads, beside the columns of the step budget."""

    def __init__(self) -> None:
        self._owed_s = 0.0
        self._held_at_s: float | None = None  # time of the last call if it held prompts back
        self._awaited: deque[int] = deque(maxlen=64)  # ``seq`` of waiting requests that were to begin first

    def of_step(
        self,
        rows: Rows,
        contents: StepContents,
        stays: IntArray,
        engine: EngineFacts,
        lengths: Lengths,
        now_s: float,
        standing: Callable[[], Standing | None],
    ) -> Passing | None:
        """Return which prompts in progress let others pass; ``None`` for none.

        Args:
            rows: The request table, up to date for the running requests.
            contents: What the next step can serve.
            stays: Slots of requests that let no other pass.
            engine: What the engine can do now.
            lengths: Lengths of outputs, for deadlines.
            now_s: The present time, in epoch seconds.
            standing: Returns the standing of the tenants; called only if a prompt would be late.
        """
        held_at_s, self._held_at_s = self._held_at_s, None
        found, begun = contents.found, contents.in_progress.size
        if not 0 < begun <= MOST_IN_PROGRESS or len(found) < 2 or engine.chunk_tokens is not None:
            return None
        slots = found.slots
        if not (places_stated(rows.ttft_s, slots).size or places_stated(rows.own_e2e_s, slots).size):
            return None
        ends = np.array([found.end(place) for place in range(len(found))])
        need_s, full_s = _needs(PromptsBesideDecodes(found, contents.beside, engine), ends, contents.most)
        if not full_s:
            return None
        slack_s = self._slack_s(rows, contents, engine, lengths, now_s)
        is_late = (slack_s >= need_s) & (slack_s < np.cumsum(need_s))
        seqs = rows.seq[slots]
        is_late[begun:] &= ~np.isin(seqs[begun:], self._awaited)
        endangered = np.flatnonzero(is_late)
        if not endangered.size:
            return None
        may_wait = np.arange(slots.size) < begun
        may_wait[:begun] &= rows.pausable[slots[:begun]] & np.isnan(rows.first_from_s[slots[:begun]])
        may_wait &= ~np.isin(slots, stays)
        stand = standing()
        level = None if stand is None else stand.levels(rows.account[slots])
        level = np.zeros(slots.size, np.int64) if level is None else level
        found_order = let_pass(need_s, slack_s, endangered, may_wait, level, rows.class_rank[slots])
        if found_order is None:
            return None
        order, held = found_order
        first = None if order[0] < begun else int(seqs[order[0]])
        held_s = 0.0 if held_at_s is None else min(max(now_s - held_at_s, 0.0), full_s)
        if first in self._awaited or self._is_owed(held_s, full_s):
            return None
        self._held_at_s = now_s
        passing = order[: int(np.flatnonzero(np.isin(order, held))[0])]
        tokens = np.diff(ends, prepend=0)
        return Passing(slots[held], int(tokens[passing].sum()), first)

    def begins(self, passing: Passing) -> None:
        """Record that the next step has tokens for the first request that passes, which is waited for only once."""
        if passing.first is not None:
            self._awaited.append(passing.first)

    def _slack_s(
        self, rows: Rows, contents: StepContents, engine: EngineFacts, lengths: Lengths, now_s: float
    ) -> FloatArray:
        """Return the seconds from the start of the step on within which each prompt has to be computed, ``[n]``."""
        found, slots = contents.found, contents.found.slots
        left = np.zeros(slots.size)
        if places_stated(rows.own_e2e_s, slots).size:
            left = lengths.left(rows, slots) / tokens_per_step(rows, slots, engine)
        beside = contents.beside if contents.decodes.size else StepLoad(decode_seqs=1, decode_context_tokens=1)
        alone_s = engine.step_latency.step_s(beside)
        found.promise(promise_columns(rows), left=left, step_s=alone_s, starts_s=now_s + engine.busy_s)
        return found.slack_s

    def _is_owed(self, held_s: float, full_s: float) -> bool:
        """Return whether the prompts in progress get this step, which they are owed for the time that they waited."""
        self._owed_s += LEAST_SHARE * held_s
        if self._owed_s < full_s:
            return False
        self._owed_s = 0.0
        return True


def _needs(prompts: PromptsBesideDecodes, ends: IntArray, most: int) -> tuple[FloatArray, float]:
    """Return the seconds that each prompt takes in full steps, ``[n]``, and the seconds of the next full step.

    A prompt longer than a step takes steps with the pairs of tokens that its chunks attend to in the mean; they grow
    with what is computed of it. Both results are 0 if the next step computes nothing.

    Args:
        prompts: The prompts.
        ends: Prompt tokens up to the end of each, ``[n]``.
        most: Prompt tokens that a step can compute at most.
    """
    full = prompts.load(min(most, int(ends[-1])))
    tokens = np.diff(ends, prepend=0)
    if not full.prefill_tokens:
        return np.zeros(tokens.size), 0.0
    latency, beside = prompts.latency, prompts.decodes
    full_s = latency.step_s(full)
    need_s = tokens * (full_s / full.prefill_tokens)
    for place in np.flatnonzero(tokens > most).tolist():
        before = prompts.found.load(int(ends[place - 1]))[2] if place else 0
        steps = float(tokens[place]) / most
        pairs = int((prompts.found.load(int(ends[place]))[2] - before) / steps)
        load = StepLoad(most, 1, beside.decode_seqs, beside.decode_context_tokens, pairs)
        need_s[place] = max(need_s[place], steps * latency.step_s(load))
    return need_s, full_s


def let_pass(
    need_s: FloatArray,
    slack_s: FloatArray,
    endangered: IntArray,
    may_wait: BoolArray,
    level: IntArray,
    rank: IntArray,
) -> tuple[IntArray, IntArray] | None:
    """Return an order of prompts in which more of them are in time, and which of them went behind others for that.

    The result is ``None`` if nothing changes.

    Args:
        need_s: Seconds that each prompt takes, in order of service, ``[n]``.
        slack_s: Seconds within which each has to be computed, nan for no target, ``[n]``.
        endangered: Places of prompts that are late in their place, and would be in time at the front, ascending.
        may_wait: Whether each may let others pass, ``[n]``.
        level: Level of each request's tenant, ``[n]``; lower levels come first.
        rank: Rank of each request's class, ``[n]``; lower ranks are more urgent.
    """
    order = list(range(need_s.size))
    needs, slacks, waits = need_s.tolist(), slack_s.tolist(), may_wait.tolist()
    went_behind: set[int] = set()
    for passing in endangered.tolist():
        at = order.index(passing)
        ends = list(itertools.accumulate(needs[one] for one in order[: at + 1]))
        in_place_s, slack = ends[at], slacks[passing]
        behind: list[int] = []
        reached_s = in_place_s
        for place in range(at - 1, -1, -1):
            if reached_s <= slack:
                break
            other = order[place]
            if not waits[other]:
                continue
            # Behind the passing prompt it ends when that one would have ended in its place, or earlier.
            in_time_behind = HEADROOM * slacks[other] >= in_place_s
            late_anyway = not slacks[other] >= ends[place]  # nan too
            comes_first = rank[passing] > rank[other] or level[passing] > level[other]
            if in_time_behind or (late_anyway and not comes_first):
                behind.append(other)
                reached_s -= needs[other]
        if behind and reached_s <= slack:
            moved = set(behind)
            went_behind |= moved
            stay = [one for one in order[:at] if one not in moved]
            order[: at + 1] = [*stay, passing, *reversed(behind)]
    return (np.array(order, np.int64), np.array(sorted(went_behind), np.int64)) if went_behind else None
