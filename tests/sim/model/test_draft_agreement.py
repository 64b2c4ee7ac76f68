"""With drafts, too, the model schedules as vLLM does in every step, and requests get their tokens at the same times."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import STATE_WINDOW
from sloserve.engine.virtual.drafts import Drafts
from sloserve.engine.virtual.engine_settings import blocks_of_longest
from tests.other_vllm import IS_0_31, follows_hits, follows_mamba, has_mamba_all, not_with_0_30
from tests.sim.model.cases import (
    CACHED,
    LONG,
    SCARCE,
    SLOTS,
    SWAPPED,
    WIDE,
    Case,
    calls_of_tasks,
    chats_in_rounds,
    generated,
    layout_cases,
)
from tests.sim.model.side_by_side import difference, run_model, run_real
from tests.sim.model.test_agreement import POLICIES, sampled_cases, small_cases
from tests.whole import first_of_each

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


@pytest.mark.parametrize(
    "case",
    first_of_each(draft_cases(), lambda case: case.name, lambda case: case.policy),
    ids=lambda case: f"{case.name}-{case.policy or 'stock'}",
)
def test_every_step_is_vllms_with_drafts(case: Case) -> None:
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert real.log is not None and real.log.counters["draft_tokens"] > real.log.counters["accepted_draft_tokens"] > 0
    if case.name in ("kv-scarce", "pauses"):
        assert any(step.preempted for step in real.steps)


def cached_cases() -> Iterator[Case]:
    """Drafts beside a prefix cache, and beside swap space."""
    sure, many, ngrams = Drafts(3, 0.9, spread=0.05), Drafts(5, 0.6), Drafts(3, 0.5, has_layers=False)
    for policy in (None, "edf", "econo", "chaos", "auto:drafts=slack"):
        yield Case("prefix-cache", policy, replace(CACHED, drafts=sure), chats_in_rounds(40, 25.0, 4))
    for policy in (None, "chaos"):
        scarce = replace(CACHED, kv_blocks=520, drafts=ngrams)
        yield Case("prefix-cache-ngrams", policy, scarce, chats_in_rounds(40, 25.0, 4))
    for policy in ("fcfs", "edf:preempt_margin_s=0.1", "andes"):
        yield Case("swap", policy, replace(SWAPPED, drafts=sure), generated("sharegpt-bursts", 40, 20.0, 2))
    by_cost = replace(SCARCE, swap_space_gib=4.0, link_gb_per_s=0.5, drafts=many)
    yield Case("swap-by-cost", "chaos:pause=0.3", by_cost, generated("sharegpt-bursts", 40, 20.0, 2))
    swapped = replace(CACHED, kv_blocks=520, swap_space_gib=1.0, link_gb_per_s=1.0, swapping="always")
    yield Case("swap-prefix-cache", "chaos", replace(swapped, drafts=sure), chats_in_rounds(40, 25.0, 4))
    kept = replace(CACHED, kv_blocks=700, swap_space_gib=2.0, link_gb_per_s=8.0, drafts=sure)
    yield Case("tasks-kept", "auto", kept, calls_of_tasks(14, 8, 2.5, states=True))


CHOSEN = ("chaos", "chaos:pause=0.3", "edf:preempt_margin_s=0.1", "auto")
"""Policies that preempt most: of each kind of cache one is tried in ``make test``."""


@pytest.mark.parametrize("case", sampled_cases(cached_cases(), lambda case: case.policy in CHOSEN))
def test_every_step_is_vllms_with_drafts_beside_a_prefix_cache_and_swap_space(case: Case) -> None:
    if not follows_hits(case.settings):
        pytest.skip("the model finds prefixes as vLLM 0.32 does, see tests/other_vllm.py")
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert real.log is not None and real.log.counters["accepted_draft_tokens"] > 0
    if case.settings.enable_prefix_caching:
        assert sum(one.cached_tokens for one in real.log.requests) > 1000
    if case.settings.swap_space_gib:
        assert real.log.counters["swap_loads"] >= 5


def _shows_more(case: Case) -> bool:
    """Whether it is one of the cases of ``make test``; without drafts that has more layouts (test_agreement.py)."""
    return case.policy == "chaos" and case.name in DRAFTED


def drafted_layouts() -> Iterator[Case]:
    """Every layout that vLLM has with drafts; Mamba layers keep a state for each of them besides."""
    for case in layout_cases():
        groups, caches = case.settings.kv_groups, case.settings.enable_prefix_caching
        if case.policy not in (None, "chaos") or (caches and any(one.chunk_tokens for one in groups)):
            continue
        yield drafted(case, Drafts(3, 0.8))
        if case.policy == "chaos" and case.name in ("windows-cache", "gemma-3-cache", "llama-4"):
            engine = replace(case.settings, swap_space_gib=2.0, link_gb_per_s=4.0, swapping="always")
            yield drafted(replace(case, name=f"swap-{case.name}", settings=engine), Drafts(3, 0.8))


def drafted(case: Case, drafts: Drafts) -> Case:
    """The case with drafts, and with the blocks that they take besides."""
    states = [one.states > 0 or one.window_tokens == STATE_WINDOW for one in case.settings.kv_groups]
    groups = tuple(
        one._replace(spare_blocks=drafts.num_tokens if keeps else 0)
        for one, keeps in zip(case.settings.kv_groups, states, strict=True)
    )
    engine = replace(case.settings, kv_blocks=10_000, kv_groups=groups, drafts=drafts)
    more = blocks_of_longest(engine.layout, engine.max_model_len) - blocks_of_longest(
        case.settings.layout, engine.max_model_len
    )
    return replace(case, settings=replace(engine, kv_blocks=case.settings.kv_blocks + 2 * more))


DRAFTED = ("swap-windows-cache", "llama-4", "mamba-all-cache", "mamba-align-windows-cache")
"""Windows, chunks, and Mamba's states in two ways: with drafts each gives blocks back in its own way."""


