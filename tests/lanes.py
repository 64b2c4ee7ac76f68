"""How files of tests are spread over processes, so that a process that dies costs the one test that it ran.

xdist's own ``loadfile`` gives the test that ended a process to the next process as well, which ends in turn.
"""

from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

MOST_DEATHS: Final = 8
"""How many processes may die in one run: more than that is no matter of a few tests."""


class Lanes(LoadFileScheduling):
    """A process runs whole files; what is left of a file whose process has died goes to the next free process."""

    def remove_node(self, node: "WorkerController") -> str | None:
        """Take a process out of the run, and return the test that it died of, if it died."""
        workload = self.assigned_work[node]
        left = {scope: [one for one, is_done in unit.items() if not is_done] for scope, unit in workload.items()}
        died_of = next((tests.pop(0) for tests in left.values() if tests), None)
        for unit in workload.values():
            unit.update(dict.fromkeys(unit, True))
        super().remove_node(node)  # which finds nothing pending, and puts nothing back
        for scope, tests in reversed(left.items()):
            if tests:
                self.workqueue[scope] = dict.fromkeys(tests, False)
                self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _reschedule(self, node: "WorkerController") -> None:
        """Give a process more to do, unless it has just started: it is asked again when it has collected."""
        if node in self.registered_collections:
            super()._reschedule(node)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes | None:
    """Use it for ``--dist loadfile``."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None
