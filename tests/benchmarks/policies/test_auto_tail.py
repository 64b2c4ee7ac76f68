"""Ratios of stock's figures, the other orders of waiting requests, and the families of the picture."""

import numpy as np
import pytest

from benchmarks.policies.auto_cells import AutoCell
from benchmarks.policies.auto_tail import AUTO, CELLS, FIGURES, LOADS, ORDERS, POLICIES, family_of, of_stock, ordered
from sloserve.scheduler.auto import policy as planning
from sloserve.scheduler.auto.policy import Auto
from tests.snapshots import make_snapshot

NOW_S = 1000.0


def row(policy: str, seed: int, value: float, p99_s: float) -> dict[str, object]:
    cell = AutoCell("azure-code", "none", "ample", "h100-llama3-8b", "1")._asdict()
    return {**cell, "seed": seed, "policy": policy, **dict.fromkeys(FIGURES, value), "ttft_p99_s": p99_s}


def test_figures_are_compared_with_stock_in_the_same_cell_and_seed() -> None:
    rows = [row("stock", 0, 2.0, 4.0), row(AUTO, 0, 1.0, 6.0), row("stock", 1, 10.0, 0.5), row(AUTO, 1, 5.0, 1.0)]
    found = of_stock(rows).set_index(["policy", "seed"])
    assert found.loc[AUTO].ttft_mean_s.tolist() == [0.5, 0.5] and found.loc[AUTO].ttft_p99_s.tolist() == [1.5, 2.0]
    assert found.loc["stock"].tokens_per_s.tolist() == [1.0, 1.0]
    assert found.loc[AUTO].quick.tolist() == [1.0, 5.0]  # a share, which is no ratio
    assert found.loc[AUTO].queues.tolist() == [True, False]


def test_no_cell_states_a_target_and_each_is_run_once() -> None:
    assert {cell.targets for cell in CELLS} == {"none"}
    assert len(set(CELLS)) == len(CELLS) and len(set(LOADS)) == len(LOADS) and len(set(POLICIES)) == len(POLICIES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bounded wait 1", [0, 1, 2]),  # all have waited for longer than the queue takes
        ("own deadline 100", [2, 1, 0]),
        ("response ratio 1", [2, 1, 0]),
    ],
)
def test_other_orders_replace_that_of_auto_and_are_taken_back(name: str, expected: list[int]) -> None:
    at = make_snapshot(
        [
            {"arrival_s": NOW_S - 110.0, "prompt_tokens": 2000},
            {"arrival_s": NOW_S - 105.0, "prompt_tokens": 1000},
            {"arrival_s": NOW_S - 100.0, "prompt_tokens": 10},
        ]
    )
    before = planning.ranked
    with ordered(ORDERS[name]):
        found = Auto().plan(at, NOW_S).waiting
    assert found is not None and found.tolist() == expected
    assert planning.ranked is before


def test_families_are_named_without_their_parameter() -> None:
    names = ["auto", "auto:tail=2", "bounded wait 0.5", "sjf:step_budget=true", "stock"]
    assert [family_of(name) for name in names] == ["auto, tail", "auto, tail", "bounded wait", "sjf", "stock"]
    assert np.unique([family_of(name) for name in ORDERS]).size == 3
