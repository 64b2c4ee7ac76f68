"""Progress of a starting fleet for its operator: one line for each event."""

from collections.abc import Callable, Sequence

from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import InstanceReport, agent_report
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.store.records import AgentRecord

_WORDS = {
    Phase.EMPTY: "is empty",
    Phase.SERVING: "serves {}",
    Phase.DRAINING: "switches to {}: running requests end",
    Phase.SWITCHING: "loads {}",
    Phase.FAILED: "has lost the engine of {}, and starts another",
}


class Progress:
    """Reports how the instances of a fleet start.

    Args:
        say: Prints a line.
    """

    def __init__(self, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._say = say
        self._awaited = dict(fleet.active)
        self._instances = {name for name, _ in fleet.instances}
        self._seen: dict[str, tuple[Phase, str | None]] = {}

    def look(self, members: Sequence[AgentRecord]) -> bool:
        """Print what is new, and return whether the fleet is ready.

        It is ready when all instances of the file are there, or any if the file has none, and every instance that
        begins with a model serves.
        """
        reports = [report for row in members if (report := agent_report(row.state)) is not None]
        for instance in (one for report in reports for one in report.instances):
            self._say_phase(instance)
        there = bool(self._seen) and self._instances <= self._seen.keys()
        return there and all(self._seen[name][0] is Phase.SERVING for name in self._awaited)

    def _say_phase(self, instance: InstanceReport) -> None:
        now = instance.phase, instance.active
        if self._seen.get(instance.name) == now:
            return
        self._seen[instance.name] = now
        if instance.phase is not Phase.EMPTY or not self._awaited:
            self._say(f"{instance.name} {_WORDS[instance.phase].format(instance.active)}")
