"""Limit of the prompt tokens of a step beside its decodes, so that running requests keep their targets.

Every request that decodes waits for the whole step, and prompts make a step long. The slack of each running request
says how long a step it can bear; the budget is what fits into the step that is worth most. Decodes are never cut.

The problem is well posed although a plan is made while the step before it runs: slack counts from the predicted end of
that step, and from the tokens that it will bring; the step is predicted from the chunks that the order of service would
give, each with its prefix; and the budget is derived again at each step from the requests that decode in it, whichever
plan holds.

No paper has it: Sarathi-Serve's budget is one number for a deployment, chosen so that a full step keeps the TPOT.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.requests import places_stated
from sloserve.core.kernels.step_budget import Decoding, any_promised, decoding
from sloserve.core.rows import Rows
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.decode_first import PREFILL_COLUMNS
from sloserve.lso.drafted import DRAFT_COLUMNS, tokens_per_step
from sloserve.lso.lengths import LENGTH_COLUMNS, Lengths
from sloserve.lso.pace import PACE_COLUMNS, pace_s
from sloserve.lso.plan import EngineFacts
from sloserve.lso.prompt_turns import Passing, PromptTurns
from sloserve.lso.prompts_beside_decodes import (
    HEADROOM,
    LEAST_CHUNK,
    LEAST_SHARE,
    PromptsBesideDecodes,
    promise_columns,
    step_contents,
)
from sloserve.lso.standing import Standing

MOST_PROMPTS: Final = 64
"""Waiting prompts that are looked at: what one step can begin, and what recent long steps could have saved."""
SPEND_TOKENS: Final = 64
"""Tokens over which a lead over the promised pace is spent, not at once: the next prompts may come soon."""
ARRIVALS: Final = 64
"""Last requests of which the rate of arriving prompt tokens is taken; with less than a quarter it is not known."""
SPREAD_STEPS: Final = 16
"""Most steps over which prompts are computed where room is short. Half of it gains as much, in virtual time."""
SPREAD_SHARE: Final = 0.125
"""Share of the steps that the decodes still need over which prompts are spread at most where slots are short.

A request that is spread holds a slot without a token. Half and twice the share have the same gain, in virtual time.
"""
_SACRIFICED: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Shares of the running requests that may lose their pace, of which the best is taken."""


