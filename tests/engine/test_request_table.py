"""The request table of the model engine: what the host pool keeps of a preempted request, until that runs again; and a
request whose arrival could not be counted.
"""

from types import SimpleNamespace
from typing import Any

from sloserve.core.clock import ManualClock
from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import COLUMNS, State
from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.core.stated import StatedSLO
from sloserve.engine.request_table import RequestTable
from sloserve.engine.step_clock import StepClock
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.lso.decode_first import uncomputed_tokens
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.scheduler import ModelScheduler

SLO_OF_ALL = SLO(DEFAULT_CLASSES.default, Targets())
STATED = StatedSLO(SLO_OF_ALL, class_id=0, output_tokens=None)


class PortWithPool(ModelPort):
    """A model engine's port beside a pool that keeps what the test says."""

    kept: int = 0

    def swapped_tokens(self, request: object) -> int:
        return self.kept


class PortWithSteps(ModelPort):
    """A model engine's port whose steps say what they compute, as vLLM's do."""

    def tokens_scheduled(self, step: Any) -> tuple[dict[str, int], int]:
        return step.tokens_of, sum(step.tokens_of.values())


def test_a_request_without_a_row_is_not_taken_for_one_that_is_paused() -> None:
    scheduler = ModelScheduler(
        EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=20, max_model_len=320)
    )
    port = PortWithSteps(scheduler, StepClock(), ManualClock())
    table = RequestTable(frozenset({"computed_tokens", "prompt_tokens"}), port)
    paused = scheduler.requests.add(WorkloadRequest("paused", 0.0, 100, 50, SLO_OF_ALL), 0.0, 50)
    slot = table.add(paused, STATED)
    assert slot is not None
    table.admitted(SimpleNamespace(admitted=[0]))
    scheduler.requests.computed[0] = 100
    scheduler.requests.tokens[0] = 1
    requests: dict[str, Any] = {"paused": paused}
    for _ in range(2):
        table.scheduled(SimpleNamespace(tokens_of={"paused": 1}), requests)
        scheduler.requests.computed[0] += 1
        table.read_running()  # from now on it is followed
    requests["without a row"] = object()
    table.scheduled(SimpleNamespace(tokens_of={"paused": 1}), requests)  # it only waits
    scheduler.requests.computed[0] += 1
    assert table._counts.to_read(table.rows.slots_in(State.RUNNING)).size == 0
    table.scheduled(SimpleNamespace(tokens_of={"without a row": 1}), requests)
    table.read_running()
    assert table.rows.computed_tokens[slot] == scheduler.requests.computed[0] == 103


def test_a_row_says_what_the_pool_keeps_until_the_request_runs_again() -> None:
    scheduler = ModelScheduler(
        EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=20, max_model_len=320)
    )
    port = PortWithPool(scheduler, StepClock(), ManualClock())
    table = RequestTable(frozenset(COLUMNS), port)
    request = scheduler.requests.add(WorkloadRequest("a", 0.0, 100, 50, SLO_OF_ALL), 0.0, 50)
    slot = table.add(request, STATED)
    assert slot is not None
    table.admitted(SimpleNamespace(admitted=[0]))
    scheduler.requests.tokens[0] += 10  # of output
    port.kept = 109

    assert table.preempted(request) == slot
    rows = table.rows
    assert (rows.state[slot], rows.swapped_tokens[slot]) == (State.PREEMPTED, 109)
    assert uncomputed_tokens(rows, table.snapshot(port.facts(0, ())).waiting).tolist() == [0]  # it goes on as a decode

    port.kept = 0  # given up for another, or lost
    assert uncomputed_tokens(rows, table.snapshot(port.facts(0, ())).waiting).tolist() == [110]
    port.kept = 109
    table.preempted(request)
    table.admitted(SimpleNamespace(admitted=[0]))
    assert (rows.state[slot], rows.swapped_tokens[slot]) == (State.RUNNING, 0)


def test_a_policy_that_does_not_read_what_is_swapped_comes_and_goes_while_a_request_is_swapped_out() -> None:
    scheduler = ModelScheduler(
        EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=20, max_model_len=320)
    )
    port = PortWithPool(scheduler, StepClock(), ManualClock())
    table = RequestTable(frozenset(COLUMNS), port)
    requests = [scheduler.requests.add(WorkloadRequest(name, 0.0, 100, 50, SLO_OF_ALL), 0.0, 50) for name in "ab"]
    slots = [table.add(request, STATED) for request in requests]
    table.admitted(SimpleNamespace(admitted=[0, 1]))
    scheduler.requests.tokens[:2] += 10
    port.kept = 109
    for request in requests:
        table.preempted(request)
    slo_of = {"a": STATED, "b": STATED}

    table.keep(frozenset({"prompt_tokens"}), slo_of, 0.0)
    table.read_running()
    assert table.admitted(SimpleNamespace(admitted=[0])).tolist() == slots[:1]
    scheduler.requests.state[0] = State.RUNNING
    port.kept = 73
    table.keep(frozenset(COLUMNS), slo_of, 0.0)
    assert table.rows.swapped_tokens[slots[1]] == 73
    port.kept = 41
    table.read_running()
    assert table.rows.swapped_tokens[slots[1]] == 41, "it is followed again"
    table.admitted(SimpleNamespace(admitted=[1]))
    assert table.rows.swapped_tokens[slots[1]] == 0
