"""Sessions with streaming input beside requests that are planned: they hold places and KV that no policy can touch."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.outcome import Outcome

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]

BLOCKS_OF_SESSION = 3


def with_idle_session(engine: Any) -> Any:
    """The engine after a session has had its first answer: it waits for its next input, with its KV."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    params = SamplingParams(max_tokens=1)
    session = Request("session", [2] * (16 * BLOCKS_OF_SESSION), params, None, arrival_time=0.0, resumable=True)
    scheduler = engine.scheduler
    scheduler.add_request(session)
    while session.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
        output = scheduler.schedule()
        token = [] if session.is_prefill_chunk else [1]
        result = ModelRunnerOutput(req_ids=["session"], req_id_to_index={"session": 0}, sampled_token_ids=[token])
        scheduler.update_from_output(output, result)
    return engine


@pytest.mark.parametrize(
    "policy",
    [
        "econo",
        "econo:length=oracle:preempt=false",
        "auto",
        "orca:batch=1",
        "orca:batch=0",
        "srtf:length=oracle",
        "fastserve:batch=1",
        "econo-paper:length=oracle",
        "sa-batches:length=oracle",
        "multires:length=oracle",
        "sync-coupled:length=oracle",
        "andes-parts:watermark=0",
        "edf",
        "priority",
    ],
)
def test_an_engine_with_an_idle_session_is_one_of_a_place_and_its_blocks_less(
    build: Build, request_of: RequestOf, policy: str
) -> None:
    workload = [
        request_of(f"r{i}", 0.01 * i, 20 + 30 * (i % 3), 10 + 17 * (i % 4), e2e_s=2.0 - 0.15 * i, priority=i % 3)
        for i in range(12)
    ]
    small = {"max_model_len": 192, "section": {"aged_share": 0.0}}
    beside = with_idle_session(build(policy, max_num_seqs=3, kv_blocks=15 + BLOCKS_OF_SESSION, **small)).run(workload)
    alone = build(policy, max_num_seqs=2, kv_blocks=15, **small).run(workload)

    assert {r.outcome for r in beside.requests} == {Outcome.COMPLETED}
    for one, other in zip(beside.requests, alone.requests, strict=True):
        assert one.token_times_s.tolist() == other.token_times_s.tolist()


def test_a_limited_step_has_a_token_for_each_decode_beside_a_session(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget counts the decodes that have a row; a session that decodes takes one token more."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from sloserve.lso.step_budget import StepBudget

    monkeypatch.setattr(StepBudget, "tokens", lambda self, rows, running, *others: max(running.size, 2))
    scheduler = build("fcfs:step_budget=true", max_num_seqs=4, kv_blocks=60).scheduler
    for name in ("session", "a", "b"):
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        scheduler.add_request(Request(name, [2], params, None, arrival_time=0.0, resumable=name == "session"))
    for step in range(12):
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        assert step < 3 or sorted(ids) == ["a", "b", "session"]
        index = {request_id: i for i, request_id in enumerate(ids)}
        scheduler.update_from_output(output, ModelRunnerOutput(ids, index, sampled_token_ids=[[1]] * len(ids)))


@pytest.mark.parametrize("set_by_s", [0.0, -3600.0, 3600.0])
def test_the_next_input_of_a_session_arrives_now_by_whatever_clock(build: Build, set_by_s: float) -> None:
    """What has no row is served in the order of arrival, among requests whose times are of the steady clock."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    engine = with_idle_session(build("edf"))
    scheduler, clock = engine.scheduler, engine._clock
    clock.advance_to(clock.now_s() + 10.0)
    clock.set_wall(clock.now_s() + set_by_s)
    params = SamplingParams(max_tokens=1)
    scheduler.add_request(Request("session", [2], params, None, arrival_time=clock.now_s(), resumable=True))
    assert scheduler.requests["session"].arrival_time == pytest.approx(scheduler._clock.now_s(), abs=1e-3)
