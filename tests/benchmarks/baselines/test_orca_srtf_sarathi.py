"""ORCA, SRTF and Sarathi-Serve: who is admitted, who makes room, and what the engine does of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.orca_srtf_sarathi import SRTF, Orca, Sarathi
from sloserve.core.errors import ConfigError
from sloserve.scheduler.policy import Plan, Policy, Snapshot, check_plan
from sloserve.scheduler.registry import make_policy

Make = Callable[..., Snapshot]


def plan(at: Snapshot, policy: Policy) -> Plan:
    made = policy.plan(at, 0.0)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


FOUR = {"prompt_tokens": 32, "max_tokens": 32}
"""Four blocks promised."""


@pytest.mark.parametrize(
    ("batch", "blocks", "running"), [(8, 13, 3), (0, 13, 3), (2, 13, 2), (3, 999, 3), (0, 999, 6), (1, 999, 2)]
)
def test_orca_admits_by_arrival_while_promises_and_batch_allow(
    batch: int, blocks: int, running: int, snapshot: Make
) -> None:
    at = snapshot([FOUR] * 4, [FOUR] * 2, total_blocks=blocks, max_num_seqs=6)
    at.rows.seq[:6] = [0, 1, 5, 4, 3, 2]
    made = plan(at, Orca(Orca.Settings(batch=batch)))
    assert (order(made.waiting), made.max_running) == ([5, 4, 3, 2], running)
    assert made.running is None and not made.preempt.size


def test_orca_counts_what_may_come_and_not_what_is_held(snapshot: Make) -> None:
    # All blocks but 2 are free, yet a context of 2048 tokens is promised: the default of who states no max_tokens.
    at = snapshot([FOUR], [{"prompt_tokens": 16, "max_tokens": 2032}], total_blocks=131, free_blocks=129)
    assert plan(at, Orca()).max_running == 1
    at = snapshot([FOUR], [{"prompt_tokens": 16, "max_tokens": 2032}], total_blocks=133, free_blocks=131)
    assert plan(at, Orca()).max_running == 2


def test_sarathi_sets_the_budget_and_nothing_else(snapshot: Make) -> None:
    made = plan(snapshot([FOUR], [FOUR]), Sarathi(Sarathi.Settings(tokens=128)))
    assert made.token_budget == 128
    assert (made.running, made.waiting, made.max_running, made.preempt.size, made.pause.size) == (
        None,
        None,
        None,
        0,
        0,
    )


def of_length(tokens: int, **more: Any) -> dict[str, Any]:
    return {**FOUR, "oracle_output_tokens": tokens, **more}


ORACLE = SRTF.Settings(length="oracle")


def test_srtf_serves_who_has_least_left_and_preempts_who_has_most(snapshot: Make) -> None:
    running = [of_length(30, output_tokens=5), of_length(31, output_tokens=30), of_length(20, output_tokens=4)]
    at = snapshot([of_length(24), of_length(10), of_length(9)], running, total_blocks=13)
    made = plan(at, SRTF(ORACLE))
    # Left: 25, 1, 16 and 24, 10, 9.
    assert (order(made.running), order(made.waiting), order(made.preempt)) == ([1], [5, 4], [2, 0])


@pytest.mark.parametrize("fixed", [{"preemptable": False}, {"num_preemptions": 3}])
def test_srtf_leaves_alone_who_must_not_or_may_no_longer_be_preempted(fixed: dict[str, Any], snapshot: Make) -> None:
    at = snapshot([of_length(1), of_length(2)], [of_length(30, **fixed), of_length(20)], total_blocks=9)
    made = plan(at, SRTF(ORACLE))
    assert (order(made.running), order(made.waiting), order(made.preempt)) == ([0], [2], [1])


def test_srtf_predicts_by_class_from_what_ended(snapshot: Make) -> None:
    policy = SRTF()
    at = snapshot([{"class_id": 0}, {"class_id": 1}, {"class_id": 1}])
    for tokens in (700, 900):
        ended = at.rows.add(class_id=0, output_tokens=tokens)
        policy.finished(at.rows, ended, 0.0)
    assert order(plan(at, policy).waiting) == [1, 2, 0]


def test_a_length_error_is_drawn_anew_for_each_seed(snapshot: Make) -> None:
    at = snapshot([of_length(100) for _ in range(8)])
    orders = {
        tuple(order(plan(at, SRTF(SRTF.Settings(length="oracle", length_error=0.5), seed=seed)).waiting))
        for seed in (1, 2, 1)
    }
    assert len(orders) == 2


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("orca", "batch", -1, "batch: -1 requests is negative; 0 is no limit"),
        ("sarathi", "tokens", 0, "tokens: 0 a step is not at least 1"),
        (
            "srtf",
            "length",
            "guess",
            "length: 'guess' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle",
        ),
        ("srtf", "length_error", -0.1, "length_error: -0.1 is not 0 or more, and finite"),
        ("srtf", "max_preemptions", -1, "max_preemptions: -1 is not 0 or more, and finite"),
        ("multires", "padding", -0.5, "padding: -0.5 is not within 0..10"),
        ("multires", "window", 0, "window: 0 waiting requests is not at least 1"),
        ("sync-coupled", "sync_tokens", 0, "sync_tokens: 0 is not at least 1"),
        (
            "sync-coupled",
            "length",
            "",
            "length: '' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle",
        ),
        ("fastserve", "levels", 0, "levels: 0 is not within 1..32"),
        ("fastserve", "quantum_tokens", 0, "quantum_tokens: 0 is not within 1..1048576"),
        ("fastserve", "prompt_weight", 1.5, "prompt_weight: 1.5 is not within 0..1"),
        ("fastserve", "batch", -2, "batch: -2 requests is negative; 0 is no limit"),
        ("fastserve", "promote_s", -1.0, "promote_s: -1.0 is not 0 or more, and finite"),
    ],
)
def test_a_bad_setting_is_named_with_its_value_and_what_is_allowed(
    name: str, option: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_policy(name, {option: value})
    assert str(refused.value) == f"policy {name!r}: {message}"


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("policy", "batch", "preempts"),
    [
        ("orca:batch=3", 3, False),
        ("orca:batch=0", 6, False),
        ("srtf:length=oracle", 6, True),
        ("fastserve:batch=3", 3, True),
        ("multires:length=oracle:padding=0", 6, False),
        ("sync-coupled:length=oracle:padding=0", 6, False),
    ],
)
def test_while_promises_are_kept_vllm_preempts_nobody(policy: str, batch: int, preempts: bool) -> None:
    from sloserve.core.request import WorkloadRequest
    from sloserve.core.slo import DEFAULT_CLASSES, Targets
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    rng = np.random.default_rng(1)
    slo = DEFAULT_CLASSES.slo(None, Targets())
    workload = [
        WorkloadRequest(f"r{i}", i * 0.01, int(p), int(o), slo, max_tokens=int(o + rng.integers(0, 40)))
        for i, (p, o) in enumerate(rng.integers(5, 60, (30, 2)))
    ]
    settings = EngineSettings(kv_blocks=16, max_num_seqs=6, max_num_batched_tokens=64, max_model_len=256)
    section = {"policy": policy, "aged_share": 0.0}
    engine = VirtualEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": section})
    most = 0

    def watch(output: Any) -> None:
        nonlocal most
        most = max(most, len(output.num_scheduled_tokens))

    engine.on_step = watch
    log = engine.run(workload)
    assert all(r.token_times_s.size == r.request.output_tokens for r in log.requests)
    assert sum(r.num_preemptions for r in log.requests) == log.counters.get("evictions", 0)
    assert log.counters.get("plan_errors", 0) == 0
    assert 3 <= most <= batch
    assert (log.counters.get("evictions", 0) > 0) == preempts
