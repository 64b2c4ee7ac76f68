"""Drafts of an engine's decodes: what they bring is learned from each step; how many the next one verifies is chosen.

The choice itself is made in :mod:`sloserve.lso.draft_lengths`. Here it gets the step that it is made for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.kernels.requests import split_running
from sloserve.core.rows import Rows
from sloserve.estimator.drafting import DraftFacts, Drafting
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.decode_first import progress_columns, uncomputed_tokens
from sloserve.lso.draft_lengths import draft_lengths
from sloserve.lso.drafted import DRAFT_COLUMNS
from sloserve.lso.plan import EngineFacts, Plan
from sloserve.lso.step_budget import MOST_PROMPTS


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """How many drafts decodes verify in a step: at most ``most[i]`` of the request in ``slots[i]``."""

    slots: IntArray
    most: IntArray


class DraftControl:
    """The drafts of one engine.

    Args:
        num_classes: Classes of requests.
        num_drafts: Draft tokens that a decode has in a step at most, at least 1.
    """

    def __init__(self, num_classes: int, num_drafts: int) -> None:
        self._drafting = Drafting(num_classes, num_drafts)
        self._decoded: IntArray = np.empty(0, np.int64)
        """``[capacity]``: ``seq`` of the request in a slot that got tokens from the last step, else -1."""

    @property
    def facts(self) -> DraftFacts:
        """What drafts bring, as observed so far."""
        return self._drafting.facts

    def learn_from(self, before: "DraftControl") -> None:
        """Continue with what ``before`` learned, perhaps of requests in other rows."""
        self._drafting = before._drafting

    def learn(self, rows: Rows, slots: IntArray, tokens: IntArray, drafts: IntArray) -> None:
        """Record what a step brought.

        A request that got nothing from the step before has just begun, come back or been paused: its drafts in this
        step are placeholders, from which nothing is learned.

        Args:
            rows: The request table.
            slots: Requests that got tokens, each once, ``[n]``.
            tokens: How many each got, ``[n]``.
            drafts: Draft tokens that the step verified of each, ``[n]``.
        """
        if self._decoded.size != rows.capacity:
            self._decoded = grown(self._decoded, rows.capacity, -1)
        seq = rows.seq[slots]
        goes_on = self._decoded[slots] == seq
        self._decoded.fill(-1)
        self._decoded[slots] = seq
        if not goes_on.all():
            slots, tokens, drafts = slots[goes_on], tokens[goes_on], drafts[goes_on]
        classes = rows.class_id[slots] if "class_id" in rows.kept else np.zeros(slots.size, np.int64)
        promised, accepted = self._drafting.observe(classes, drafts, tokens)
        if DRAFT_COLUMNS <= rows.kept:
            rows.drafts_promised[slots] += promised
            rows.drafts_accepted[slots] += accepted


def choose_drafts(
    rows: Rows,
    served: IntArray,
    plan: Plan,
    engine: EngineFacts,
    now_s: float,
    *,
    by_slack: bool,
    drafts_of: Callable[[IntArray], IntArray],
    first_waiting: Callable[[int], IntArray],
    expected_left: Callable[[IntArray], FloatArray],
) -> Verified | None:
    """Return how many drafts decodes verify in the next step; ``None`` for as many as they have.

    Args:
        rows: The request table, up to date for ``served``.
        served: Slots of the running requests that the step serves.
        plan: What else is planned for it.
        engine: What the engine can do now.
        now_s: Epoch seconds.
        by_slack: Whether targets count, as for :func:`~sloserve.lso.draft_lengths.draft_lengths`.
        drafts_of: Gives the drafts that each of some decodes has for the step.
        first_waiting: Returns the given number of requests that are first in order of admission.
        expected_left: Returns the expected tokens to come of decodes.
    """
    decodes, in_progress, context_tokens = split_running(progress_columns(rows), served)
    if not decodes.size:
        return None
    own = drafts_of(decodes)
    if plan.token_budget is not None:
        prompts = max(int(plan.token_budget) - decodes.size * engine.decode_tokens, 0)
    else:
        room = max(engine.token_budget - decodes.size - int(own.sum()), 0)
        begin = np.concatenate((in_progress, first_waiting(min(engine.free_slots, MOST_PROMPTS))))
        prompts = min(int(uncomputed_tokens(rows, begin).sum()), room)
    beside = StepLoad(prompts, int(prompts > 0), decodes.size, context_tokens + decodes.size, prompts**2)
    most = draft_lengths(rows, decodes, own, expected_left(decodes), engine, beside, now_s, by_slack=by_slack)
    return None if most is None else Verified(decodes, most)


def without_drafts(plan: Plan, engine: EngineFacts, verified: Verified) -> Plan:
    """Return ``plan`` without the tokens of the drafts that are left out.

    They are not for prompts: the time of the step is what counts.
    """
    if plan.token_budget is None:
        return plan
    left_out = int((engine.decode_tokens - 1 - verified.most).sum())
    return replace(plan, token_budget=max(int(plan.token_budget) - left_out, 1))
