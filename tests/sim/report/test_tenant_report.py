"""What each tenant got: Jain's index by its properties, slowdown against an engine, figures by hand, and the table."""

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.runs_csv import parse_runs, runs_text
from sloserve.sim.report.statistics import jain_index
from sloserve.sim.report.tenant_report import MOST_TENANTS, alone_s, tenant_record
from sloserve.sim.report.tenant_table import MOST_ROWS, tenant_table

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]
some_values = st.lists(st.floats(0.0, 1e9), min_size=1, max_size=20)


@given(some_values)
def test_jains_index_lies_between_one_part_and_one(values: list[float]) -> None:
    index = jain_index(values)
    assert index is not None and 1.0 / len(values) - 1e-12 <= index <= 1.0 + 1e-12


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20), st.floats(1e-6, 1e6))
def test_jains_index_does_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    assert jain_index([value * factor for value in values]) == pytest.approx(jain_index(values))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_jains_index_is_one_if_and_only_if_all_values_are_equal(values: list[int]) -> None:
    assert (jain_index(values) == pytest.approx(1.0, abs=1e-10)) == (len(set(values)) == 1)


def test_jains_index_of_one_that_has_everything_and_of_nothing() -> None:
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == 0.25 and jain_index([0.0, 0.0]) == 1.0 and jain_index([]) is None
    assert jain_index([3.0, 1.0]) == pytest.approx(16 / 20) and jain_index([1e300, 1e300]) == 1.0


@pytest.mark.parametrize(("prompt", "output"), [(100, 1), (100, 50), (5000, 20)])
def test_a_request_that_is_alone_has_no_slowdown(prompt: int, output: int) -> None:
    profile = load_profile("h100-llama3-8b")
    engine = EngineSettings.of_profile(profile, kv_blocks=2000, max_num_batched_tokens=2048)
    request = WorkloadRequest("r", 0.0, prompt, output, DEFAULT_CLASSES.slo(None, Targets()))
    (log,) = ModelEngine(engine, profile, None).run([request]).requests
    assert log.latency is not None
    assert log.latency.e2e_s / alone_s(request, profile, 2048) == pytest.approx(1.0, abs=0.02)


@pytest.fixture
def log(request_log: MakeRequest, step_log: MakeSteps) -> RunLog:
    """Tenant a has two requests in time, tenant b one of two, and one request names no tenant."""
    logs = [
        ("a", request_log("r0", 0.0, [0.5, 0.6])),
        ("a", request_log("r1", 0.0, [0.5, 0.7])),
        ("b/c", request_log("r2", 0.0, [0.5, 1.2], slo_class="batch")),
        ("b/c", request_log("r3", 0.0, [], outcome=Outcome.REJECTED)),
        ("", request_log("r4", 0.0, [0.1], slo_class="free")),
    ]
    return RunLog([replace(one, request=replace(one.request, tenant=name)) for name, one in logs], step_log())


def test_figures_of_each_tenant(log: RunLog) -> None:
    record = tenant_record(replace(log, tenant_service_s={"a": 6.0, "b/c": 1.0, "": 2.0}), lambda _: 0.1, {"a": 3.0})
    assert list(record["by_tenant"]) == ["none", "a", "b/c"] and record["tenants"] == 3
    assert record["by_tenant"]["b/c"] == {
        "requests": 2, "completed": 1, "slo_attainment": 0.5, "slo_attainment_admitted": 1.0, "service_s": 1.0,
        "tokens": 12, "mean_slowdown": pytest.approx(12.0),
    }  # fmt: skip
    assert record["by_tenant"]["a"]["mean_slowdown"] == pytest.approx(6.5)
    assert record["by_tenant"]["none"]["slo_attainment"] is None
    assert record["jain_attainment"] == pytest.approx(1.5**2 / (2 * 1.25))
    assert record["jain_slowdown"] == pytest.approx(19.5**2 / (3 * (6.5**2 + 12**2 + 1)))
    assert record["jain_service_per_weight"] == pytest.approx(5**2 / (3 * (2**2 + 1 + 2**2)))


def test_what_is_not_known_is_left_open(log: RunLog) -> None:
    record = tenant_record(log)
    assert record["jain_slowdown"] is record["jain_service_per_weight"] is None
    assert {one["service_s"] for one in record["by_tenant"].values()} == {None}
    assert tenant_record(replace(log, requests=log.requests[:2])) == {}, "there is nothing to compare"


def test_a_name_that_is_a_label_of_ours_is_counted_with_it(log: RunLog) -> None:
    last = log.requests[-1]
    named = replace(last, request=replace(last.request, tenant="none"))
    assert tenant_record(replace(log, requests=[*log.requests, named]))["by_tenant"]["none"]["requests"] == 2


def test_records_have_a_bounded_number_of_tenants_and_the_index_is_over_all(request_log: MakeRequest) -> None:
    one = request_log("r", 0.0, [0.5, 0.6])
    logs = [replace(one, request=replace(one.request, tenant=f"t{i}")) for i in range(70)] * 2
    record = tenant_record(RunLog(logs, None), lambda _: 0.1)  # type: ignore[arg-type]
    assert len(record["by_tenant"]) == MOST_TENANTS and record["tenants"] == 70 and record["jain_slowdown"] == 1.0
    assert record["by_tenant"]["other"]["requests"] == 2 * (70 - MOST_TENANTS + 1)
    assert sum(of["requests"] for of in record["by_tenant"].values()) == 140


def shown(runs: list[dict[str, object]]) -> list[list[str]]:
    table, out = tenant_table(runs), io.StringIO()
    assert table is not None
    Console(file=out, width=110).print(table)
    return [line.split() for line in out.getvalue().splitlines()]


def test_the_table_has_a_row_for_each_tenant_and_policy_and_the_index_below(log: RunLog) -> None:
    runs = [
        {"policy": policy, "rps": 2.0, "seed": 0, "load": 1.5, **tenant_record(replace(log, **more), lambda _: 0.1)}
        for policy, more in (("stock", {}), ("edf", {"tenant_service_s": {"a": 6.0, "b/c": 1.0, "": 2.0}}))
    ]
    lines = shown(runs)
    assert ["1.5", "a", "edf", "2", "100.0", "6.0", "0.0", "6.50"] in lines
    assert ["1.5", "b/c", "stock", "2", "50.0", "-", "0.0", "12.00"] in lines
    assert ["1.5", "Jain's", "index", "edf", "0.900", "0.659", "0.677"] in lines
    # The records outlive runs.csv, whatever tenants are called.
    again = parse_runs(runs_text(runs))
    assert [run["by_tenant"]["b/c"]["requests"] for run in again] == [2, 2] and shown(again) == lines


def test_a_table_of_many_tenants_shows_the_largest(request_log: MakeRequest) -> None:
    one = request_log("r", 0.0, [0.5, 0.6])
    logs = [replace(one, request=replace(one.request, tenant=f"t{i}")) for i in range(30) for _ in range(i + 1)]
    record = tenant_record(RunLog(logs, None))  # type: ignore[arg-type]
    lines = shown([{"policy": "edf", "rps": 2.0, "seed": 0, **record}])
    assert [line[1] for line in lines if line[1:2] and line[1].startswith("t") and line[1] != "tenant"] == [
        f"t{i}" for i in range(29, 29 - MOST_ROWS, -1)
    ]
    assert ["2", "20", "more"] in lines and np.isfinite(record["jain_attainment"])


def test_no_table_is_shown_without_tenants() -> None:
    assert tenant_table([{"policy": "edf", "rps": 2.0, "seed": 0}]) is None
