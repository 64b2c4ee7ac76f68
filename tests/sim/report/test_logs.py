"""Raw logs: what is in a row, and that equal experiments leave equal bytes."""

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sloserve import __version__
from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.logs import REQUESTS_CSV, RESULT_JSON, TOKENS_CSV, LogWriter, write_result
from sloserve.sim.report.summary import summarize

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]
MakeRun = Callable[..., RunLog]

HEADER = (
    "policy,seed,rps,request_id,class,arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s,"
    "ttft_target_s,tpot_target_s,e2e_target_s,tds_target,outcome,qoe,tenant"
)


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_request_rows(tmp_path: Path, request_log: MakeRequest, step_log: MakeSteps) -> None:
    aborted = request_log("b", 1.0, [2.0], slo_class="batch", outcome=Outcome.ABORTED)
    log = RunLog(
        [
            request_log("a,1", 0.1 + 0.2, [0.5, 0.75]),
            replace(aborted, request=replace(aborted.request, tenant="acme")),
            request_log("c", 2.0, [], outcome=Outcome.REJECTED),
        ],
        step_log(),
    )
    with LogWriter(tmp_path / "new") as logs:
        logs.add(log, policy="edf:preempt=true", seed=3, rps=2)
    text = (tmp_path / "new" / REQUESTS_CSV).read_text(encoding="utf-8")
    assert text.splitlines() == [
        HEADER,
        'edf:preempt=true,3,2.0,"a,1",interactive,0.3,10,2,0.5,0.75,1.0,,,5.0,completed,1.0,',
        "edf:preempt=true,3,2.0,b,batch,1.0,10,1,2.0,,,,20.0,,aborted,,acme",
        "edf:preempt=true,3,2.0,c,interactive,2.0,10,0,,,1.0,,,5.0,rejected,0.0,",
    ]
    assert not (tmp_path / "new" / TOKENS_CSV).exists()


def test_token_rows(tmp_path: Path, request_log: MakeRequest, step_log: MakeSteps) -> None:
    log = RunLog([request_log("a", 0.0, [0.5, 0.75]), request_log("b", 0.0, [1.0])], step_log())
    with LogWriter(tmp_path, token_log=True) as logs:
        logs.add(log, policy="stock", seed=0, rps=1.5)
        logs.add(log, policy="edf", seed=0, rps=1.5)
    lines = gzip.decompress((tmp_path / TOKENS_CSV).read_bytes()).decode().splitlines()
    assert lines[:4] == [
        "policy,seed,rps,request_id,token,time_s",
        *(f"stock,0,1.5,{x}" for x in ("a,0,0.5", "a,1,0.75", "b,0,1.0")),
    ]
    assert len(lines) == 1 + 2 * 3


def test_what_a_broken_off_experiment_added_stays(tmp_path: Path, synthetic_run: MakeRun) -> None:
    with pytest.raises(KeyboardInterrupt), LogWriter(tmp_path, token_log=True) as logs:
        logs.add(synthetic_run(seed=0, delay_s=0.5), policy="stock", seed=0, rps=1.0)
        raise KeyboardInterrupt
    assert len(read_csv(tmp_path / REQUESTS_CSV)) == 60
    assert gzip.decompress((tmp_path / TOKENS_CSV).read_bytes())


def write_all(out_dir: Path, log: RunLog) -> None:
    with LogWriter(out_dir, token_log=True) as logs:
        logs.add(log, policy="stock", seed=1, rps=4.0)
    write_result(
        out_dir / RESULT_JSON,
        [summarize(log, policy="stock", seed=1, rps=4.0)],
        vllm_version="0.32.0",
        profile="h100-llama3-8b",
        workload={"name": "w"},
        settings={"b": 1, "a": None},
    )


@pytest.mark.slow
def test_equal_runs_leave_equal_bytes_but_for_timing(tmp_path: Path, synthetic_run: MakeRun) -> None:
    log = synthetic_run(seed=1, delay_s=0.7)
    write_all(tmp_path / "one", log)
    write_all(tmp_path / "two", replace(synthetic_run(seed=1, delay_s=0.7), timing={"wall_s": 99.0}))
    for name in (REQUESTS_CSV, TOKENS_CSV):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    one, two = (json.loads((tmp_path / name / RESULT_JSON).read_text()) for name in ("one", "two"))
    assert one != two
    for result in (one, two):
        result["runs"][0].pop("timing")
    assert json.dumps(one) == json.dumps(two)


def test_result_says_what_it_was_made_with(tmp_path: Path, synthetic_run: MakeRun) -> None:
    write_all(tmp_path, synthetic_run(seed=1, delay_s=0.7))
    text = (tmp_path / RESULT_JSON).read_text()
    result = json.loads(text)
    assert (result["sloserve_version"], result["vllm_version"]) == (__version__, "0.32.0")
    assert (result["profile"], result["workload"], result["settings"]) == (
        "h100-llama3-8b",
        {"name": "w"},
        {"a": None, "b": 1},
    )
    assert result["runs"][0]["policy"] == "stock"
    assert text == json.dumps(result, indent=1, sort_keys=True) + "\n"


def test_a_number_that_json_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_result(
            tmp_path / RESULT_JSON, [{"x": float("nan")}], vllm_version="", profile="", workload={}, settings={}
        )
