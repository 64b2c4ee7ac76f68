"""Niyama (published again as QoServe): deadlines and remaining work in one priority, and eager relegation.

A request's priority is its deadline, plus ``alpha_ms`` for each token of work that is left: its prompt if it has a
first-token target, prompt and output if it has a target for the whole output. With alpha 0 it is earliest deadline
first, with a large one shortest remaining work first. A waiting request that cannot keep its deadline behind the
requests before it is relegated: it is served after all others, and holds up none that can still be in time. No decode
is preempted; the paper's dynamic chunks are the option ``step_budget=true``, which all policies here have.

Source: Goel et al., Niyama, arXiv 2503.22562, Sec. 3 (hybrid prioritisation, eager relegation). Differs: the paper
takes outputs to be as long as the mean of their application plus two deviations, here they are as predicted; its hints
of which requests to relegate first are service classes here, which decide where no target does; a reader's speed (TDS)
counts as its pace in the step budget alone, as TPOT does in the paper.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.decode_first import PREFILL_COLUMNS, uncomputed_tokens
from sloserve.lso.engine_pace import EnginePace, pace_of
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.ordering import TARGET_COLUMNS, ClassRank, plan_by_key, ranked
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, PredictingPolicy, Snapshot

_RELEGATED_S = 1e12
"""Later than any deadline, earlier than none."""


class Niyama(PredictingPolicy):
    """Serves by deadline and remaining work, requests that can still be in time first; never preempts."""

    needs = PREFILL_COLUMNS | LENGTH_COLUMNS | TARGET_COLUMNS | {"arrival_s", "first_token_s", "class_rank"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        alpha_ms: float = 8.0
        """milliseconds by which a token of remaining work moves a deadline; 0 is earliest deadline first"""
        relegate: bool = True
        """whether a request that will be late goes after all others"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            check_within(self, 0.0, 1e6, "alpha_ms")

    @property
    def gives_up(self) -> bool:
        return bool(self.settings.relegate)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine, queued = snapshot.rows, snapshot.engine, snapshot.waiting.size
        slots = np.concatenate((snapshot.waiting, snapshot.running))
        prompt, left = uncomputed_tokens(rows, slots), self._lengths.left(rows, slots)
        first_due = np.where(np.isnan(rows.first_token_s[slots]), rows.arrival_s[slots] + rows.ttft_s[slots], np.nan)
        end_due = rows.arrival_s[slots] + rows.e2e_s[slots]
        alpha_s = self.settings.alpha_ms / 1e3
        key = np.fmin(first_due + alpha_s * prompt, end_due + alpha_s * (prompt + left))
        key = np.where(np.isnan(key), np.inf, key)
        if self.settings.relegate and queued:
            context = rows.prompt_tokens[snapshot.running] + rows.output_tokens[snapshot.running]
            pace = pace_of(engine, snapshot.running.size, int(context.sum()))
            due = np.fmin(first_due, end_due - left * pace.step_s)[:queued]
            late = self._late(snapshot, slots, key, prompt, due - now_s, pace)
            key[:queued] = np.where(late & np.isfinite(key[:queued]), key[:queued] + _RELEGATED_S, key[:queued])
        return plan_by_key(snapshot, key[:queued], key[queued:], class_rank=ClassRank.UNDECIDED)

    def _late(
        self,
        snapshot: Snapshot,
        slots: IntArray,
        key: FloatArray,
        prompt: IntArray,
        time_s: FloatArray,
        pace: EnginePace,
    ) -> BoolArray:
        """Return which waiting requests are late behind the punctual ones before them, ``[len(snapshot.waiting)]``.

        Args:
            snapshot: The engine's state.
            slots: Slots of ``snapshot.waiting``, then of ``snapshot.running``, ``[n]``.
            key: Key of each, ``[n]``; the least is served first.
            prompt: Prompt tokens that each has to compute, ``[n]``.
            time_s: Seconds until its prompt must be computed, nan for any time, ``[n]``.
            pace: Speed of the engine.
        """
        queued = snapshot.waiting.size
        late = np.zeros(queued, np.bool_)
        ahead_s = float(prompt[queued:].sum()) * pace.prompt_token_s
        for place in ranked(snapshot, slots, key, np.isinf(key), ClassRank.UNDECIDED).waiting.tolist():
            taken_s = float(prompt[place]) * pace.prompt_token_s
            late[place] = ahead_s + taken_s > time_s[place]
            if not late[place]:
                ahead_s += taken_s
        return late
