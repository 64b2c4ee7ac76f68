"""vLLM's scheduler of 2023: whole prompts first and alone, in order of arrival, above a watermark."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.baselines.vllm_2023 import VLLM2023
from sloserve.core.rows import State
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.sim.model.engine import ModelEngine
from tests.golden.test_golden import SETTINGS, small_workload

Make = Callable[..., Snapshot]
DECODES: dict[str, Any] = {"prompt_tokens": 16, "computed_tokens": 16, "output_tokens": 1}


def plan_of(at: Snapshot, **options: Any) -> Plan:
    made = VLLM2023(VLLM2023.Settings(**options)).plan(at, 0.0)
    check_plan(made, at)
    return made


def test_prompts_stop_all_decodes_but_the_oldest(snapshot: Make) -> None:
    made = plan_of(snapshot([{}, {}], [DECODES] * 3))
    assert made.waiting is not None and made.waiting.tolist() == [3, 4]
    assert made.max_running == 5 and made.pause.tolist() == [1, 2]


def test_without_a_prompt_that_fits_all_decode_and_none_is_admitted(snapshot: Make) -> None:
    made = plan_of(snapshot([{"prompt_tokens": 160}], [DECODES] * 3, free_blocks=11, total_blocks=200))
    assert made.max_running == 3 and not made.pause.size, "10 of 11 blocks, of which the watermark takes 2"
    assert plan_of(snapshot([{"prompt_tokens": 160}], [DECODES] * 3, free_blocks=12, total_blocks=200)).max_running == 4


def test_a_prompt_is_whole_or_waits_for_the_next_step(snapshot: Make) -> None:
    at = snapshot([{"prompt_tokens": n} for n in (1000, 1000, 500)], [DECODES])
    assert plan_of(at).max_running == 3, "2,000 of 2,048 tokens"


def test_padding_keeps_prompts_of_other_lengths_out_of_the_step(snapshot: Make) -> None:
    at = snapshot([{"prompt_tokens": n} for n in (300, 500, 300)], [DECODES])
    assert plan_of(at).max_running == 3, "200 tokens of padding, then 400"
    assert plan_of(at, max_paddings=0).max_running == 4
    assert plan_of(at, max_paddings=1).max_running == 2


def test_a_prompt_longer_than_a_step_has_its_steps_alone(snapshot: Make) -> None:
    at = snapshot([{"prompt_tokens": 3000}, {}], [DECODES] * 2)
    assert plan_of(at).max_running == 3
    begun = {"prompt_tokens": 3000, "computed_tokens": 2048}
    made = plan_of(snapshot([{}], [DECODES, DECODES, begun]))
    assert made.max_running == 3 and made.pause.tolist() == [0, 1]


def test_the_latest_arrival_is_the_last_in_order_and_so_the_first_victim(snapshot: Make) -> None:
    made = plan_of(snapshot([], [DECODES] * 3))
    assert made.running is not None and made.running.tolist() == [0, 1, 2] and not made.preempt.size


def test_swapped_requests_come_back_before_any_prompt_and_stop_no_decode(snapshot: Make) -> None:
    swapped = {"state": State.PREEMPTED, "prompt_tokens": 16, "output_tokens": 20, "swapped_tokens": 36}
    made = plan_of(snapshot([{}, swapped], [DECODES] * 2))
    assert made.waiting is not None and made.waiting.tolist() == [3, 2]
    assert made.max_running == 3 and not made.pause.size


def test_an_idle_engine_admits_the_first_whatever_the_watermark_says(snapshot: Make) -> None:
    at = snapshot([{"prompt_tokens": 1600}], free_blocks=100, total_blocks=101)
    assert plan_of(at, watermark=0.5).max_running == 1


def test_where_the_engine_does_not_admit_decodes_go_on_in_every_other_step(snapshot: Make) -> None:
    policy, at = VLLM2023(), snapshot([{}], [DECODES] * 3)
    assert [policy.plan(at, 0.0).pause.size for _ in range(4)] == [2, 0, 2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ":max_paddings=0"])
def test_no_step_has_prompts_beside_more_than_one_decode(options: str) -> None:
    settings = replace(SETTINGS, max_num_batched_tokens=256)
    config = {"sloserve": {"policy": f"vllm-2023{options}", "aged_share": 0}}
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), config, planning_costs=planning_costs())
    mixed: list[int] = []
    stock = engine.scheduler.schedule

    def schedule() -> Any:
        batch = stock()
        prompts = batch.tokens > 1
        if prompts.any():
            mixed.append(int((~prompts).sum()))
        return batch

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    log = engine.run(small_workload())
    assert mixed and max(mixed) <= 1 and all(one.outcome == "completed" for one in log.requests)
