"""The model schedules as vLLM does: tokens of every request, admissions, preemptions and free blocks of every step.

A vLLM that moved a rule fails here first, and the message says in which step and of which request.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings, blocks_of_longest
from tests.other_vllm import follows_mamba, has_mamba_all, not_with_0_30
from tests.sim.model.cases import OFTEN, OTHERS, Case, cases, layout_cases, profile_cases, swapped_layout_cases
from tests.sim.model.side_by_side import difference, run_model, run_real
from tests.whole import WHOLE, sampled

pytestmark = [
    pytest.mark.vllm,
    not_with_0_30("the model follows vLLM 0.31 and later, which admit otherwise"),
]


REPEATED = {
    *itertools.product(["slots-bind", "long-prompts", "prefix-cache"], [None, "edf"]),
    *itertools.product(["kv-scarce"], [None, "fcfs", "priority"]),
    *itertools.product(["swap"], ["fcfs", "andes"]),
    *itertools.product(["tasks-kept"], ["auto", "chaos", "fcfs"]),  # in test_draft_agreement.py with drafts
    ("slots-bind", "fcfs"),
    ("prefix-cache", "econo:length=oracle"),
    ("kv-scarce", "edf"),
}
"""What shows of vLLM's scheduler under the other policies of the same load too."""


def sampled_cases(every: Iterable[Case], is_kept: Callable[[Case], bool]) -> list[Any]:
    """Return the cases by their names, of which ``make test`` runs those that are kept."""
    return [
        pytest.param(
            case,
            id=f"{case.name}-{case.policy or 'stock'}",
            marks=() if is_kept(case) else pytest.mark.whole,
        )
        for case in every
    ]


@pytest.mark.parametrize("case", sampled_cases(cases(), lambda case: (case.name, case.policy) not in REPEATED))
def test_every_step_is_vllms(case: Case) -> None:
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    if case.name in ("kv-scarce", "pauses"):
        assert any(step.preempted for step in real.steps)
    if case.settings.swap_space_gib:
        assert real.log is not None and real.log.counters["swap_loads"] >= 5


def _check_version(case: Case) -> None:
    settings = case.settings
    caches, groups = settings.enable_prefix_caching, settings.kv_groups
    if any(group.states for group in groups) and not follows_mamba(caches):
        pytest.skip("the model follows vLLM 0.32, see tests/other_vllm.py")
    if any(group.window_tokens == STATE_WINDOW for group in groups) and caches and not has_mamba_all():
        pytest.skip("this vLLM has no Mamba mode `all`")


def _marked(case: Case) -> Any:
    marks = () if case.policy in OFTEN else pytest.mark.slow
    return pytest.param(case, id=f"{case.name}-{case.policy or 'stock'}", marks=marks)


SWAPPED = ("swap-windows-cache", "swap-llama-4", "swap-mamba-align-windows")
"""Each way in which layers give blocks back, with a prefix cache where vLLM has one there."""

PROFILES = ("h100x2-qwen3-next-80b",)
"""Mamba's states in blocks of 528 tokens; windows of one model are among the layouts."""


SHOWN = ("windows", "two-windows", "llama-4", "mamba-none", "mamba-all", "mamba-align-windows")
"""Layouts of ``make test``: each way in which layers keep KV, alone and beside others."""


