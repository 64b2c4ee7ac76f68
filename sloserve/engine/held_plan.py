"""A plan that serves further steps until the next one is made: what of it still holds.

Planning has a budget, so a slow plan is followed by steps without a fresh one. Queues keep the order that it wrote;
pauses and limits are set anew at each step, and follow from the requests of that step:

- Who is paused runs, may be paused, and is not all that run.
- A limit on admission holds as long as somebody waits whom the plan kept out. It knew nothing of who came since.
- A token budget that had a token for each who was served has one for each who is served now.
- Pauses end after ``MAX_PAUSE_AGE_S``, all else after ``MAX_PLAN_AGE_S``.
"""

from dataclasses import dataclass, replace

from sloserve.core.rows import Rows, State
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot

MAX_PAUSE_AGE_S = 0.25
"""A pause is confirmed by a fresh plan within this time, or ends: longer, a reader notices. At the default
``plan_share`` of 5 % a plan that takes 12 ms is followed by the next in time; usual are 0.1 to 2 ms."""

MAX_PLAN_AGE_S = 1.0
"""Then vLLM schedules by itself until the next plan: dozens of steps have passed, and planning takes above 50 ms at the
default ``plan_share``, which is a fault and no reason to hold the engine to old limits."""


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """plan: what was carried out, evictions aside. made_s: when, monotonic. last_seq: of the requests it knew.
    spare_tokens: whether its token budget had a token for each request that was served.
    """

    plan: Plan = Plan.IDENTITY
    made_s: float = 0.0
    last_seq: int = -1
    spare_tokens: bool = False

    @classmethod
    def of(cls, plan: Plan, snapshot: Snapshot, made_s: float) -> "HeldPlan":
        if plan is Plan.IDENTITY:
            return cls()
        served = snapshot.running.size - plan.preempt.size - plan.pause.size
        spare_tokens = plan.token_budget is not None and plan.token_budget >= served
        return cls(replace(plan, preempt=NO_SLOTS), made_s, snapshot.rows.last_seq, spare_tokens)

    def without(self, slot: int) -> "HeldPlan":
        """The same for all but ``slot``, whose request runs no more; another, or it again, is not meant by the plan."""
        pause = self.plan.pause
        if not pause.size or slot not in pause:
            return self
        return replace(self, plan=replace(self.plan, pause=pause[pause != slot]))

    def now(self, rows: Rows, now_s: float) -> Plan | None:
        """What of it holds for a step at ``now_s``, monotonic; ``None`` if it is too old."""
        plan, age_s = self.plan, now_s - self.made_s
        if plan is Plan.IDENTITY:
            return plan
        if age_s > MAX_PLAN_AGE_S:
            return None
        running = rows.slots_in(State.RUNNING)
        pause = plan.pause[rows.pausable[plan.pause] & (rows.state[plan.pause] == State.RUNNING)]
        if age_s > MAX_PAUSE_AGE_S or pause.size >= running.size:
            pause = NO_SLOTS
        max_running, token_budget = plan.max_running, plan.token_budget
        if max_running is not None:
            waiting = rows.slots_in(State.WAITING, State.PREEMPTED)
            if not (rows.seq[waiting] <= self.last_seq).any():
                max_running = None
        if token_budget is not None and self.spare_tokens:
            token_budget = max(int(token_budget), running.size - pause.size)
        return replace(plan, pause=pause, max_running=max_running, token_budget=token_budget)