class StepBudget:
    """Limit of the prompt tokens of each step; keeps the lengths of outputs, and the tokens that prompts are owed.

    The step has the length that loses the fewest requests. Three kinds can be lost: decodes with a pace that such steps
    would break; prompts with a first token that would come too late at the rate of prefill that is left; and requests
    that arrive while the decodes run, as many as these are (Little's law): the ones with prompts that the rate does not
    keep up with, and of the others the share that loses its pace as the decodes do. Of equals the longest step is
    taken, since long steps compute most.

    What is lost whatever is done does not count: prompts that are late at the full rate, decodes with a first token
    that came too late; these are spared long steps only where no other request pays for it. And a decode is not lost by
    prompts that are computed while it has time left. (Else a pace that cannot be kept beside the prompts that arrive
    holds them up until all of them are late, and late ones count for nothing.)

    Where KV blocks or slots decide how many run, and not prefill, prompts need not be ready at once: they are spread
    over the next steps if none of them becomes late. Then every step computes what the reading of the weights leaves
    for nothing, decodes end sooner, and what they hold is free sooner. They are spread over no more steps than the
    decodes still need, and over an eighth of these where slots are short: KV fills as a prompt is computed, but a slot
    is taken from the first chunk on.

    Whatever is lost, prompts get at least ``LEAST_SHARE`` of the rate of full steps, in chunks of ``LEAST_CHUNK``
    tokens, over any time in which there are prompts to compute; and an aged prompt its full chunk.
    """

    NEEDS: Final = (
        PromptTurns.NEEDS
        | PACE_COLUMNS
        | LENGTH_COLUMNS
        | DRAFT_COLUMNS
        | PREFILL_COLUMNS
        | {"arrival_s", "ttft_s", "own_e2e_s", "first_token_s", "in_flight_tokens", "item_tokens"}
        | {"first_item_tokens", "left_item_tokens"}
    )
    """Columns that the step budget reads."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.prompt_turns = PromptTurns()
        self._owed_tokens = 0.0
        self._last_s: float | None = None
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=ARRIVALS)
        self._arrived_tokens = 0

    def learn_from(self, before: "StepBudget") -> None:
        """Continue with the lengths and the rate of arrivals that ``before`` knew; its rows are lost."""
        self.lengths = before.lengths
        self._arrivals, self._arrived_tokens = before._arrivals, before._arrived_tokens

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        """Record that a request arrived; its row exists."""
        if len(self._arrivals) == ARRIVALS:
            self._arrived_tokens -= self._arrivals[0][1]
        tokens = int(rows.prompt_tokens[slot] - rows.hit_tokens[slot])
        self._arrivals.append((now_s, tokens))
        self._arrived_tokens += tokens

    def finished(self, rows: Rows, slot: int) -> None:
        """Record that a request ended, in whatever way; its row still exists."""
        self.lengths.observe(rows, slot)

    def tokens(
        self,
        rows: Rows,
        running: IntArray,
        waiting: IntArray,
        aged: IntArray,
        engine: EngineFacts,
        now_s: float,
        *,
        admits: int = MOST_PROMPTS,
    ) -> int | None:
        """Return the tokens that the next step may compute, decodes included; ``None`` for the engine's own limit.

        Args:
            rows: The request table, up to date for ``running``.
            running: Slots of the running requests that the step serves, in order of service.
            waiting: Slots of waiting requests, in order of admission; the first ``MOST_PROMPTS`` are looked at.
            aged: Slots of requests that get full chunks.
            engine: What the engine can do now.
            now_s: The present time, in epoch seconds.
            admits: Number of requests of ``waiting`` that the plan admits; the others compute nothing in the next
                steps.
        """
        tokens = self._limited(rows, running, waiting, aged, engine, now_s, admits)
        if tokens is None:
            self.nothing_to_compute()
        return tokens

    def turns(
        self,
        rows: Rows,
        running: IntArray,
        waiting: IntArray,
        stays: IntArray,
        engine: EngineFacts,
        now_s: float,
        standing: Callable[[], Standing | None],
        *,
        admits: int = MOST_PROMPTS,
    ) -> Passing | None:
        """Return which prompts in progress let others pass, see :mod:`sloserve.lso.prompt_turns`.

        Args:
            rows: The request table, up to date for ``running``.
            running: Slots of the running requests that the step serves, in order of service.
            waiting: Slots of waiting requests, in order of admission; the first ``MOST_PROMPTS`` are looked at.
            stays: Slots of requests that let no other pass.
            engine: What the engine can do now.
            now_s: The present time, in epoch seconds.
            standing: Returns the standing of the tenants.
            admits: Number of requests of ``waiting`` that the plan admits.
        """
        contents = step_contents(rows, running, waiting[:MOST_PROMPTS], engine, admits)
        if contents is None:
            return None
        return self.prompt_turns.of_step(rows, contents, stays, engine, self.lengths, now_s, standing)

    def nothing_to_compute(self) -> None:
        """Record a step that limits no prompt: no prompt is owed anything from before it."""
        self._owed_tokens, self._last_s = 0.0, None

    def _limited(
        self,
        rows: Rows,
        running: IntArray,
        waiting: IntArray,
        aged: IntArray,
        engine: EngineFacts,
        now_s: float,
        admits: int,
    ) -> int | None:
        waiting = waiting[:MOST_PROMPTS]
        contents = step_contents(rows, running, waiting, engine, admits)
        if contents is None or not contents.decodes.size:
            return None
        decodes, in_progress, found = contents.decodes, contents.in_progress, contents.found
        no_room = found.startable < waiting.size
        if not len(found):
            return None
        asked = found.slots
        if aged.size and np.isin(asked[: max(in_progress.size, 1)], aged).any():
            return None
        columns = promise_columns(rows)
        is_promised = any_promised(columns, decodes)
        if not (is_promised or no_room):
            return None
        latency, starts_s = engine.step_latency, now_s + engine.busy_s
        beside, most = contents.beside, contents.most
        prompts = PromptsBesideDecodes(found, beside, engine)
        alone_s = latency.step_s(beside)
        full = prompts.load(min(most, prompts.left))
        full_s = latency.step_s(full)
        bears = None
        if is_promised:
            per_step = tokens_per_step(rows, decodes, engine)
            bears = decoding(
                columns,
                decodes,
                left=self._to_come(rows, decodes, starts_s, alone_s / per_step),
                per_step=per_step,
                starts_s=starts_s,
                alone_s=alone_s,
                headroom=HEADROOM,
                spend_tokens=SPEND_TOKENS,
            )
        is_binding = bears is not None and bool(len(bears)) and bears.bearable_s(0) < full_s
        if not (is_binding or no_room):
            return None
        # Where none is to end by a time of its own, its length says nothing.
        left = self.lengths.left(rows, asked) if places_stated(rows.own_e2e_s, asked).size else np.zeros(asked.size)
        found.promise(columns, left=left / tokens_per_step(rows, asked, engine), step_s=alone_s, starts_s=starts_s)
        chosen_s = full_s
        if is_binding and bears is not None:
            chosen_s = _worth_most(prompts, bears, full, full_s, self._arrival_rate(now_s))
        tokens = full.prefill_tokens if chosen_s >= full_s else prompts.within(chosen_s, most)
        if no_room:
            slots_are_short = engine.free_slots <= admits and found.startable == contents.num_heads
            steps = self._spread_steps(rows, decodes, engine, SPREAD_SHARE if slots_are_short else 1.0)
            tokens = min(tokens, prompts.spread(steps, full, full_s, alone_s))
        if tokens >= full.prefill_tokens:
            return None
        tokens = max(tokens, self._owed(full.prefill_tokens, full_s, tokens, now_s))
        # The engine may not be able to end a chunk inside a multimodal item.
        tokens = max(tokens, min(int(rows.item_tokens[asked[0]]), most))
        self._owed_tokens = max(self._owed_tokens - tokens, 0.0)
        return decodes.size * engine.decode_tokens + tokens

    def _to_come(self, rows: Rows, decodes: IntArray, starts_s: float, token_s: FloatArray) -> FloatArray:
        """Return the tokens for which each of ``decodes`` needs time still, ``[n]``.

        Where none has a pace to keep, an output that has a time to end by counts as if it could be in time: if it is
        too long for that, nothing is lost by long steps. With all lengths, the long ones of which hardly any is that
        long hold prompts up, and outputs that would soon end wait behind them. Where a request has a pace to keep, this
        would cost more than it gains.

        Such an output spends at most half of its slack on the prompts that wait now. The other half is for prompts
        that arrive later, which need long steps as well. So the longest step that it bears is the mean of two: the step
        that its time allows for each expected token, and a step of decodes alone. It is computed by counting the output
        as the harmonic mean of its expected tokens and of the most tokens that can be in time. No output becomes
        hopeless by that, since none counts as more than its time allows. In virtual time a quarter of the slack gains
        as much, and a share that falls with the rate of arrivals gains less.

        Args:
            rows: The request table.
            decodes: Slots of the decoding requests, ``[n]``.
            starts_s: Time at which the step starts, in epoch seconds.
            token_s: Seconds that each takes for a token in steps without prompts, ``[n]``.
        """
        left = self.lengths.left(rows, decodes)
        timed = places_stated(rows.own_e2e_s, decodes)
        if timed.size and np.isnan(pace_s(rows, decodes)).all():
            slots = decodes[timed]
            time_s = rows.arrival_s[slots] + rows.own_e2e_s[slots] - starts_s
            in_time = np.maximum(time_s / token_s[timed], 1.0)
            expected = self.lengths.left_within(rows, slots, in_time)
            half_spent = 2.0 * expected * in_time / (expected + in_time)
            most = HEADROOM * in_time * (1.0 - 1e-9)  # rounding makes none hopeless
            left[timed] = np.maximum(expected, np.minimum(half_spent, most))
        return left

    def _spread_steps(self, rows: Rows, decodes: IntArray, engine: EngineFacts, share: float) -> int:
        """Return over how many steps prompts are spread: at most a share of the mean steps that decodes still need.

        Over more steps, a request would hold its slot for longer with its prompt than with its output: with outputs of
        four tokens, most of 64 slots held a prompt that was spread over 16 steps.
        """
        left = self.lengths.left(rows, decodes) / tokens_per_step(rows, decodes, engine)
        return int(min(max(share * float(left.mean()), 1.0), SPREAD_STEPS))

    def _arrival_rate(self, now_s: float) -> float:
        """Return the prompt tokens that arrive per second; 0 if the rate is not known."""
        if len(self._arrivals) * 4 < ARRIVALS:
            return 0.0
        since_s, first = self._arrivals[0]
        return (self._arrived_tokens - first) / max(now_s - since_s, 1e-9)

    def _owed(self, full_tokens: int, full_s: float, planned: int, now_s: float) -> int:
        """Return the tokens that prompts must get in this step for their least share.

        They are at most the tokens of a full step, so that a clock which jumps forward makes one step long and no more.
        """
        if self._last_s is not None:
            self._owed_tokens += LEAST_SHARE * (full_tokens / full_s) * max(now_s - self._last_s, 0.0)
            self._owed_tokens = min(self._owed_tokens, float(full_tokens))
        self._last_s = now_s
        # Where all that is left is less than a chunk, that is the chunk.
        return int(self._owed_tokens) if self._owed_tokens >= max(min(LEAST_CHUNK, full_tokens), planned) else 0


def _worth_most(
    prompts: PromptsBesideDecodes, decoding: Decoding, full: StepLoad, full_s: float, arrival_rate: float
) -> float:
    """Return the length of step that loses the fewest requests, in seconds, see :class:`StepBudget`."""
    full_rate = full.prefill_tokens / full_s
    pending, num_decodes = prompts.left, prompts.decodes.decode_seqs
    first_prefix = prompts.found.prefix(0)

    def losses(step_s: float, rate: float) -> tuple[int, float]:
        """Return the prompts that come late, and all that is lost, less what arrives meanwhile and is good."""
        late = prompts.found.late(rate, full_rate)  # the others are late even if all steps are full
        lost = decoding.lost(step_s=step_s, rate=rate, pending=pending, arrival_rate=arrival_rate)
        kept_up = min(rate / arrival_rate, 1.0) if arrival_rate else 1.0
        good = 1.0 - lost / max(num_decodes - decoding.lost_already, 1)
        return late, late + lost - num_decodes * kept_up * good

    _, fewest = losses(full_s, full_rate)
    best_s, tokens = full_s, 0
    # From the shortest on: where it loses no request, as usual, the others need no look.
    for place in sorted({int(share * len(decoding)) for share in _SACRIFICED}):
        step_s = decoding.bearable_s(place)
        if step_s >= full_s:
            break
        if tokens < full.prefill_tokens:  # else a longer step has room for all of them too
            tokens = prompts.latency.prefill_within(step_s, prompts.decodes, first_prefix)
        rate = max(min(tokens, full.prefill_tokens) / step_s, LEAST_SHARE * full_rate)
        is_enough = rate >= min(arrival_rate, full_rate)
        late, lost = losses(step_s, rate)
        holds_up = late > 0 or not is_enough
        if lost < fewest or (lost == fewest and (best_s < full_s or not holds_up)):
            best_s, fewest = step_s, lost
        if not holds_up:
            break
    return best_s
