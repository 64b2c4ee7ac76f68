"""Closed loops: requests that follow others arrive when they must, hit what they must, and none is lost."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.closed_loop import Source, run_closed_loop
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import summarize
from tests.properties.test_conservation import MODEL_LEN, random_workload

BLOCK = 16
SLO = DEFAULT_CLASSES.slo(None, Targets(ttft_s=1.0))


class OpenLoop(Source):
    """Requests that follow no other."""

    def __init__(self, requests: Iterable[WorkloadRequest]) -> None:
        self.requests = requests

    def first(self) -> Iterable[WorkloadRequest]:
        return self.requests

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        return []


@dataclass
class Chains(Source):
    """Tasks of ``calls`` calls; each prompt repeats the prompt and the output before, and adds a tool's result."""

    tasks: int = 1
    calls: int = 4
    tool_s: float = 0.75
    gap_s: float = 0.0
    prompt_tokens: int = 5 * BLOCK
    patience_s: float = math.inf
    over: list[tuple[str, Outcome, float]] = field(default_factory=list)

    def call(self, task: int, i: int, arrival_s: float, ids: tuple[int, ...]) -> WorkloadRequest:
        ids += tuple(range(1000 * (task + 1) + 100 * i, 1000 * (task + 1) + 100 * i + self.prompt_tokens // BLOCK))
        return WorkloadRequest(
            f"t{task}.{i}", arrival_s, len(ids) * BLOCK, 2 * BLOCK, SLO, prefix_ids=ids, prefix_block_tokens=BLOCK
        )

    def first(self) -> Iterable[WorkloadRequest]:
        return [self.call(task, 0, self.gap_s * task, ()) for task in range(self.tasks)]

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        self.over.append((request.request_id, outcome, now_s))
        task, i = map(int, request.request_id.removeprefix("t").split("."))
        if outcome is not Outcome.COMPLETED or i + 1 == self.calls:
            return []
        return [self.call(task, i + 1, now_s + self.tool_s, request.prefix_ids + (OUTPUT_ID,) * 2)]

    def leaves_s(self, request: WorkloadRequest) -> float:
        return request.arrival_s + self.patience_s


SETTINGS = EngineSettings(400, max_num_batched_tokens=512, max_model_len=4096, enable_prefix_caching=True)


def engine(policy: str | None = None, settings: EngineSettings = SETTINGS) -> ModelEngine:
    config = None if policy is None else {"sloserve": {"policy": policy}}
    return ModelEngine(settings, load_profile("h100-llama3-8b"), config)


def assert_same(ours: RunLog, theirs: RunLog) -> None:
    assert np.array_equal(ours.steps.end_s, theirs.steps.end_s)
    assert np.array_equal(ours.steps.scheduled_tokens, theirs.steps.scheduled_tokens)
    for mine, other in zip(ours.requests, theirs.requests, strict=True):
        assert (mine.request, mine.outcome, mine.stages) == (other.request, other.outcome, other.stages)
        assert (mine.num_preemptions, mine.cached_tokens) == (other.num_preemptions, other.cached_tokens)
        assert np.array_equal(mine.token_times_s, other.token_times_s)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "edf", "auto"])
def test_an_open_loop_is_served_step_by_step_as_in_an_open_run(policy: str | None) -> None:
    workload = random_workload(np.random.default_rng(3))
    settings = EngineSettings(14, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=MODEL_LEN)
    open_run = engine(policy, settings).run(workload)
    backwards = sorted(workload, key=lambda r: -r.arrival_s)  # requests that arrive together stay in their order
    assert backwards != workload and len(open_run.requests) > 10
    assert_same(run_closed_loop(engine(policy, settings), OpenLoop(backwards)), open_run)


def test_a_call_arrives_its_tools_time_after_the_call_before_ended_and_hits_all_that_it_repeats() -> None:
    source = Chains(tasks=2, gap_s=0.01)
    log = run_closed_loop(engine(), source)
    of = {r.request.request_id: r for r in log.requests}
    assert [r.request.arrival_s for r in log.requests] == sorted(r.request.arrival_s for r in log.requests)
    assert len(of) == len(source.over) == 8 and {r.outcome for r in log.requests} == {Outcome.COMPLETED}
    record = summarize(log, policy="stock", seed=0, rps=1.0)
    assert (record["completed"], record["lost"]) == (8, 0)
    for task in range(2):
        calls = [of[f"t{task}.{i}"] for i in range(4)]
        assert calls[0].cached_tokens == 0
        for before, call in zip(calls, calls[1:], strict=False):
            assert before.finish_s is not None
            assert call.request.arrival_s == before.finish_s + source.tool_s
            # The newest token of an output has no KV, so the block that it ends is not full.
            with_kv = before.request.prompt_tokens + before.request.output_tokens - 1
            assert call.cached_tokens == with_kv // BLOCK * BLOCK == before.request.prompt_tokens + BLOCK


