"""Limits of vLLM's own that plans depend on: the threshold of long prompts, and steps that begin no prompt."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.scheduler.policy import Plan, Snapshot
from sloserve.scheduler.registry import main_policies
from sloserve.vllm_plugin.engine import compat
from tests.other_vllm import IS_0_30, needs_own_prefill_interval
from tests.vllm_plugin.engine.test_scheduler_hooks import Scripted
from tests.vllm_plugin.engine.test_staying_alive import step

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


@pytest.mark.parametrize("is_adaptive", [False] if IS_0_30 else [False, True])
@pytest.mark.parametrize("requests", [1, 2, 3, 6])
def test_the_longest_chunk_is_what_vllm_makes(
    build: Build, request_of: RequestOf, requests: int, is_adaptive: bool
) -> None:
    seen: list[int | None] = []

    def note(at: Snapshot) -> Plan:
        seen.append(at.engine.chunk_tokens)
        return Plan.IDENTITY

    engine = build(Scripted(note))
    scheduler = engine.scheduler
    scheduler.scheduler_config.long_prefill_token_threshold = 12
    if is_adaptive:
        scheduler.adaptive_long_prefill_threshold = True
    names = "abcdef"[:requests]
    engine._add([request_of(name, prompt_tokens=200, output_tokens=4) for name in names], engine._clock.now_s())
    longest = max(scheduler.schedule().num_scheduled_tokens.values())
    assert longest == min(seen[-1] or 64, 64)
    assert longest == (64 if requests == 1 and not IS_0_30 else max(12, 64 // requests if is_adaptive else 0))


def test_no_raised_threshold_is_left_where_a_plan_makes_chunks_short(build: Build, request_of: RequestOf) -> None:
    engine = build(Scripted(lambda at: Plan(prefill_chunk_tokens=5)))
    scheduler = engine.scheduler
    scheduler.adaptive_long_prefill_threshold = True
    engine._add([request_of(name, prompt_tokens=200, output_tokens=4) for name in "ab"], engine._clock.now_s())
    assert scheduler.schedule().num_scheduled_tokens == {"a": 5, "b": 5}
    assert scheduler.adaptive_long_prefill_threshold is True


@pytest.fixture
def whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built from now on have chunked prefill off."""
    from sloserve.vllm_plugin.virtual import engine, vllm_config

    def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
        found = vllm_config.scheduler_arguments(*args, **kwargs)
        found["vllm_config"].scheduler_config.enable_chunked_prefill = False
        return found

    monkeypatch.setattr(engine, "scheduler_arguments", arguments)


@pytest.mark.usefixtures("whole_prompts")
@pytest.mark.parametrize("policy", [*main_policies(), "edf:step_budget=true", "econo-paper", "chaos"])
def test_prompts_are_computed_whole_where_chunked_prefill_is_off(
    build: Build, request_of: RequestOf, policy: str
) -> None:
    """And none waits for ever: requests age, plans set limits, and steps are as long as the longest request."""
    engine = build(
        policy,
        section={"plan_share": 1.0, "classes": {"interactive": {"rank": 100, "aged_after_s": 0.05}}},
        max_num_batched_tokens=256,
        max_num_seqs=8,
        kv_blocks=70,
    )
    cut = [0]

    def look(output: Any) -> None:
        cut[0] += sum(request.is_prefill_chunk for request in engine.scheduler.running)

    engine.on_step = look
    workload = [request_of(f"r{i}", 0.005 * i, 20 + 40 * (i % 5), 10 + i % 7, ttft_s=0.3) for i in range(40)]
    log = engine.run(workload)
    assert [r.outcome.name for r in log.requests] == ["COMPLETED"] * 40
    assert cut == [0] and not log.counters.get("internal_errors", 0)
    assert not log.counters.get("limited_steps", 0)


