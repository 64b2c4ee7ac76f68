"""A shadow policy decides nothing: the policy in charge does the same with it and without it, and it is scored."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import Rows
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def run(policy: str, shadow: str | None, workload: list[WorkloadRequest]) -> tuple[list[Any], Any]:
    """Everything each step decided, and the scheduler at the end."""
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    config = {"sloserve": {"policy": policy, "shadow_policy": shadow, "seed": 3}}
    size = EngineSettings(kv_blocks=24, max_num_seqs=3, max_num_batched_tokens=48, max_model_len=192)
    engine = VirtualEngine(size, load_profile("h100-llama3-8b"), config)
    steps: list[Any] = []

    def note(output: Any) -> None:
        running, waiting = engine.scheduler.running, engine.scheduler.waiting
        steps.append((dict(output.num_scheduled_tokens), [r.request_id for r in (*running, *waiting)]))

    engine.on_step = note
    log = engine.run(workload)
    steps.append([(r.outcome, r.num_preemptions, r.token_times_s.tolist()) for r in log.requests])
    return steps, engine.scheduler


requests = st.lists(
    st.builds(
        lambda at, prompt, output, e2e_s, ttft_s, priority: (at, prompt, output, e2e_s, ttft_s, priority),
        st.sampled_from([0.0, 0.05, 0.3]),
        st.integers(1, 150),
        st.integers(1, 40),
        st.none() | st.floats(0.05, 2.0),
        st.none() | st.floats(0.01, 0.5),
        st.integers(0, 2),
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=6)
@given(
    requests, st.sampled_from(["fcfs", "edf:preempt_margin_s=0.1", "chaos"]), st.sampled_from(["sjf", "chaos", "fcfs"])
)
def test_decisions_are_the_same_with_a_shadow_and_without(drawn: list[Any], policy: str, shadow: str) -> None:
    workload = [
        WorkloadRequest(
            f"r{i}",
            at_s,
            prompt,
            output,
            DEFAULT_CLASSES.slo(None, Targets(ttft_s=ttft_s, e2e_s=e2e_s)),
            priority=priority,
        )
        for i, (at_s, prompt, output, e2e_s, ttft_s, priority) in enumerate(sorted(drawn, key=lambda r: r[0]))
    ]
    expected, alone = run(policy, None, workload)
    found, watched = run(policy, shadow, workload)
    assert found == expected
    assert watched.slo_counters == alone.slo_counters
    assert watched.policies.shadow.figures["plans"] + watched.policies.shadow.figures["errors"] > 0


def queued(request_of: RequestOf) -> list[Any]:
    """Long jobs that fill the engine, then urgent ones and lax ones in turn."""
    long = [request_of(f"long{i}", 0.0, 20, 60) for i in range(4)]
    return [*long, *(request_of(f"r{i}", 0.01, 20, 30, e2e_s=0.9 if i % 2 else 60.0) for i in range(12))]


def test_a_policy_agrees_with_itself_and_gains_nothing(build: Build, request_of: RequestOf) -> None:
    engine = build("edf", section={"shadow_policy": "edf"})
    engine.run(queued(request_of))
    figures = engine.scheduler.policies.shadow.figures
    assert figures["agreement_count"] > 0 and figures["agreement_sum"] == figures["agreement_count"]
    assert figures["gain_count"] > 0 and figures["gain_sum"] == 0.0


def test_deadlines_in_the_shadow_of_arrival_order_would_gain_and_the_page_says_so(
    build: Build, request_of: RequestOf
) -> None:
    engine = build("fcfs", section={"shadow_policy": "edf:preempt=false"})
    log = engine.run(queued(request_of))
    status = engine.scheduler.status()
    assert (status["policy"], status["shadow_policy"]) == ("fcfs", "edf:preempt=false")
    assert 0.0 < status["shadow_agreement_sum"] < status["shadow_agreement_count"]
    assert 0.0 < status["shadow_gain_sum"] <= status["shadow_gain_count"] <= status["shadow_plans"]
    assert status["shadow_errors"] == 0 and "plans" not in log.counters


class Faulty(Policy):
    """Fails whatever it is asked."""

    needs = frozenset({"prompt_tokens"})
    wants_progress = True

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        raise RuntimeError("arrived")

    def progressed(self, *args: Any) -> None:
        raise RuntimeError("progressed")

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        raise RuntimeError("finished")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        raise RuntimeError("plan")


def test_a_failing_shadow_is_counted_and_said_seldom(
    build: Build, request_of: RequestOf, caplog: pytest.LogCaptureFixture
) -> None:
    engine, alone = build("edf", section={"shadow_policy": "sjf"}), build("edf")
    engine.scheduler.policies.shadow.policy = Faulty()
    engine.scheduler.planner._wants_progress = engine.scheduler.planner._wants_output = True
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        log = engine.run(queued(request_of))
    expected = alone.run(queued(request_of))
    assert [r.token_times_s.tolist() for r in log.requests] == [r.token_times_s.tolist() for r in expected.requests]
    figures = engine.scheduler.policies.shadow.figures
    assert figures["plans"] == 0 and figures["errors"] > log.counters["plans"] > 0
    assert log.counters == expected.counters
    said = [r for r in caplog.records if r.name.startswith("sloserve")]
    assert {r.getMessage().partition(":")[0] for r in said} == {"shadow policy Faulty failed; it decides nothing"}
    errors = [str(r.exc_info[1]) for r in said if r.exc_info]
    assert sorted(errors) == ["arrived", "finished", "plan", "progressed"], "one traceback for each line that fails"
    assert len(said) < 20
