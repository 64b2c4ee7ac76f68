"""First come, first served: vLLM's own order, untouched."""

from sloserve.scheduler.policy import Plan, Policy, Snapshot


class FCFS(Policy):
    """Leaves every decision to vLLM; keeps no rows, so it costs nothing."""

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan.IDENTITY
