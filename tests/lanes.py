"""Spreads files of tests over processes, so that the cores are busy and a process that dies costs the one test it ran.

xdist's own ``loadfile`` gives the test that ended a process to the next process as well, which ends in turn.

In the order of their names, files that wait (for servers, leases, processes that end) come together, and so do files
that compute. The files are therefore shuffled, in the same way on every machine.
"""

import zlib
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

MOST_DEATHS: Final = 8
"""How many processes may die in one run: more than that is no matter of a few tests."""


LONG: Final = frozenset(
    {
        "tests/docs/test_commands.py",
        "tests/equality/test_multimodal.py",
        "tests/equality/test_pipeline.py",
        "tests/fleet/launcher/test_kept.py",
        "tests/fleet/launcher/test_real_engine.py",
        "tests/fleet/pool/test_ray.py",
        "tests/fleet/run/test_eviction.py",
        "tests/fleet/run/test_processes.py",
        "tests/fleet/run/test_reload_processes.py",
        "tests/sim/model/test_agreement.py",
        "tests/sim/test_experiment.py",
        "tests/upstream/test_vllm_scheduler_suite.py",
        "tests/vllm/test_ending.py",
        "tests/vllm/test_serving.py",
        "tests/vllm/test_waiting.py",
        "tests/vllm/test_watching.py",
    }
)
"""Files that take twenty seconds or more. They are in the first half, so that no process ends long after the others."""


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


def turn_of(file: str) -> float:
    """Return the turn of a file, from 0 to 1."""
    drawn = zlib.crc32(file.encode()) / 2**32
    return drawn / 2 if file in LONG else drawn


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the files; the tests of a file keep their order."""
    items.sort(key=lambda item: turn_of(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes | None:
    """Use it for ``--dist loadfile``."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None
