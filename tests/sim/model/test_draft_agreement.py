"""With drafts, too, the model schedules as vLLM does in every step, and requests get their tokens at the same times."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.engine.virtual.drafts import Drafts
from tests.other_vllm import not_with_0_30
from tests.sim.model.cases import LONG, SCARCE, SLOTS, WIDE, Case, generated
from tests.sim.model.side_by_side import difference, run_model, run_real
from tests.sim.model.test_agreement import POLICIES, small_cases

pytestmark = [
    pytest.mark.vllm,
    not_with_0_30("the model follows vLLM 0.31 and later, which admit otherwise"),
]


def draft_cases() -> Iterator[Case]:
    few, many, sure = Drafts(1, 0.85), Drafts(5, 0.6), Drafts(3, 0.9, spread=0.05)
    for policy in (None, "fcfs", "edf"):
        yield Case("slots-bind", policy, replace(SLOTS, drafts=sure), generated("sharegpt-gamma3", 40, 30.0, 1))
    for policy in (None, "edf", "sjf:preempt=true:length=oracle", "econo", "auto"):
        yield Case("kv-scarce", policy, replace(SCARCE, drafts=many), generated("sharegpt-bursts", 40, 20.0, 2))
    for policy in (None, "edf"):
        yield Case("long-prompts", policy, replace(LONG, drafts=few), generated("multiround", 40, 12.0, 3))
    for policy in ("edf:step_budget=true", "auto", "auto:drafts=slack", "auto:drafts=load"):
        yield Case("step-budget", policy, replace(WIDE, drafts=sure), generated("multiround", 40, 30.0, 7))
    scarce = replace(SCARCE, drafts=sure)
    yield Case("pauses", "chaos:pause=0.9", scarce, generated("alpaca-poisson", 50, 60.0, 5))
    yield Case("reused-plans", "andes", scarce, generated("reading-speed-gamma3", 50, 25.0, 6), plan_cost_us=3000.0)


@pytest.mark.parametrize("case", list(draft_cases()), ids=lambda case: f"{case.name}-{case.policy or 'stock'}")
def test_every_step_is_vllms_with_drafts(case: Case) -> None:
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert real.log is not None and real.log.counters["draft_tokens"] > real.log.counters["accepted_draft_tokens"] > 0
    if case.name in ("kv-scarce", "pauses"):
        assert any(step.preempted for step in real.steps)


@st.composite
def small_draft_cases(draw: st.DrawFn) -> Case:
    """A handful of requests with up to seven drafts, on a KV cache that hardly holds one or two of them."""
    case = draw(small_cases())
    drafts = Drafts(
        draw(st.sampled_from([1, 2, 3, 7])),
        draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        spread=0.0,
        seed=draw(st.integers(0, 99)),
    )
    plain = replace(case.settings, enable_prefix_caching=False, swap_space_gib=0.0, drafts=drafts)
    return replace(
        case,
        settings=plain,
        policy=draw(st.sampled_from((*POLICIES, "edf:step_budget=true", "auto", "auto:drafts=load"))),
    )


@given(case=small_draft_cases())
@settings(max_examples=40)
def test_nothing_small_is_scheduled_differently_with_drafts(case: Case) -> None:
    assert difference(run_real(case), run_model(case)) is None