@pytest.mark.parametrize("case", sampled_cases(drafted_layouts(), _shows_more))
def test_every_step_is_vllms_with_drafts_whatever_layers_keep(case: Case) -> None:
    settings = case.settings
    if not follows_hits(settings):
        pytest.skip("the model finds prefixes as vLLM 0.32 does, see tests/other_vllm.py")
    if any(group.states for group in settings.kv_groups) and not follows_mamba(settings.enable_prefix_caching):
        pytest.skip("the model follows vLLM 0.32, see tests/other_vllm.py")
    if any(group.window_tokens == STATE_WINDOW for group in settings.kv_groups) and settings.enable_prefix_caching:
        if not has_mamba_all():
            pytest.skip("this vLLM has no Mamba mode `all`")
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert real.log is not None and real.log.counters["accepted_draft_tokens"] > 0
    if settings.swap_space_gib:
        assert real.log.counters["swap_loads"] > 10


@st.composite
def small_draft_cases(draw: st.DrawFn, layouts: bool = False) -> Case:
    """A handful of requests with up to seven drafts, on a KV cache that hardly holds one or two of them."""
    case = draw(small_cases(layouts=layouts))
    drafts = Drafts(
        draw(st.sampled_from([1, 2, 3, 7])),
        draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        spread=0.0,
        seed=draw(st.integers(0, 99)),
        has_layers=draw(st.booleans()),
    )
    case = replace(case, policy=draw(st.sampled_from((*POLICIES, "edf:step_budget=true", "auto", "auto:drafts=load"))))
    if not layouts:
        return replace(case, settings=replace(case.settings, drafts=drafts))
    engine, groups = case.settings, case.settings.kv_groups
    if any(one.chunk_tokens for one in groups):
        engine = replace(engine, enable_prefix_caching=False)
    if any(one.states or one.window_tokens == STATE_WINDOW for one in groups):
        engine = replace(engine, swap_space_gib=0.0)
    return drafted(replace(case, settings=engine), drafts)


@given(case=small_draft_cases())
@settings(max_examples=60)
def test_nothing_small_is_scheduled_differently_with_drafts(case: Case) -> None:
    assume(follows_hits(case.settings))
    assert difference(run_real(case), run_model(case)) is None


@pytest.mark.skipif(IS_0_31, reason="the model follows drafts of vLLM 0.32, see follows_hits")
@given(case=small_draft_cases(layouts=True))
@settings(max_examples=40)
def test_nothing_small_is_scheduled_differently_with_drafts_whatever_layers_keep(case: Case) -> None:
    groups, caches = case.settings.kv_groups, case.settings.enable_prefix_caching
    assume(follows_hits(case.settings))
    assume(follows_mamba(caches) or not any(group.states for group in groups))
    assume(has_mamba_all() or not caches or not any(group.window_tokens == STATE_WINDOW for group in groups))
    assert difference(run_real(case), run_model(case)) is None
