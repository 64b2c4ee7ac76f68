"""Promises of a run: how many were kept and broken, what they cost, and the table."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.promises import Promised
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.promise_table import promise_table
from sloserve.sim.report.runs_csv import parse_runs, runs_text
from sloserve.sim.report.summary import admission_record, summarize

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]


@pytest.fixture
def run(request_log: MakeRequest, step_log: MakeSteps) -> RunLog:
    """A kept, a broken, a failed and a withdrawn promise of interactive requests, and requests without one."""
    requests = [
        replace(request_log("a", 0.0, [0.5, 0.6]), promised=Promised(0.99, delayed_s=1.5)),
        replace(request_log("b", 0.0, [3.0, 3.1]), promised=Promised(0.9)),
        replace(request_log("c", 0.0, [0.5], outcome=Outcome.EVICTED), promised=Promised(0.5)),
        replace(request_log("d", 0.0, [0.5], outcome=Outcome.ABORTED), promised=Promised(0.5, delayed_s=0.5)),
        request_log("e", 0.0, [0.5]),
        request_log("f", 0.0, [0.5], slo_class="batch"),
    ]
    return RunLog(requests, step_log())


def test_promises_are_counted_by_class_with_what_they_cost(run: RunLog) -> None:
    promises = admission_record(run, None)["promises"]
    assert list(promises) == ["interactive"]
    found = promises["interactive"]
    assert {key: found[key] for key in ("given", "kept", "broken", "withdrawn")} == {
        "given": 4, "kept": 1, "broken": 2, "withdrawn": 1,
    }  # fmt: skip
    assert found["broken_share"] == pytest.approx(2 / 3) and found["allowed_share"] == pytest.approx(0.61 / 3)
    assert found["delayed_s"] == 2.0 and found["beyond_s"] == pytest.approx(2.0)  # c has no e2e target


def test_the_table_has_a_row_for_each_class_with_promises_and_records_come_back(run: RunLog) -> None:
    record = summarize(run, policy="edf", seed=0, rps=1.0) | admission_record(run, None)
    (back,) = parse_runs(runs_text([record]))
    for known in (record, back):
        table = promise_table([known])
        assert table is not None and table.row_count == 1
        text = io.StringIO()
        Console(file=text, width=140).print(table)
        row = next(line for line in text.getvalue().splitlines() if "interactive" in line)
        assert row.split() == ["1", "interactive", "edf", "4", "1", "2", "66.67", "20.33", "2.0", "2.0"]


def test_a_run_without_promises_has_no_table(request_log: MakeRequest, step_log: MakeSteps) -> None:
    log = RunLog([request_log("e", 0.0, [0.5])], step_log())
    record = summarize(log, policy="edf", seed=0, rps=1.0) | admission_record(log, None)
    assert record["promises"] == {} and promise_table([record]) is None


def test_an_output_of_one_token_judges_no_prediction_of_tpot(request_log: MakeRequest, step_log: MakeSteps) -> None:
    told = Predicted(Quantiles(1.0, 1.0, 1.0), None, Quantiles(0.01, 0.2, 0.3))
    requests = [replace(request_log("a", 0.0, times), predicted=told) for times in ([0.5], [0.5, 0.6])]
    coverage = admission_record(RunLog(requests, step_log()), None)["prediction_coverage"]["interactive"]
    assert (coverage["tpot_p50"], coverage["tpot_p90"], coverage["ttft_p50"]) == (0.0, 1.0, 1.0)
