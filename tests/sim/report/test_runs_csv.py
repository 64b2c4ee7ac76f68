"""Records of runs as a table: what comes back, and that equal experiments leave equal bytes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.runs_csv import read_runs, write_runs
from sloserve.sim.report.summary import summarize

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]
MakeRun = Callable[..., RunLog]


def test_records_come_back_with_times_to_the_microsecond(tmp_path: Path, synthetic_run: MakeRun) -> None:
    runs = [
        summarize(synthetic_run(seed=seed, delay_s=0.7), policy="edf:margin_ms=5", seed=seed, rps=1 / 3, load=0.5)
        for seed in (0, 1)
    ]
    write_runs(tmp_path / "runs.csv", runs)
    for run, back in zip(runs, read_runs(tmp_path / "runs.csv"), strict=True):
        del run["timing"]
        assert back.keys() == run.keys()
        assert (back["policy"], back["rps"], back["slo_attainment"]) == (
            "edf:margin_ms=5",
            1 / 3,
            run["slo_attainment"],
        )
        assert back["slo_attainment_by_class"] == run["slo_attainment_by_class"]
        assert back["mean_e2el_ms"] == pytest.approx(run["mean_e2el_ms"], abs=0.00051)
        assert list(back["by_class"]) == list(run["by_class"]), "the order in which figures show classes"
        for name, of_class in run["by_class"].items():
            assert back["by_class"][name] == pytest.approx(of_class, abs=0.00051)


def test_what_is_not_known_comes_back_as_none_and_what_is_empty_as_empty(
    tmp_path: Path, request_log: MakeRequest, step_log: MakeSteps, synthetic_run: MakeRun
) -> None:
    free = summarize(RunLog([request_log("a", 0.0, [], slo_class="free")], step_log()), policy="a", seed=0, rps=1.0)
    free |= {"completion_split": None, "counters": {}}
    full = summarize(synthetic_run(seed=1, delay_s=0.7), policy="b", seed=0, rps=1.0)
    full |= {"completion_split": {"waiting_s": 0.25}, "counters": {"a/b~c": 3}}
    write_runs(tmp_path / "runs.csv", [free, full])
    a, b = read_runs(tmp_path / "runs.csv")
    assert (a["completion_split"], a["counters"], a["slo_attainment"]) == (None, {}, None)
    assert (b["completion_split"], b["counters"]) == ({"waiting_s": 0.25}, {"a/b~c": 3})


def test_equal_runs_leave_equal_bytes_whatever_they_took(tmp_path: Path, synthetic_run: MakeRun) -> None:
    log = synthetic_run(seed=1, delay_s=0.7)
    for name, timing in (("one", {}), ("two", {"wall_s": 99.0})):
        run = summarize(replace(log, timing=timing), policy="stock", seed=1, rps=4.0)
        write_runs(tmp_path / name, [run])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert "timing" not in (tmp_path / "one").read_text()