@pytest.mark.slow
def test_the_same_source_gives_the_same_run() -> None:
    tight = replace(SETTINGS, kv_blocks=40, max_model_len=640)
    runs = [run_closed_loop(engine("auto", tight), Chains(tasks=6, gap_s=0.02, tool_s=0.05)) for _ in range(2)]
    assert_same(*runs)


def test_a_request_that_follows_does_not_wait_for_one_that_was_given_before_and_arrives_later() -> None:
    """Let the first call end while the engine is idle until the second task, 100 s away."""
    log = run_closed_loop(engine(), Chains(tasks=2, gap_s=100.0, tool_s=1.0))
    waits_s = [r.stages.waiting_s for r in log.requests if r.stages is not None]
    assert waits_s == pytest.approx([0.0] * 8, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "auto"])
def test_a_client_that_leaves_aborts_its_request_and_its_task_ends_there(policy: str | None) -> None:
    tight = replace(SETTINGS, kv_blocks=40, max_model_len=640, max_num_seqs=2)
    source, one = Chains(tasks=12, gap_s=0.02, tool_s=0.05, patience_s=0.5), engine(policy, tight)
    log = run_closed_loop(one, source)
    outcomes = {request_id: outcome for request_id, outcome, _ in source.over}
    assert outcomes == {r.request.request_id: r.outcome for r in log.requests}
    assert set(outcomes.values()) == {Outcome.COMPLETED, Outcome.ABORTED}
    for r in log.requests:
        left_s = r.request.arrival_s + source.patience_s
        assert not (r.token_times_s > left_s).any()
        if r.outcome is Outcome.ABORTED:
            assert (r.request.request_id, Outcome.ABORTED, left_s) in source.over
            task, i = r.request.request_id.split(".")
            assert f"{task}.{int(i) + 1}" not in outcomes
    assert one.kv_used == 0.0


def test_a_client_may_leave_before_its_request_has_reached_the_front_end() -> None:
    source = Chains(tasks=3, gap_s=1.0, patience_s=0.0)
    log = run_closed_loop(engine(), source)
    assert source.over == [(f"t{i}.0", Outcome.ABORTED, float(i)) for i in range(3)]
    assert [r.outcome for r in log.requests] == [Outcome.ABORTED] * 3


def test_a_source_is_notified_of_a_refusal() -> None:
    """Refuse the third prompt of each task, which is longer than the context."""
    source = Chains(tasks=2, gap_s=0.5, prompt_tokens=160 * BLOCK // 10)
    log = run_closed_loop(engine(None, replace(SETTINGS, max_model_len=45 * BLOCK)), source)
    outcomes = {r.request.request_id: r.outcome for r in log.requests}
    assert outcomes == {
        f"t{task}.{i}": Outcome.REJECTED if i == 2 else Outcome.COMPLETED for task in range(2) for i in range(3)
    }
    assert sum(outcome is Outcome.REJECTED for _, outcome, _ in source.over) == 2


def test_a_source_that_repeats_an_id_or_goes_back_in_time_is_an_error() -> None:
    request = WorkloadRequest("r", 1.0, 10, 2, SLO)
    with pytest.raises(ValueError, match="request r was given twice"):
        run_closed_loop(engine(), OpenLoop([request, request]))
    with pytest.raises(ValueError, match="t0.1 arrives at .* before the time of the run"):
        run_closed_loop(engine(), Chains(tool_s=-0.001))


@pytest.mark.vllm
@pytest.mark.parametrize("policy", [None, "auto"])
def test_vllms_scheduler_serves_a_closed_loop_as_the_model_does(policy: str | None) -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    tight = replace(SETTINGS, kv_blocks=60, max_model_len=640, max_num_seqs=4)
    config = None if policy is None else {"sloserve": {"policy": policy}}
    real = VirtualEngine(tight, load_profile("h100-llama3-8b"), config)
    logs = [
        run_closed_loop(one, Chains(tasks=8, gap_s=0.02, tool_s=0.05, patience_s=1.0))
        for one in (real, engine(policy, tight))
    ]
    assert_same(*logs)
    assert any(r.cached_tokens for r in logs[0].requests)
    assert {r.outcome for r in logs[0].requests} == {Outcome.COMPLETED, Outcome.ABORTED}
    assert policy or any(r.num_preemptions for r in logs[0].requests)
