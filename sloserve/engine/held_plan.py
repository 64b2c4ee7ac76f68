"""Reuse of the last plan in the steps that follow it, until the policy makes the next one.

Planning has a budget, so a slow plan is followed by steps without a fresh one. The queues keep the order that the plan
gave them, so a held plan names none. Pauses and limits are set again at each step, adapted to the requests of that
step:

- A pause holds if its request still runs and may be paused, and if at least one other request runs.
- A limit on admission holds while a request waits that the plan kept out. It does not hold for later arrivals alone.
- If the token budget had a token for each request served then, it has one for each request served now.
- Pauses end after ``MAX_PAUSE_AGE_S``, everything else after ``MAX_PLAN_AGE_S``.
"""

from dataclasses import dataclass, replace

from sloserve.core.kernels.requests import any_up_to
from sloserve.core.rows import Rows, State
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot

# Plain numbers: comparing with an enum's member takes several times as long.
_WAITING, _PREEMPTED, _RUNNING = int(State.WAITING), int(State.PREEMPTED), int(State.RUNNING)

MAX_PAUSE_AGE_S = 0.25
"""Seconds within which a fresh plan must confirm a pause; otherwise it ends, before a reader notices.

At the default ``plan_share`` of 5 % a plan that takes 12 ms is followed by the next in time; usual are 0.1 to 2 ms.
"""

MAX_PLAN_AGE_S = 1.0
"""Age in seconds from which on vLLM schedules by itself until the next plan.

Dozens of steps have passed by then, and planning takes above 50 ms at the default ``plan_share``, which is a fault and
no reason to hold the engine to old limits.
"""

MAX_UNEVENTFUL_S = 0.05
"""Seconds after which a policy that plans on events plans again although nothing happened.

The gain that is left for a request changes with time alone.
"""


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """The last plan, and what is needed to reuse it.

    Args:
        plan: The plan as applied, without its preemptions and its order.
        made_s: Monotonic time at which it was made, in seconds.
        last_seq: Highest ``seq`` of the requests that it knew.
        spare_tokens: Whether its token budget had a token for each request that it served.
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
        return cls(
            replace(plan, preempt=NO_SLOTS, running=None, waiting=None), made_s, snapshot.rows.last_seq, spare_tokens
        )

    def without(self, slot: int) -> "HeldPlan":
        """Return the plan without its pause of ``slot``, which is void: the request was preempted or ended."""
        pause = self.plan.pause
        if not pause.size or slot not in pause:
            return self
        return replace(self, plan=replace(self.plan, pause=pause[pause != slot]))

    def now(self, rows: Rows, now_s: float) -> Plan | None:
        """Return the part of the plan that holds for a step at ``now_s``, monotonic; ``None`` if it is too old."""
        plan, age_s = self.plan, now_s - self.made_s
        if plan is Plan.IDENTITY:
            return plan
        if age_s > MAX_PLAN_AGE_S:
            return None
        pause, max_running, token_budget = plan.pause, plan.max_running, plan.token_budget
        if pause.size:
            pause = pause[rows.pausable[pause] & (rows.state[pause] == _RUNNING)]
            if age_s > MAX_PAUSE_AGE_S or pause.size >= rows.count(State.RUNNING):
                pause = NO_SLOTS
        if max_running is not None and not any_up_to(rows.state, rows.seq, self.last_seq, _WAITING, _PREEMPTED):
            max_running = None
        if token_budget is not None and self.spare_tokens:
            token_budget = max(int(token_budget), rows.count(State.RUNNING) - pause.size)
        if pause.size == plan.pause.size and max_running == plan.max_running and token_budget == plan.token_budget:
            return plan
        return replace(plan, pause=pause, max_running=max_running, token_budget=token_budget)
