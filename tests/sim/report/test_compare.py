"""Verdicts against the baseline: pairing, intervals, threshold, direction."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.compare import CAPACITY, DEFAULT_METRICS, Comparison, Verdict, compare
from sloserve.sim.report.load_capacity import load_capacity
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run, summarize
from sloserve.sim.report.tables import capacity_table, class_latency_table, summary_table


def runs_of(policy: str, values: list[float | None], *, metric: str = "slo_attainment", load: float = 1.0) -> list[Run]:
    return [{"policy": policy, "seed": s, "rps": 9.0, "load": load, metric: v} for s, v in enumerate(values)]


def printed(table: Table) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def only(found: list[Comparison]) -> Comparison:
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
def test_interval_is_students() -> None:
    from scipy import stats  # takes a quarter of a second

    values = [3.0, 4.5, 5.0, 2.5]
    found = mean_interval(values)
    assert found is not None and found.n == 4
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)


def test_interval_of_too_few_or_equal_values() -> None:
    assert mean_interval([]) is None
    single = mean_interval([2.0])
    assert single is not None and (single.value, single.low, single.high) == (2.0, None, None)
    equal = mean_interval([2.0, 2.0, 2.0])
    assert equal is not None and (equal.low, equal.high) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("metric", "stock", "edf", "verdict"),
    [
        ("slo_attainment", [0.5, 0.6, 0.55], [0.7, 0.8, 0.76], Verdict.WIN),
        ("slo_attainment", [0.7, 0.8, 0.76], [0.5, 0.6, 0.55], Verdict.LOSS),
        ("p99_ttft_ms", [900.0, 1000.0, 950.0], [500.0, 610.0, 540.0], Verdict.WIN),
        ("p99_ttft_ms", [500.0, 610.0, 540.0], [900.0, 1000.0, 950.0], Verdict.LOSS),
        ("slo_attainment", [0.5, 0.6, 0.55], [0.52, 0.62, 0.57], Verdict.TIE),  # certain, below the threshold
        ("slo_attainment", [0.5, 0.6, 0.55], [0.9, 0.5, 0.6], Verdict.TIE),  # large, uncertain
        ("slo_attainment", [0.5, 0.6, 0.55], [0.5, 0.6, 0.55], Verdict.TIE),
        ("slo_attainment", [0.0, 0.0, 0.0], [0.2, 0.2, 0.2], Verdict.WIN),  # no ratio to nothing
        ("slo_attainment", [0.5, 0.6], [0.7, 0.8], Verdict.INSUFFICIENT),
        ("slo_attainment", [0.5, 0.6, None], [0.7, 0.8, 0.9], Verdict.INSUFFICIENT),
        ("qoe_mean", [None, None, None], [None, None, None], Verdict.INSUFFICIENT),
    ],
)
def test_verdicts(metric: str, stock: list[float | None], edf: list[float | None], verdict: Verdict) -> None:
    runs = runs_of("stock", stock, metric=metric) + runs_of("edf", edf, metric=metric)
    assert only(compare(runs, metrics=[metric])).verdict is verdict


def test_pairing_removes_what_seeds_have_in_common() -> None:
    """Seeds differ far more than policies do; unpaired intervals would overlap widely."""
    stock = [10.0, 50.0, 90.0]
    runs = runs_of("stock", stock, metric="request_goodput")
    runs += runs_of("edf", [value + 5.0 + 0.1 * value / 90 for value in stock], metric="request_goodput")[::-1]
    found = only(compare(runs, metrics=["request_goodput"]))
    assert found.verdict is Verdict.WIN
    assert found.difference == pytest.approx(5.0 + 0.1 * 50 / 90)
    assert found.ratio == pytest.approx(1 + found.difference / 50.0)
    assert found.difference_low is not None and found.difference_low > 4.8


def test_only_common_seeds_are_paired() -> None:
    runs = runs_of("stock", [0.5, 0.5, 0.5]) + runs_of("edf", [0.8, 0.8, 0.8, 0.1])
    found = only(compare(runs, metrics=["slo_attainment"]))
    assert (found.pairs, found.value) == (3, pytest.approx(0.8))


def test_threshold_is_the_callers() -> None:
    runs = runs_of("stock", [0.5, 0.6, 0.55]) + runs_of("edf", [0.52, 0.62, 0.57])
    assert only(compare(runs, metrics=["slo_attainment"], threshold=0.01)).verdict is Verdict.WIN


def test_loads_are_compared_apart_and_in_order() -> None:
    runs = [
        *runs_of("edf", [0.9, 0.9, 0.9], load=2.0),
        *runs_of("edf", [0.9, 0.9, 0.9], load=1.0),
        *runs_of("stock", [0.5, 0.5, 0.5], load=2.0),
    ]
    found = compare(runs, metrics=["slo_attainment"])
    assert [(c.load, c.verdict) for c in found] == [(1.0, Verdict.INSUFFICIENT), (2.0, Verdict.WIN)]
    assert found[1].as_dict()["verdict"] == "win"


def test_load_axis_falls_back_to_the_offered_rate() -> None:
    runs = [{"policy": p, "seed": 0, "rps": 9.0, "lost": 0} for p in ("stock", "edf")]
    assert only(compare(runs, metrics=["lost"])).load == 9.0


def test_misuse_is_refused() -> None:
    runs = runs_of("stock", [0.5])
    with pytest.raises(ValueError, match="two runs of policy 'stock'"):
        compare(runs + runs)
    with pytest.raises(ValueError, match="no better direction"):
        compare(runs, metrics=["kv_utilization_mean"])
    assert compare(runs, baseline="fcfs") == []


@pytest.mark.slow
def test_table_marks_wins_and_losses(synthetic_run: Callable[..., RunLog]) -> None:
    runs = [
        summarize(synthetic_run(seed=seed, delay_s=delay_s * load), policy=policy, seed=seed, rps=4.0 * load, load=load)
        for policy, delay_s in (("stock", 1.0), ("edf", 0.4), ("slow", 4.0))
        for load in (1.0, 2.0)
        for seed in range(3)
    ]
    assert {c.metric for c in compare(runs)} == set(DEFAULT_METRICS)
    lines = printed(summary_table(runs, compare(runs), title="w")).splitlines()
    rows = {tuple(line.split()[:2]): line for line in lines if line.strip() and line.split()[0] in ("1", "2")}
    assert list(rows) == [(load, policy) for load in ("1", "2") for policy in ("stock", "edf", "slow")]
    assert "+" not in rows["1", "stock"]
    assert rows["1", "edf"].split()[2].endswith("+"), "attainment won"
    assert rows["1", "slow"].split()[2].endswith("-"), "attainment lost"
    assert any("interactive" in line and "batch" in line for line in lines)
    assert any("worse than stock" in line for line in lines)


def test_table_of_one_seed_without_targets(
    request_log: Callable[..., RequestLog], step_log: Callable[..., StepLog]
) -> None:
    log = RunLog([request_log("a", 0.0, [0.5, 0.6], slo_class="free")], step_log())
    runs = [summarize(log, policy=policy, seed=0, rps=1.0) for policy in ("stock", "fcfs")]
    text = printed(summary_table(runs, compare(runs)))
    assert "No verdicts against stock: they take at least 3 seeds." in text
    assert "req/s" in text and "+" not in text


def test_latency_of_each_class_stands_by_itself(
    request_log: Callable[..., RequestLog], step_log: Callable[..., StepLog]
) -> None:
    quick = [request_log(f"q{i}", 0.0, [0.25, 0.5], slo_class="interactive") for i in range(3)]
    slow = [request_log(f"s{i}", 0.0, [8.0, 16.0], slo_class="batch") for i in range(3)]
    runs = [summarize(RunLog([*quick, *slow], step_log()), policy="edf", seed=0, rps=1.0)]
    table = class_latency_table(runs)
    assert table is not None
    rows = [line.split() for line in printed(table).splitlines() if "edf" in line]
    assert rows == [
        ["1", "interactive", "edf", "0.250", "0.250", "0.500", "0.500"],
        ["1", "batch", "edf", "8.00", "8.00", "16.0", "16.0"],
    ]
    alone = [summarize(RunLog(quick, step_log()), policy="edf", seed=0, rps=1.0)]
    assert class_latency_table(alone) is None


def test_table_of_what_policies_carry() -> None:
    curves = {"stock": (0.95, 0.85), "low": (0.5, 0.4), "high": (1.0, 0.95)}
    runs = [
        {"policy": policy, "seed": seed, "rps": 4.0 * load, "load": load, "qoe_mean": qoe}
        for policy, curve in curves.items()
        for seed in range(2)
        for load, qoe in zip((1.0, 2.0), curve, strict=True)
    ]
    rows = [
        line.split()
        for line in printed(
            capacity_table(load_capacity(runs, "qoe_mean", 0.9), "mean QoE >= 0.9", CAPACITY)
        ).splitlines()
    ]
    assert " ".join(rows[0]).startswith("load at mean QoE >= 0.9, x stock's capacity")
    assert ["stock", "1.50", "1.50", "..", "1.50", "-"] in rows
    assert ["low", "<=", "1.00", "<=", "0.67"] in rows
    assert ["high", ">=", "2.00", ">=", "1.33"] in rows