@pytest.mark.usefixtures("whole_prompts")
def test_a_policy_that_is_made_to_limit_steps_is_refused_where_chunked_prefill_is_off(
    build: Build, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"policy {} limits the tokens of each step.*remove --no-enable-chunked-prefill or choose another policy"
    for policy in ("sarathi", "econo-paper:tfs_tokens=512"):
        with pytest.raises(ConfigError, match=said.format(policy.partition(":")[0])):
            build(policy)
        with pytest.raises(ConfigError, match="where chunked prefill is off"):
            build("edf", section={"shadow_policy": policy})
        scheduler = build("edf").scheduler
        for change in ({"policy": policy}, {"shadow_policy": policy}):
            with pytest.raises(ConfigError, match="where chunked prefill is off"):
                scheduler.set_policies(**change)
        assert scheduler.status()["policy"] == "edf"
    monkeypatch.setattr(logging.getLogger("sloserve"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        build("edf:step_budget=true")
    assert "no step budget for policy edf: chunked prefill is off" in caplog.text


def test_the_encoder_has_a_budget_of_a_full_step_at_least(build: Build) -> None:
    """So that items which a step computes whole are encoded in it; chunks that end inside items may find it full."""
    for tokens in (64, 4096):
        scheduler = build("edf", max_num_batched_tokens=tokens).scheduler
        config = scheduler.scheduler_config
        assert min(config.max_num_encoder_input_tokens, config.encoder_cache_size) >= scheduler.max_num_scheduled_tokens


def test_plans_know_what_the_encoder_has_room_for(build: Build) -> None:
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    from sloserve.vllm_plugin.engine import compat

    scheduler = build("edf").scheduler
    assert compat.encoder_tokens(scheduler) is None  # a model of text
    scheduler.max_num_encoder_input_tokens, scheduler.encoder_cache_manager = 300, EncoderCacheManager(500)
    assert compat.encoder_tokens(scheduler) == 300
    scheduler.encoder_cache_manager.num_freeable_slots = 200
    assert compat.encoder_tokens(scheduler) == 200
    scheduler.encoder_cache_manager = object()  # an operator's own, which does not say
    assert compat.encoder_tokens(scheduler) == 300


def test_nobody_makes_room_for_a_prompt_that_does_not_begin(build: Build, request_of: RequestOf) -> None:
    """vLLM's data parallel ranks begin prompts in the same steps: in the others it admits none."""
    seen: list[bool] = []

    def preempt_all_but_one(at: Snapshot) -> Plan:
        seen.append(at.engine.defers_prompts)
        decodes = at.running[at.rows.output_tokens[at.running] > 0]
        return Plan(preempt=decodes[1:] if at.waiting.size else np.empty(0, np.int64), waiting=at.waiting)

    policy = Scripted(lambda at: Plan.IDENTITY)
    engine = build(policy, max_num_seqs=2)
    scheduler, compute = engine.scheduler, _stepping(engine)
    engine._add([request_of(name, prompt_tokens=9, output_tokens=50) for name in "ab"], engine._clock.now_s())
    for _ in range(4):
        compute(False)
    policy.script = preempt_all_but_one
    engine._add([request_of("c", prompt_tokens=9, output_tokens=50)], engine._clock.now_s())
    assert set(compute(True)) == {"a", "b"} and seen[-1]
    assert scheduler.slo_counters["evictions"] == 0
    assert set(compute(False)) == {"a", "c"} and not seen[-1]
    assert scheduler.slo_counters["evictions"] == 1


@pytest.mark.parametrize(
    ("interval", "steps", "decoding", "bound", "expected"),
    [
        (4, 3, True, False, True),  # the next step is the third after the last one with a prompt
        (4, 4, True, False, False),  # the next step is the fourth
        (4, 3, False, False, False),  # nothing decodes, so that vLLM gains nothing by waiting
        (4, 3, True, True, False),  # the last step that began prompts could not begin all of them
        (1, 1, True, False, False),  # the interval of a rank whose engine counts the steps
        (None, 3, True, False, False),  # vLLM before 0.33
    ],
)
def test_the_interval_that_a_scheduler_counts_itself_is_known(
    interval: int | None, steps: int, decoding: bool, bound: bool, expected: bool
) -> None:
    own = {} if interval is None else {"local_prefill_interval": interval}
    scheduler = SimpleNamespace(
        prefill_capacity_bound=bound,
        running=[SimpleNamespace(is_prefill_chunk=not decoding)],
        last_prefill_step=1,
        num_executed_steps=steps,
        **own,
    )
    assert compat.defers_prompts(scheduler) is expected


def test_nobody_makes_room_for_a_prompt_that_one_engine_holds_back(build: Build, request_of: RequestOf) -> None:
    """With ``--prefill-schedule-interval 4`` of three steps after a prompt none begins another one."""
    needs_own_prefill_interval()
    policy = Scripted(lambda at: Plan.IDENTITY)
    engine = build(policy, max_num_seqs=2)
    scheduler = engine.scheduler
    scheduler.local_prefill_interval, scheduler.last_prefill_step = 4, -4
    engine._add([request_of(name, prompt_tokens=9, output_tokens=80) for name in "ab"], engine._clock.now_s())
    for _ in range(2):
        step(engine)
    deferred: list[bool] = []

    def preempt_all_but_one(at: Snapshot) -> Plan:
        deferred.append(at.engine.defers_prompts)
        decodes = at.running[at.rows.output_tokens[at.running] > 0]
        return Plan(preempt=decodes[1:] if at.waiting.size else np.empty(0, np.int64), waiting=at.waiting)

    policy.script = preempt_all_but_one
    engine._add([request_of("c", prompt_tokens=9, output_tokens=50)], engine._clock.now_s())
    for _ in range(2):
        assert set(step(engine).num_scheduled_tokens) == {"a", "b"} and deferred[-1]
        assert scheduler.slo_counters["evictions"] == 0
    assert set(step(engine).num_scheduled_tokens) == {"a", "c"} and not deferred[-1]
    assert scheduler.slo_counters["evictions"] == 1


def test_a_step_without_prompts_is_limited_by_none(build: Build, request_of: RequestOf) -> None:
    engine = build("fcfs:step_budget=true")
    scheduler, compute = engine.scheduler, _stepping(engine)
    engine._add([request_of("a", prompt_tokens=9, output_tokens=50, slo_class="interactive")], engine._clock.now_s())
    for _ in range(4):
        compute(False)
    engine._add([request_of("b", prompt_tokens=200, output_tokens=50)], engine._clock.now_s())
    before = scheduler.slo_counters["limited_steps"]
    for _ in range(3):
        assert compute(True) == {"a": 1}
    assert scheduler.slo_counters["limited_steps"] == before
    assert "b" in compute(False)


def _stepping(engine: Any) -> Callable[[bool], dict[str, int]]:
    """Computes one step, throttled or not; returns the tokens of each request."""
    scheduler = engine.scheduler
    schedule = scheduler.schedule

    def one(throttled: bool) -> dict[str, int]:
        scheduler.schedule = lambda: schedule(throttled)
        found: dict[str, int] = step(engine).num_scheduled_tokens
        return found

    return one
