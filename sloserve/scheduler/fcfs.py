"""First come, first served: vLLM's own order, untouched."""

from sloserve.scheduler.policy import Plan, Policy, Snapshot


class FCFS(Policy):
    """Leaves every decision to vLLM. It reads no rows, so it costs nothing unless tenants have shares."""

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan.IDENTITY