def _some(every: Sequence[Case]) -> Iterator[Case]:
    """Yield all of them for ``make whole``; else some layouts under chaos, and some under another policy.

    A layout with a prefix cache shows what it shows without one, but for what the cache keeps.
    """
    in_turn: dict[str, int] = {}
    cached = {case.name.removesuffix("-cache") for case in every if case.name.endswith("-cache")}
    for case in every:
        turn = in_turn.setdefault(case.name, len(in_turn))
        other = (None, *OTHERS)[turn // 3 % (1 + len(OTHERS))]
        is_chosen = (case.policy == "chaos" and case.name not in cached) or (turn % 3 == 0 and case.policy == other)
        if WHOLE or (is_chosen and case.name.removesuffix("-cache") in SHOWN):
            yield case


@pytest.mark.parametrize("case", list(map(_marked, _some(list(layout_cases())))))
def test_every_step_is_vllms_whatever_layers_keep(case: Case) -> None:
    """Windows, local chunks, Mamba's states in three ways, and mixtures, where KV is scarce."""
    _check_version(case)
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    if case.policy == "chaos":
        assert sum(len(step.preempted) for step in real.steps) > 20


@pytest.mark.parametrize("case", sampled_cases(swapped_layout_cases(), lambda case: case.name in SWAPPED))
def test_every_step_is_vllms_where_layers_that_give_blocks_back_are_swapped(case: Case) -> None:
    _check_version(case)
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert real.log is not None and real.log.counters["swap_loads"] > 20
    assert not {"swap_failures", "swap_dropped_failed"} & set(real.log.counters)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", sampled_cases(profile_cases(), lambda case: case.policy == "edf" and case.name in PROFILES)
)
def test_every_step_is_vllms_with_the_groups_of_a_shipped_profile(case: Case) -> None:
    """Blocks of 528 and 1056 tokens too, which a chunk of a prompt may not reach."""
    _check_version(case)
    real = run_real(case)
    assert difference(real, run_model(case)) is None
    assert any(step.preempted for step in real.steps)


POLICIES = (None, "edf:preempt_margin_s=0.1", "sjf:preempt=true:length=oracle", "chaos", "chaos:pause=0.8")
MODEL_LEN = 160


@st.composite
def kv_groups(draw: st.DrawFn, caches: bool) -> tuple[KVGroups, ...]:
    """One to three kinds of layers, each in one or two groups; with a prefix cache in blocks of one size."""
    kinds = [{}, {"window_tokens": 33}, {"window_tokens": 70}, {"chunk_tokens": 48}, {"window_tokens": STATE_WINDOW}]
    # vLLM's manager of chunks knows no others' block sizes, and Mamba has one way to keep states.
    kinds += [{"states": 2}]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique_by=lambda kind: tuple(kind.items())))
    if {"states": 2} in chosen:
        chosen = [kind for kind in chosen if kind != {"window_tokens": STATE_WINDOW}]
    sizes = st.just(16) if caches or {"states": 2} in chosen else st.sampled_from([8, 16, 32])
    return tuple(KVGroups(draw(st.sampled_from([1, 2])), draw(sizes), **kind) for kind in chosen)


@st.composite
def small_cases(draw: st.DrawFn, layouts: bool = False) -> Case:
    """A handful of requests on a KV cache that hardly holds one or two of them. layouts: of several kinds of layers."""
    arrivals = sorted(draw(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3]), min_size=3, max_size=9)))
    requests = [
        WorkloadRequest(
            f"r{i}",
            arrival_s,
            draw(st.sampled_from([1, 15, 16, 17, 31, 48, 100, MODEL_LEN - 1])),
            draw(st.sampled_from([1, 2, 16, 33, 60])),
            DEFAULT_CLASSES.slo(draw(st.sampled_from(DEFAULT_CLASSES.names)), Targets(e2e_s=0.5)),
            max_tokens=draw(st.sampled_from([None, None, 1, 16, 33])),
            prefix_ids=draw(st.sampled_from([(), (1,), (1,), (2,), (1, 2), (1, 3)])),
            prefix_block_tokens=draw(st.sampled_from([16, 24, 512])),
        )
        for i, arrival_s in enumerate(arrivals)
    ]
    engine = EngineSettings(
        kv_blocks=draw(st.sampled_from([10, 11, 13, 16])),
        max_num_seqs=draw(st.sampled_from([2, 4, 8])),
        max_num_batched_tokens=draw(st.sampled_from([16, 48, 200])),
        max_model_len=MODEL_LEN,
        enable_prefix_caching=draw(st.booleans()),
        swap_space_gib=draw(st.sampled_from([0.0, 0.01, 0.1])),
        link_gb_per_s=draw(st.sampled_from([0.05, 1.0])),
        swapping=draw(st.sampled_from(["cost", "always"])),
    )
    if layouts:
        groups = draw(kv_groups(caches=engine.enable_prefix_caching))
        if any(one.window_tokens == STATE_WINDOW for one in groups):  # in blocks this short of Mamba's mode `all`
            engine = replace(engine, swap_space_gib=0.0)
        engine = replace(engine, kv_blocks=1000, kv_groups=groups)
        least = blocks_of_longest(engine.layout, MODEL_LEN)
        engine = replace(engine, kv_blocks=least + draw(st.sampled_from([0, 1, 3, least])))
    gone = draw(st.lists(st.sampled_from(requests), max_size=3, unique_by=lambda r: r.request_id))
    aborts = {r.request_id: r.arrival_s + draw(st.sampled_from([0.0, 0.004, 0.03])) for r in gone}
    plan_us = draw(st.sampled_from([0.0, 2000.0]))
    return Case("small", draw(st.sampled_from(POLICIES)), engine, requests, plan_us, 0.2, aborts=aborts or None)


