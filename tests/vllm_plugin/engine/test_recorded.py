"""A recording says what the engine did, and being recorded changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RunLog
from sloserve.engine.recording.events import HASH_BYTES, STOP, STRETCH_TOKENS, PolicyBegan
from sloserve.engine.recording.reading import Recording, read_recording, recordings
from sloserve.engine.recording.segments import read_segment
from sloserve.sim.recorded_plans import check_plans
from sloserve.vllm_plugin.engine.recorded import Recorded

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def recorded(engine: Any, work: list[Any], folder: Path) -> tuple[RunLog, Recording]:
    scheduler = engine.scheduler
    recording = Recorded(scheduler, folder, "run", 1 << 22, scheduler._clock)
    scheduler.record(recording)
    log = engine.run(work)
    recording.close()
    assert scheduler.slo_counters["internal_errors"] == 0
    ((_, paths),) = recordings(folder).items()
    return log, read_recording(paths)


@pytest.mark.parametrize("policy", ["fcfs", "edf", "auto", "andes"])
def test_it_holds_what_the_log_of_the_run_holds(
    build: Build, request_of: RequestOf, tmp_path: Path, policy: str
) -> None:
    work = [
        request_of(f"r{i}", 0.02 * (i // 3), 10 + 37 * i % 110, 5 + 11 * i % 60, e2e_s=None if i % 4 else 1.0 + i % 7)
        for i in range(60)
    ]
    log, found = recorded(build(policy, kv_blocks=24), work, tmp_path)
    base_s = min(one.at_s for one in found.arrived.values()) - work[0].arrival_s
    assert list(found.arrived) == list(range(1, 61)) and len(found.ended) == 60
    for (number, arrived), one in zip(found.arrived.items(), log.requests, strict=True):
        assert arrived.at_s - base_s == pytest.approx(one.request.arrival_s, abs=1e-6)
        assert (arrived.prompt_tokens, arrived.e2e_s) == (one.request.prompt_tokens, one.request.slo.targets.e2e_s)
        assert found.first_token_s[number] - base_s == pytest.approx(one.first_token_s, abs=1e-6)
        end = found.ended[number]
        assert end.at_s - base_s == pytest.approx(one.finish_s, abs=1e-6)
        assert (end.output_tokens, end.preemptions) == (one.token_times_s.size, one.num_preemptions)
        assert end.completed == (one.outcome is Outcome.COMPLETED) and end.reason == STOP
    assert len(found.preempted) == sum(one.num_preemptions for one in log.requests)
    assert len(found.steps) == log.steps.end_s.size + log.counters.get("empty_steps", 0)
    computed = sum(one.prefill_tokens + one.decode_seqs for one in found.steps)
    assert computed == log.steps.scheduled_tokens.sum()
    assert found.head.engine["kv_blocks"] == 24 and found.head.policy.startswith(policy)


def test_being_recorded_changes_no_decision(build: Build, request_of: RequestOf, tmp_path: Path) -> None:
    work = [request_of(f"r{i}", 0.02 * i, 10 + 37 * i % 110, 5 + 11 * i % 60, e2e_s=1.0 + i % 7) for i in range(40)]
    log, _ = recorded(build("auto", kv_blocks=24), work, tmp_path)
    again = build("auto", kv_blocks=24).run(work)
    assert [one.token_times_s.tolist() for one in log.requests] == [
        one.token_times_s.tolist() for one in again.requests
    ]


def test_equal_beginnings_of_prompts_have_equal_hashes(build: Build, request_of: RequestOf, tmp_path: Path) -> None:
    size = {"kv_blocks": 400, "max_model_len": 4096, "max_num_batched_tokens": 4096}
    work = [request_of(f"r{i}", 0.1 * i, 1024 + 8, 70, prefix_ids=(1, 2 + i // 2)) for i in range(3)]
    _, found = recorded(build("edf", enable_prefix_caching=True, **size), work, tmp_path)
    first, second, third = (one.prompt for one in found.arrived.values())
    assert len(first) == len(second) == 1032 // STRETCH_TOKENS * HASH_BYTES
    assert first == second != third and first[: 512 // STRETCH_TOKENS * HASH_BYTES] == third[: 8 * HASH_BYTES]
    assert len(found.ended[1].contents) == HASH_BYTES and found.admitted[2].cached_tokens == 1024


def test_no_name_stands_in_a_segment(build: Build, request_of: RequestOf, tmp_path: Path) -> None:
    work = [request_of(f"secret-{i}", 0.1 * i, 8, 6, tenant="very-private") for i in range(9)]
    section = {"tenant_shares": {"weights": {"very-private": 2.0}}}
    _, found = recorded(build("edf", section=section), work, tmp_path)
    tenants = {one.tenant for one in found.arrived.values()}
    assert len(tenants) == 1 and tenants != {0}
    assert found.head.settings["tenant_shares"]["weights"] == {str(*tenants): 2.0}
    for path in tmp_path.iterdir():
        assert b"private" not in path.read_bytes() and b"secret" not in path.read_bytes()


@pytest.mark.parametrize("policy", ["auto", "andes", "qlm"])
def test_plans_of_the_scheduler_repeat_also_after_the_policy_changes(
    build: Build, request_of: RequestOf, tmp_path: Path, policy: str
) -> None:
    size = {"kv_blocks": 72, "max_model_len": 1024, "enable_prefix_caching": True}
    work = [
        request_of(f"r{i}", 0.02 * (i // 3), 10 + 37 * i % 310, 5 + 11 * i % 60, e2e_s=1.0 + i % 7, prefix_ids=(i % 3,))
        for i in range(60)
    ]
    engine = build(policy, **size)
    scheduler = engine.scheduler
    recording = Recorded(scheduler, tmp_path, "run-1-rank0", 1 << 24, scheduler._clock)
    scheduler.record(recording)
    scheduler.record_plans(recording.log_of_plans())
    steps = iter(range(10**6))

    def change(output: Any) -> None:
        if next(steps) == 40:
            scheduler.set_policies("econo")
        elif next(steps) == 160:
            scheduler.set_policies(policy, "edf")

    engine.on_step = change
    engine.run(work)
    recording.close()
    assert scheduler.slo_counters["internal_errors"] == 0
    ((_, paths),) = recordings(tmp_path).items()
    found = check_plans(paths)
    assert found.plans == found.repeated > 100 and found.is_from_beginning and not found.lost
    assert len(read_recording(paths).policies) == 2


def test_plans_repeat_after_planning_failed_and_began_again(
    build: Build, request_of: RequestOf, tmp_path: Path
) -> None:
    """The next policy object continues with what the one before learned."""
    work = [request_of(f"r{i}", 0.05 * i, 10 + 37 * i % 110, 5 + 11 * i % 60, e2e_s=1.0 + i % 7) for i in range(90)]
    engine = build("econo", kv_blocks=24)
    scheduler = engine.scheduler
    recording = Recorded(scheduler, tmp_path, "run-1-rank0", 1 << 24, scheduler._clock)
    scheduler.record(recording)
    scheduler.record_plans(recording.log_of_plans())
    steps = iter(range(10**6))

    def fail(output: Any) -> None:
        if next(steps) == 60:
            scheduler.policies.drop()

    engine.on_step = fail
    engine.run(work)
    recording.close()
    ((_, paths),) = recordings(tmp_path).items()
    began = [one for path in paths for one in read_segment(path) if isinstance(one, PolicyBegan) and not one.goes_on]
    assert [one.learns for one in began] == [False, True]
    found = check_plans(paths)
    assert found.plans == found.repeated > 100
