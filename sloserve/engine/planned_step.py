"""What the planner hands to the scheduler for one step."""

from dataclasses import dataclass, field

from sloserve.engine.draft_control import Verified
from sloserve.engine.port import EngineRequest
from sloserve.scheduler.policy import EngineFacts, Plan


@dataclass(slots=True)
class Step:
    """What a plan asks of the next step.

    Args:
        plan: The order of service, the pauses and the limits.
        preempt: Running requests to preempt before the plan is applied.
        is_fresh: Whether the plan was made for this step.
        engine: What the engine can do in it; ``None`` where that was not asked.
        is_read: Whether the rows of the running requests are up to date, as they are where a snapshot was taken.
        others_s: Seconds since the plan budget started that were spent on other work than the plan.
        plan_s: What a fresh plan costs in virtual time, ``None`` where it is measured.
        planning_s: What all planning for the step costs in virtual time.
        drafts: How many drafts decodes verify in the step; ``None`` for as many as they have.
    """

    plan: Plan
    preempt: list[EngineRequest] = field(default_factory=list)
    is_fresh: bool = False
    engine: EngineFacts | None = None
    is_read: bool = False
    others_s: float = 0.0
    plan_s: float | None = None
    planning_s: float = 0.0
    drafts: Verified | None = None