@given(case=small_cases())
@settings(max_examples=25)
def test_nothing_small_is_scheduled_differently(case: Case) -> None:
    assert difference(run_real(case), run_model(case)) is None


@given(case=small_cases(layouts=True))
@settings(max_examples=40)
def test_nothing_small_is_scheduled_differently_whatever_layers_keep(case: Case) -> None:
    groups, caches = case.settings.kv_groups, case.settings.enable_prefix_caching
    assume(follows_mamba(caches) or not any(group.states for group in groups))
    assume(has_mamba_all() or not caches or not any(group.window_tokens == STATE_WINDOW for group in groups))
    assert difference(run_real(case), run_model(case)) is None


@pytest.mark.parametrize("policy", sampled(["auto", "edf"], ["edf"]))
def test_every_step_is_vllms_where_tenants_have_shares(policy: str) -> None:
    """Three tenants, of which one sends most; shares change what is scheduled, and in both alike."""
    (case,) = [case for case in cases() if (case.name, case.policy) == ("kv-scarce", "edf")]
    requests = [replace(one, tenant="abbbbc"[i % 6]) for i, one in enumerate(case.requests)]
    plain = replace(case, policy=policy, requests=requests)
    shared = replace(plain, tenant_shares={"weights": {"c": 2.0}})
    real = run_real(shared)
    assert difference(real, run_model(shared)) is None
    assert difference(real, run_model(plain)) is not None


@pytest.mark.parametrize("policy", sampled([None, "edf", "auto", "fcfs"], [None, "edf"]))
def test_every_step_is_vllms_where_more_adapters_are_named_than_may_run(policy: str | None) -> None:
    """Of five adapters one is named most, and two may run at once; some requests name none."""
    (case,) = [case for case in cases() if (case.name, case.policy) == ("kv-scarce", "edf")]
    requests = [
        replace(one, adapter=("hot", "hot", "b", "hot", "", "c", "hot", "d")[i % 8])
        for i, one in enumerate(case.requests)
    ]
    shares = None if policy is None else {}
    plain = replace(case, policy=policy, requests=requests, tenant_shares=shares)
    short = replace(plain, settings=replace(case.settings, max_loras=2))
    real = run_real(short)
    assert difference(real, run_model(short)) is None
    assert difference(real, run_model(plain)) is not None


def test_a_difference_is_told_by_step_and_request() -> None:
    """As a vLLM that admits one request more would show."""
    (case,) = [case for case in cases() if case.name == "slots-bind" and case.policy is None]
    more = replace(case, settings=replace(case.settings, max_num_seqs=case.settings.max_num_seqs + 1))
    found = difference(run_real(case), run_model(more))
    assert (
        found is not None and found.startswith("step ") and "admitted, place" in found and "vLLM none, model r" in found
    )
