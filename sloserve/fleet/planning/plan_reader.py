"""Reads the plan in force again and again: its text, of 400 kB for 1,000 instances, only when another is in force."""

from sloserve.fleet.contract.plan_in_force import PlanInForce, plan_of
from sloserve.fleet.store.members import Members
from sloserve.fleet.store.records import StoredPlan


class PlanReader:
    """The plan in force, as one member reads it; for one thread at a time.

    Args:
        members: Members of the store.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self.stored: StoredPlan | None = None
        """The plan as it was read last; ``None`` before the first."""
        self._plan: PlanInForce | None = None

    def read(self) -> PlanInForce | None:
        """Return the plan in force, ``None`` if there is none or another version wrote it; raises StoreError."""
        stored = self._members.plan(self.stored)
        if stored is not self.stored:
            self.stored, self._plan = stored, None if stored is None else plan_of(stored.plan)
        return self._plan
