"""Pages as metrics: what a scheduler wrote is what a scrape shows, per engine and without duplicates."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import sloserve
from sloserve.engine.metrics.engine_metrics import PageCollector, one_of_each_rank
from sloserve.engine.metrics.engine_page import Layout, PageSnapshot, PageWriter, find_pages
from sloserve.engine.metrics.swap_figures import DROPS, REFUSALS
from sloserve.engine.swap import store as swap_store

CLASSES = ("interactive", "batch")


def write(page: PageWriter, **values: float) -> None:
    for name, value in values.items():
        page.values[Layout.at[name]] = value


@pytest.fixture
def scrape(tmp_path: Path) -> Callable[..., float | None]:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PageCollector(lambda: [page.snapshot() for page in find_pages(tmp_path)]))

    def value(name: str, **labels: str) -> float | None:
        found = {("class" if key == "cls" else key): value for key, value in labels.items()}
        return registry.get_sample_value(f"sloserve:{name}", found)

    return value


def test_what_a_scheduler_wrote_is_shown(tmp_path: Path, scrape: Callable[..., float | None]) -> None:
    assert scrape("running_requests", engine="0") is None
    page = PageWriter(CLASSES, 0, tmp_path)
    page.set_policies("edf:preempt=false", "sjf", None)
    write(page, running=3, paused=2, preempted=1, plans=10, reused_plans=20, plan_errors=1, malformed_slo=4)
    write(
        page,
        policy_preemptions=5,
        vllm_preemptions=6,
        paused_steps=7,
        limited_steps=11,
        shadow_plans=8,
        shadow_errors=1,
    )
    write(page, shadow_agreement_sum=6.0, shadow_agreement_count=8, shadow_gain_sum=-2.0, shadow_gain_count=4)
    write(page, plan_seconds_sum=0.5)
    for cost_s in (1e-5, 3e-5, 1.0):
        page.values[Layout.bucket(cost_s)] += 1
    page.values[Layout(len(CLASSES)).waiting + 1] = 9
    shown = {
        ("running_requests",): 3, ("paused_requests",): 2, ("preempted_requests",): 1,
        ("plans_total", "kind", "fresh"): 10, ("plans_total", "kind", "reused"): 20,
        ("plans_total", "kind", "error"): 1, ("paused_request_steps_total",): 7, ("limited_steps_total",): 11,
        ("malformed_slo_total",): 4,
        ("queue_requests", "cls", "interactive"): 0, ("queue_requests", "cls", "batch"): 9,
        ("shadow_plans_total",): 8, ("shadow_errors_total",): 1,
        ("shadow_agreement_ratio",): 0.75, ("shadow_predicted_attainment_difference",): -0.5,
        ("scheduler_plan_seconds_sum",): 0.5, ("scheduler_plan_seconds_count",): 3,
        ("scheduler_plan_seconds_bucket", "le", "1e-05"): 1, ("scheduler_plan_seconds_bucket", "le", "5e-05"): 2,
        ("scheduler_plan_seconds_bucket", "le", "0.1"): 2, ("scheduler_plan_seconds_bucket", "le", "+Inf"): 3,
    }  # fmt: skip
    for (name, *label), expected in shown.items():
        assert scrape(name, engine="0", **dict([label] if label else [])) == expected, (name, label)
    assert scrape("preemptions_total", engine="0", mode="recompute", by="policy") == 5
    assert scrape("preemptions_total", engine="0", mode="recompute", by="vllm") == 6
    assert scrape("scheduler_policy_info", engine="0", policy="edf:preempt=false", shadow_policy="sjf") == 1
    assert scrape("scheduler_plans_off", engine="0", reason="") == 0.0
    page.close()
    assert scrape("running_requests", engine="0") is None


def test_each_rank_is_shown_and_without_a_shadow_there_is_nothing_of_it(
    tmp_path: Path, scrape: Callable[..., float | None]
) -> None:
    for rank in (0, 1):
        page = PageWriter(CLASSES, rank, tmp_path)
        page.set_policies("edf", None, "pooling models")
        write(page, running=rank + 1)
    assert [scrape("running_requests", engine=rank) for rank in ("0", "1")] == [1.0, 2.0]
    assert scrape("scheduler_policy_info", engine="1", policy="edf", shadow_policy="") == 1.0
    assert scrape("scheduler_plans_off", engine="1", reason="pooling models") == 1.0
    assert scrape("shadow_agreement_ratio", engine="0") is None


def test_of_several_engines_of_a_rank_the_one_at_work_is_shown(tmp_path: Path) -> None:
    PageWriter(CLASSES, 0, tmp_path)
    (page,) = find_pages(tmp_path)
    first = page.snapshot()
    others: list[PageSnapshot] = [
        replace(first, last_step_s=5.0, running=1.0),
        replace(first, last_step_s=4.0),
        replace(first, last_step_s=9.0, alive=False),
        replace(first, rank=1),
    ]
    assert one_of_each_rank([first, *others]) == [others[0], others[3]]
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PageCollector(lambda: [first, *others]))
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if line.startswith("sloserve:running_requests{")] == [
        'sloserve:running_requests{engine="0"} 1.0',
        'sloserve:running_requests{engine="1"} 0.0',
    ]


@pytest.mark.slow
def test_swapping_is_shown_where_there_is_a_pool(tmp_path: Path, scrape: Callable[..., float | None]) -> None:
    without, page = PageWriter(CLASSES, 0, tmp_path), PageWriter(CLASSES, 1, tmp_path)
    write(without, vllm_preemptions=4)
    write(
        page,
        swap_pool_used_bytes=3.0,
        swap_pool_peak_bytes=7.0,
        swap_pool_total_bytes=9.0,
        policy_preemptions=5,
        vllm_preemptions=6,
    )
    write(
        page,
        swap_stores=8,
        swap_stores_of_ended=70,
        swapped_by_policy=3,
        swap_loads=2,
        swap_failures=1,
        swap_out_bytes=2e12,
        swap_in_seconds=4.5,
    )
    write(page, swapped_in_tokens=12, swap_refused_full=13, swap_dropped_epoch=14, swaps_sum=20)
    for swaps, requests in ((0, 4), (2, 5), (14, 1)):
        page.values[Layout.swap_bucket(swaps)] += requests
    shown = {
        ("swap_pool_bytes", "kind", "used"): 3, ("swap_pool_bytes", "kind", "peak"): 7,
        ("swap_pool_bytes", "kind", "total"): 9, ("swap_stores_total",): 8, ("swap_loads_total",): 2,
        ("swap_stores_of_ended_total",): 70,
        ("swap_failures_total",): 1, ("swap_bytes_total", "direction", "out"): 2e12,
        ("swap_bytes_total", "direction", "in"): 0, ("swap_seconds_total", "direction", "in"): 4.5,
        ("swap_tokens_total", "direction", "in"): 12, ("swap_refusals_total", "reason", "full"): 13,
        ("swap_refusals_total", "reason", "cost"): 0, ("swap_drops_total", "reason", "epoch"): 14,
        ("request_swaps_count",): 10, ("request_swaps_sum",): 20, ("request_swaps_bucket", "le", "0"): 4,
        ("request_swaps_bucket", "le", "1"): 4, ("request_swaps_bucket", "le", "2"): 9,
    }  # fmt: skip
    for (name, *label), expected in shown.items():
        assert scrape(name, engine="1", **dict([label] if label else [])) == expected, (name, label)
        assert scrape(name, engine="0", **dict([label] if label else [])) is None
    for mode, by, count in (
        ("swap", "policy", 3),
        ("swap", "vllm", 5),
        ("recompute", "policy", 2),
        ("recompute", "vllm", 1),
    ):
        assert scrape("preemptions_total", engine="1", mode=mode, by=by) == count
    assert scrape("preemptions_total", engine="0", mode="recompute", by="vllm") == 4


def test_every_reason_for_which_kv_is_not_kept_has_a_place_on_the_page() -> None:
    """A reason is of the store's own, or written where the store or the engine's swapping says it."""
    package = Path(sloserve.__file__).parent
    files = {*package.rglob("*swap*.py"), *package.rglob("swap/*.py")}
    text = "".join(file.read_text() for file in files)
    dropped = set(re.findall(r"\.drop\([\w.\[\]]+, \"(\w+)\"\)", text))
    assert dropped >= {"preempted_again", "worth_less", "failed", "epoch"} and dropped <= set(DROPS)
    engine = (package / "vllm_plugin/engine/swapping.py").read_text()
    refused = re.findall(r"(?:return|reason =) \"(\w+)\"", engine)
    assert {*get_args(swap_store.Refusal), *refused} == set(REFUSALS)
