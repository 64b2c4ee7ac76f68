"""What a scheduler counts by class and state, under fcfs too, and that only a published scheduler has a page."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.served import InEngine
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.engine_page import PageReader, find_pages
from sloserve.lso.plan import SwapFacts
from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page_folder, "page_folder", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_who_waits_by_class_is_at_most_a_step_old(build: Build, request_of: RequestOf, policy: str) -> None:
    engine = build(policy, kv_blocks=20)
    engine.scheduler.publish(rank=2)
    (page,) = find_pages()
    steps = []

    def note(output: Any) -> None:
        status = engine.scheduler.status()
        waiting = Counter(
            engine._live[r.request_id].workload.slo.slo_class.name
            for r in engine.scheduler.waiting
            if r.num_preemptions == 0
        )
        assert {name: n for name, n in status["waiting_by_class"].items() if n} == dict(waiting)
        assert status["running"] == len(engine.scheduler.running)
        assert status["preempted"] == sum(r.num_preemptions > 0 for r in engine.scheduler.waiting)
        assert status["waiting"] == len(engine.scheduler.waiting)
        steps.append(output.total_num_scheduled_tokens)

    engine.on_step = note
    classes = ["interactive", "batch", "background"]
    log = engine.run([request_of(f"r{i}", 0.01 * i, 60, 60, slo_class=classes[i % 3]) for i in range(12)])
    found = page.snapshot()
    assert (found.rank, found.policy, found.alive) == (2, policy, True)
    assert found.steps == len(steps) and found.scheduled_tokens == sum(steps)
    assert found.enqueued_by_class == found.admitted_by_class
    assert {n: c for n, c in found.admitted_by_class.items() if c} == {name: 4 for name in classes}
    assert (found.running, found.waiting, found.preempted) == (0, 0, 0)
    assert found.vllm_preemptions == sum(r.num_preemptions for r in log.requests) - log.counters.get("evictions", 0) > 0
    assert found.plans == log.counters.get("plans", 0) == sum(found.plan_seconds)
    assert (found.plan_seconds_sum > 0) == (policy == "edf")


def test_an_aborted_request_waits_no_more(build: Build, request_of: RequestOf) -> None:
    from vllm.v1.request import RequestStatus

    scheduler = (engine := build("fcfs")).scheduler
    for name in "ab":
        engine._add([request_of(name, slo_class="batch")], 0.0)
    assert scheduler.status()["waiting_by_class"]["batch"] == 2  # at once, without a step
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert scheduler.status()["waiting_by_class"]["batch"] == 1
    assert list(scheduler._stats.slo_of) == ["b"]


class PauseLeader(Policy):
    """Pauses whoever is ahead."""

    needs = frozenset({"output_tokens"})

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        done = snapshot.rows.output_tokens[snapshot.running]
        leader = snapshot.running[[np.argmax(done)]] if done.size > 1 and done.max() > 2 else done[:0]
        return Plan(pause=leader)


def test_what_a_request_met_is_on_the_page_when_it_ends(build: Build, request_of: RequestOf) -> None:
    engine = build(PauseLeader(), kv_blocks=18)
    engine.scheduler.publish(rank=0)
    (page,) = find_pages()
    paused: Counter[str] = Counter()

    def note(output: Any) -> None:
        paused.update(request.request_id for request in engine.scheduler.slo_paused)

    engine.on_step = note
    names = ["0_a-12", "1_a-12", *(f"r{i}" for i in range(7))]
    log = engine.run([request_of(name, 0.03 * i, 20 + 7 * i, 70 - 4 * i) for i, name in enumerate(names)])
    assert len(paused) > 1 and any(request.num_preemptions for request in log.requests)
    for request in log.requests:
        met, stages = page.ended(request.request.request_id) or InEngine(), request.stages
        assert met.paused_steps == paused[request.request.request_id]
        # Of a request that ends, the step in flight may pause it once more.
        assert (met.paused_s, met.preempted_s) == pytest.approx((stages.paused_s, stages.preempted_s), abs=0.01)
    both = page.ended("a-12")  # two replies to one request
    assert both is not None and both.paused_steps == paused["0_a-12"] + paused["1_a-12"]
    found = page.snapshot()
    assert found.paused_steps == paused.total()
    used = [one for name in names if (one := page.ended(name)) is not None]
    assert sum(one.engine_s for one in used) == pytest.approx(found.step_seconds, rel=0.2)
    assert 0.3 < sum(one.kv_s for one in used) / float(log.steps.end_s[-1]) <= 1.0  # this small cache is nearly full


@pytest.mark.parametrize("hit", [False, True])
def test_what_a_request_uses_is_its_prompt_that_is_not_cached_and_its_part_of_the_decodes(
    build: Build, request_of: RequestOf, hit: bool
) -> None:
    engine = build(
        "fcfs", section={"profile": "h100-llama3-8b"}, kv_blocks=400, max_model_len=2048, enable_prefix_caching=True
    )
    engine.scheduler.publish(rank=0)
    (page,) = find_pages()
    ids = tuple(range(60))
    engine.run([replace(request_of("a", 0.0, 960, 1), prefix_ids=ids, prefix_block_tokens=16)])
    first = page.ended("a")
    again = [
        replace(
            request_of(f"b{i}", 10.0, 960, 9),
            prefix_ids=ids if hit else tuple(range(100 * (i + 1), 100 * (i + 1) + 60)),
            prefix_block_tokens=16,
        )
        for i in range(2)
    ]
    engine.run(again)
    used = [one for i in range(2) if (one := page.ended(f"b{i}")) is not None]
    assert first is not None and first.engine_s > 0.0 and len(used) == 2
    assert used[0].engine_s == pytest.approx(used[1].engine_s, rel=0.5)
    assert (used[0].engine_s < first.engine_s) == hit


def test_a_malformed_slo_is_counted_warned_of_once_and_served_as_default(caplog: pytest.LogCaptureFixture) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    from sloserve.vllm_plugin.engine.engine_stats import EngineStats

    counters: Counter[str] = Counter()
    stats = EngineStats(DEFAULT_CLASSES, counters)
    malformed: list[Any] = [{"slo_ttft_ms": -1, "slo_class": "batch"}, {"slo_output_tokens": 0}, {"slo_e2e_ms": 1e-323}]
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        found = [
            stats.enqueued(Request(str(i), [1], SamplingParams(extra_args=a), None)) for i, a in enumerate(malformed)
        ]
    assert [stated.class_id for stated in found] == [1, 1, 1]
    assert not any(stated.slo.targets for stated in found)
    assert counters == {"malformed_slo": 3}
    (record,) = [r for r in caplog.records if r.name.startswith("sloserve")]
    assert record.getMessage().startswith("request 0 is served without its SLO: slo_ttft_ms: -1 is not a number of")


def test_only_an_engine_with_a_loop_of_its_own_makes_a_page_and_shutdown_removes_it(
    build: Build, request_of: RequestOf, folder: Path
) -> None:
    scheduler = (engine := build("fcfs")).scheduler
    engine.run([request_of("a")])
    assert list(folder.iterdir()) == []
    scheduler.publish(rank=0)
    assert [PageReader(file).snapshot().steps for file in page_folder.page_files(folder, page_folder.ENGINE)] == [
        scheduler.status()["steps"]
    ]
    scheduler.shutdown()
    assert list(folder.iterdir()) == []
    engine.run([request_of("b")])
    assert np.isfinite(scheduler.status()["last_step_s"])


def test_without_a_page_the_engine_serves_all_the_same(
    build: Build, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_folder, "create", full)
    engine = build("edf")
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        engine.scheduler.publish(rank=0)
    (record,) = [r for r in caplog.records if r.name.startswith("sloserve")]
    assert "No space left on device" in record.getMessage()
    (served,) = engine.run([request_of("a")]).requests
    assert served.token_times_s.size == 10


def test_what_is_counted_of_swapping_is_on_the_page_and_in_the_status(build: Build, request_of: RequestOf) -> None:
    engine = build("fcfs")
    scheduler = engine.scheduler
    stats = scheduler._stats
    engine.run([request_of("before")])
    assert scheduler.status()["swap_space"] is None
    scheduler.publish(rank=0)
    (page,) = find_pages()
    facts = SwapFacts(block_bytes=4096, total_blocks=10, free_blocks=7, bytes_per_s=1e9)

    def note(output: Any) -> None:
        scheduler.slo_counters.update(swap_stores=1, swap_refused_full=2, swap_dropped_ended=3)
        stats.swap_space(facts, 5)
        stats.swapped("a")
        stats.copied("out", 100, 0.5)

    engine.on_step = note
    engine.run([request_of("a", 0.0, 20, 3), request_of("b", 0.0, 20, 1)])
    found, status, steps = page.snapshot(), scheduler.status()["swap_space"], scheduler.slo_counters["swap_stores"]
    assert status["swap_stores"] == found.swap_stores == steps > 2
    assert (found.swap_pool_used_bytes, found.swap_pool_peak_bytes, found.swap_pool_total_bytes) == (
        12288,
        20480,
        40960,
    )
    assert (found.swap_refused["full"], found.swap_dropped["ended"]) == (2 * steps, 3 * steps)
    assert (status["swap_out_bytes"], status["swap_out_seconds"]) == (100 * steps, 0.5 * steps)
    assert sum(found.swaps) == 2 and found.swaps[0] == 1 and found.swaps_sum <= steps


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_the_page_shows_how_tenants_stand(build: Build, request_of: RequestOf, policy: str) -> None:
    """One tenant floods an engine on which another has requests: it has more service than its share, and owes it."""
    engine = build(policy, section={"tenant_shares": {"weights": {"named": 1}}}, kv_blocks=20)
    engine.scheduler.publish(rank=0)
    (page,) = find_pages()
    seen = []

    def note(_output: Any) -> None:
        present = {one.tenant: one for one in page.snapshot().tenants if one.share}
        if set(present) == {"flood", "calm"}:
            assert sum(one.share for one in present.values()) == 1.0
            assert abs(sum(one.debt_s for one in present.values())) < 1e-9
            seen.append(present["flood"].debt_s - present["calm"].debt_s)

    engine.on_step = note
    work = [replace(request_of(f"f{i}", 0.0, 60, 60, e2e_s=30.0), tenant="flood") for i in range(20)]
    work += [replace(request_of(f"c{i}", 0.5, 60, 60, e2e_s=30.0), tenant="calm") for i in range(4)]
    engine.run(work)
    assert engine.scheduler.slo_counters["internal_errors"] == 0
    assert len(seen) > 1 and seen[0] > 0.0
    found = {one.tenant: one for one in page.snapshot().tenants}
    assert list(found) == [None, "named", "flood", "calm"]
    assert found["flood"].total_s > found["calm"].total_s > 0.0 == found["named"].total_s
    # The engine makes no step after the last request, and shows at once that no tenant has one.
    assert all(one.running == one.waiting == one.share == one.debt_s == 0.0 for one in found.values())


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_no_tenants_are_shown_where_they_have_no_shares(build: Build, request_of: RequestOf, policy: str) -> None:
    engine = build(policy)
    engine.scheduler.publish(rank=0)
    (page,) = find_pages()
    engine.run([replace(request_of("a", 0.0, 8, 8), tenant="a"), replace(request_of("b", 0.0, 8, 8), tenant="b")])
    assert page.snapshot().tenants == ()
