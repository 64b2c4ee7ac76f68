"""The virtual engine: vLLM's two-deep pipeline in virtual time, computed by hand, and the same twice."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import load_profile
from tests.forked import run_forked

pytestmark = pytest.mark.vllm

PROFILE = load_profile("h100-llama3-8b")
Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def prefill_s(*chunks: tuple[int, int], contexts: tuple[int, ...] = ()) -> float:
    return PROFILE.step_s(StepLoad.of(list(chunks), list(contexts)))


def decode_s(*contexts: int) -> float:
    return PROFILE.step_s(StepLoad.of([], list(contexts)))


@pytest.mark.parametrize("policy", [None, "fcfs", "edf"])
def test_one_request_takes_its_prefill_and_one_step_a_token(
    build: Build, request_of: RequestOf, policy: str | None
) -> None:
    (log,) = build(policy).run([request_of("a", 2.0, 20, 4)]).requests
    steps = [prefill_s((20, 0)), decode_s(21), decode_s(22), decode_s(23)]
    assert log.outcome is Outcome.COMPLETED
    assert log.token_times_s == pytest.approx(2.0 + np.cumsum(steps))


def test_a_long_prompt_takes_chunks_of_the_token_budget(build: Build, request_of: RequestOf) -> None:
    (log,) = build(None).run([request_of("a", 0.0, 150, 1)]).requests
    assert log.token_times_s == pytest.approx([prefill_s((64, 0)) + prefill_s((64, 64)) + prefill_s((22, 128))])


def test_who_arrives_during_a_step_joins_the_second_one_after_it(build: Build, request_of: RequestOf) -> None:
    engine = build(None)
    steps: list[list[str]] = []
    engine.on_step = lambda output: steps.append(list(output.num_scheduled_tokens))
    first_s = prefill_s((20, 0))
    log = engine.run([request_of("a", 0.0, 20, 6), request_of("b", first_s / 2, 20, 6)])
    # Step 1 runs when b comes; step 2 was scheduled right behind it.
    assert steps[:4] == [["a"], ["a"], ["a", "b"], ["a", "b"]]
    joined_s = first_s + decode_s(21) + prefill_s((20, 0), contexts=(22,))
    assert log.requests[1].first_token_s == pytest.approx(joined_s)


@pytest.mark.parametrize(("plan_us", "period_s"), [(3_000.0, 0.0), (20_000.0, 0.02)])
def test_planning_delays_a_step_only_beyond_the_one_in_flight(
    build: Build, request_of: RequestOf, plan_us: float, period_s: float
) -> None:
    """A plan of 3 ms hides behind steps of 8 ms, but for the first; one of 20 ms is what a token then takes."""
    engine = build("edf", plan_cost_us=plan_us)
    engine.scheduler.planner.budget.allows = lambda now_s: True
    log = engine.run([request_of("a", 2.0, 20, 4)])
    steps = [prefill_s((20, 0)), decode_s(21), decode_s(22), decode_s(23)]
    if period_s:
        # Seen once the plan of the step behind it is made: one thread plans and takes results.
        assert log.requests[0].token_times_s == pytest.approx(2.0 + period_s * np.array([2, 3, 4, 5]))
    else:
        assert log.requests[0].token_times_s == pytest.approx(2.003 + np.cumsum(steps))
    assert log.steps.duration_s[:4] == pytest.approx(steps)


def test_stock_and_a_plan_that_changes_nothing_pay_for_no_planning(build: Build, request_of: RequestOf) -> None:
    work = [request_of("a", 0.0, 20, 4)]
    stock, fcfs = (build(policy, plan_cost_us=5e4).run(work).requests[0].token_times_s for policy in (None, "fcfs"))
    assert stock.tolist() == fcfs.tolist()


def test_noise_scales_each_step_by_its_number(build: Build, request_of: RequestOf) -> None:
    plain, noisy = (
        build(policy, noise=noise).run([request_of("a", 0.0, 20, 8)])
        for policy, noise in (("edf", None), (None, StepNoise(1, 0.3)))
    )
    factors = [StepNoise(1, 0.3).factor(step) for step in range(plain.steps.duration_s.size)]
    assert noisy.steps.duration_s == pytest.approx(plain.steps.duration_s * factors)


def test_an_idle_engine_waits_for_the_next_arrival(build: Build, request_of: RequestOf) -> None:
    log = build("edf").run([request_of("a", 0.0, 20, 1, max_tokens=1), request_of("b", 500.0, 20, 1, max_tokens=1)])
    assert log.requests[1].first_token_s == pytest.approx(500.0 + prefill_s((20, 0)))
    assert log.steps.duration_s.size == 2


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "max_tokens", "tokens"),
    [
        (20, 10, None, 10),
        (20, 10, 4, 4),
        (20, 10, 40, 10),
        (250, 10, None, 6),
        (250, 10, 9, 6),
        (255, 10, None, 1),
        (20, 1, 1, 1),
    ],
)
def test_a_reply_ends_with_its_own_end_the_client_s_limit_or_the_context(
    build: Build, request_of: RequestOf, prompt_tokens: int, output_tokens: int, max_tokens: int | None, tokens: int
) -> None:
    (log,) = build(None).run([request_of("a", 0.0, prompt_tokens, output_tokens, max_tokens=max_tokens)]).requests
    assert (log.outcome, log.token_times_s.size) == (Outcome.COMPLETED, tokens)


@pytest.mark.parametrize("prompt_tokens", [256, 300])
def test_a_prompt_that_leaves_no_room_is_rejected(build: Build, request_of: RequestOf, prompt_tokens: int) -> None:
    log = build("edf").run([request_of("long", 0.0, prompt_tokens), request_of("a")])
    assert [r.outcome for r in log.requests] == [Outcome.REJECTED, Outcome.COMPLETED]
    assert log.requests[0].token_times_s.size == 0


@pytest.mark.parametrize(("max_tokens", "steps"), [(4, 4), (5, 5), (None, 5)])
def test_the_end_that_only_the_model_knows_costs_a_step_more(
    build: Build, request_of: RequestOf, max_tokens: int | None, steps: int
) -> None:
    """The next step is dispatched before the end of the reply is seen; vLLM stops short of it only at max_tokens."""
    log = build(None).run([request_of("a", 0.0, 20, 4, max_tokens=max_tokens)])
    assert log.steps.duration_s.size == steps
    assert log.requests[0].token_times_s.size == 4


def test_the_steps_add_up(build: Build, request_of: RequestOf) -> None:
    log = build("edf").run([request_of(f"r{i}", 0.01 * i, 30 + i, 20, max_tokens=20) for i in range(9)])
    steps, requests = log.steps, log.requests
    needed = sum(r.request.prompt_tokens + r.token_times_s.size - 1 + r.recomputed_tokens for r in requests)
    assert steps.scheduled_tokens.sum() == needed
    assert (np.diff(steps.end_s) >= steps.duration_s[1:] - 1e-12).all()
    assert steps.end_s[-1] == max(r.token_times_s[-1] for r in requests)
    assert ((steps.kv_utilization >= 0) & (steps.kv_utilization <= 1)).all()
    assert (steps.scheduled_tokens <= 64).all() and (steps.running <= 4).all()


def test_preemptions_and_recomputed_tokens_are_booked(build: Build, request_of: RequestOf) -> None:
    """Two requests of 200 tokens in 16 blocks: vLLM preempts the second as soon as both have grown."""
    engine = build(None, kv_blocks=16)
    computed = 0

    def count(output: Any) -> None:
        nonlocal computed
        computed += output.total_num_scheduled_tokens

    engine.on_step = count
    log = engine.run([request_of(name, 0.0, 60, 140, max_tokens=140) for name in "ab"])
    assert [r.num_preemptions for r in log.requests] == [0, 1]
    assert log.requests[0].recomputed_tokens == 0
    assert 60 < log.requests[1].recomputed_tokens < 200
    assert computed == 2 * (60 + 139) + log.requests[1].recomputed_tokens


def test_prompts_that_share_blocks_share_their_kv(build: Build, request_of: RequestOf) -> None:
    size = {"enable_prefix_caching": True, "kv_blocks": 300, "max_model_len": 2048, "max_num_batched_tokens": 2048}
    engine = build("edf", **size)
    steps: list[int] = []
    engine.on_step = lambda output: steps.append(output.total_num_scheduled_tokens)
    engine.run(
        [
            request_of(f"r{i}", float(i), 1100, 1, max_tokens=1, prefix_ids=ids)
            for i, ids in enumerate([(1, 2, 3), (1, 2, 4), (5, 2, 4), (), ()])
        ]
    )
    assert [s for s in steps if s] == [1100, 1100 - 1024, 1100, 1100, 1100]
    steps.clear()
    short = [request_of(f"s{i}", float(i), 100, 1, max_tokens=1, prefix_ids=(6, 7, 7 + i)) for i in range(2)]
    engine.run([replace(request, prefix_block_tokens=16) for request in short])
    assert sum(steps) == 100 + 100 - 32


def test_a_wait_for_a_copy_that_is_ordered_between_steps_is_left_to_the_next_step() -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    orders = SimpleNamespace(awaited=3, stores=[SimpleNamespace(number=4, host_ids=[7])])
    engine: Any = VirtualEngine.__new__(VirtualEngine)
    engine._awaited = 0.0
    engine.scheduler = SimpleNamespace(requests={}, connector=SimpleNamespace(build_connector_meta=lambda _: orders))
    assert engine._keep("r") == [(4, [7])] and engine._awaited == 3
    orders.awaited = 0
    engine._keep("r")
    assert engine._awaited == 3


def mixed_workload(n: int = 40) -> list[WorkloadRequest]:
    rng = np.random.default_rng(11)
    targets = [Targets(), Targets(e2e_s=1.0), Targets(ttft_s=0.2, tpot_s=0.02), Targets(tds=20.0)]
    return [
        WorkloadRequest(
            f"r{i}",
            float(at_s),
            int(rng.integers(1, 120)),
            int(rng.integers(1, 60)),
            DEFAULT_CLASSES.slo(str(rng.choice(DEFAULT_CLASSES.names)), targets[i % 4]),
            priority=int(rng.integers(3)),
        )
        for i, at_s in enumerate(np.sort(rng.uniform(0.0, 1.0, n)))
    ]


def digests() -> dict[str, str]:
    """A digest of everything in the run log but the timing, by policy; ageing at work, engines that share a process."""
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    size = EngineSettings(kv_blocks=40, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256)
    classes = {c.name: {"rank": c.rank, "aged_after_s": 0.3} for c in DEFAULT_CLASSES}
    found = {}
    for policy in ("fcfs", "edf", "priority", "sjf:preempt=true", "chaos"):
        log = VirtualEngine(size, PROFILE, {"sloserve": {"policy": policy, "classes": classes}}).run(mixed_workload())
        found[policy] = digest(log)
    return found


def digest(log: RunLog) -> str:
    steps = [getattr(log.steps, name).tolist() for name in log.steps.__slots__]
    requests = [
        (r.request.request_id, r.outcome, r.token_times_s.tolist(), r.num_preemptions, r.recomputed_tokens, spent)
        for r in log.requests
        for spent in [None if r.stages is None else astuple(r.stages)]
    ]
    return hashlib.sha256(json.dumps([requests, steps, sorted(log.counters.items())]).encode()).hexdigest()


def check_digests(ours: int, here: dict[str, str]) -> None:
    assert hash("text") != ours
    assert digests() == here


def test_the_same_again_here_and_in_a_process_that_hashes_differently() -> None:
    here = digests()
    assert len(set(here.values())) == len(here)
    assert digests() == here
    run_forked(partial(check_digests, hash("text"), here))
