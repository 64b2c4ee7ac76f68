"""Experiments: what the command line refuses, what it writes, and that this depends on nothing but its flags."""

import csv
import gzip
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.experiments import EXPERIMENTS
from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.lso.plan import Plan, Snapshot
from sloserve.scheduler.edf import EDF
from sloserve.sim import experiments as experiments_module
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import capacity_rps, engine_class, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.experiments import experiment_flags, experiments
from tests.forked import Command
from tests.whole import WHOLE

RUN_KEYS = {
    "policy", "seed", "rps", "requests", "completed", "lost", "duration_s", "request_throughput", "output_throughput",
    "request_goodput", "slo_attainment", "slo_attainment_by_class", "normalized_latency_ms", "qoe_mean", "qoe_p10",
    "preemptions_per_request", "recomputed_tokens_per_request", "kv_utilization_mean", "forward_tokens_mean",
    "max_wait_s", "rejected", "false_rejects", "prediction_coverage", "timing", "p10_ttft_ms", "qoe_p50", "qoe_p90",
    "qoe_good_share", "qoe_perfect_share", "tds_p10", "tds_p50", "tds_p90", "p5_itl_ms", "p95_itl_ms",
    "completion_split", "step_token_utilization_mean",
} | {f"{s}_{m}_ms" for s in ("mean", "median", "p90", "p99") for m in ("ttft", "tpot", "itl", "e2el")}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "give one of --workload NAME"),
        ({"workload": "voice", "trace": Path("x.csv")}, "give one of --workload NAME"),
        ({"workload": "voices"}, "voice"),
        ({"workload": "voice", "profile": "h100"}, "h100"),
        ({"workload": "voice", "policy": "stock,edff"}, "did you mean 'edf'"),
        ({"workload": "voice", "policy": "edf,edf"}, "names a policy twice"),
        ({"workload": "voice", "policy": "edf:preempt=perhaps"}, "not true or false"),
        ({"workload": "voice", "admission": "caps"}, "'caps' is not one of none, cap, predict, vllm"),
        ({"workload": "voice", "admission": "cap:max_waiting=0"}, "max_waiting: 0 is not a whole number >= 1"),
        ({"workload": "voice", "admission": "predict:min_chance=x"}, "min_chance: 'x' is not a number"),
        ({"workload": "voice", "admission": "vllm"}, "give whole numbers for max_num_queued_reqs or"),
        ({"workload": "voice", "load": "1,x"}, "--load: '1,x' is not"),
        ({"workload": "voice", "load": "0"}, "--load: 0 is not a number above 0"),
        ({"workload": "voice", "load": "1", "rps": "2"}, "one of --load, --rps and --rate-scale"),
        ({"workload": "voice", "seeds": 0}, "--seeds"),
        ({"workload": "voice", "max_requests": 0}, "--max-requests"),
        ({"workload": "voice", "aged_share": 2.0}, "--aged-share"),
        ({"workload": "voice", "plan_share": 0.0}, "--plan-share: 0.0 is not within 1e-06..1"),
        ({"workload": "voice", "plan_cost": -1.0}, "--plan-cost: -1.0 is not a number >= 0"),
        ({"workload": "voice", "step_noise": 2.0}, "--step-noise: 2.0 is not within"),
        ({"workload": "voice", "window": "0.5"}, "--window: '0.5'"),
        ({"workload": "voice", "policy": "stock@max_seqs=3"}, "engine option 'max_seqs' is unknown"),
        ({"workload": "voice", "kv_blocks": 0}, "--kv-blocks: 0"),
        ({"workload": "voice", "max_num_seqs": -1}, "--max-num-seqs: -1"),
        ({"workload": "voice", "engine": "gpu"}, "--engine: 'gpu' is not one of vllm, model"),
        ({"workload": "voice", "max_model_len": 0}, "--max-model-len: 0 tokens is not at least 1"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_experiment(SimulateOptions(**flags))


@pytest.mark.parametrize("name", [name for name, row in EXPERIMENTS.items() if row.trace is None])
def test_generated_experiments_can_be_built(name: str) -> None:
    experiment = build_experiment(SimulateOptions(**experiment_flags(name)))
    assert experiment.policies[0] == "stock"
    assert len(experiment.requests(seed=0)) == experiment.max_requests


@pytest.mark.parametrize("name", [name for name, row in EXPERIMENTS.items() if row.trace is not None])
def test_replayed_experiments_can_be_built(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with gzip.open(tmp_path / str(EXPERIMENTS[name].trace), "wt") as file:
        file.write("arrival_s,prompt_tokens,output_tokens,task\n0.0,10,5,conv\n1.0,20,6,code\n")
    monkeypatch.setenv("SLOSERVE_DATA", str(tmp_path))
    experiment = build_experiment(SimulateOptions(**experiment_flags(name)))
    assert experiment.policies[0] == "stock"
    targets = [r.slo.targets for r in experiment.requests(seed=0)]
    assert len(targets) == 2
    assert all(t.tds for t in targets) if name.startswith("qoe-") else all(targets)


def test_experiments_are_those_that_installed_packages_register(monkeypatch: pytest.MonkeyPatch) -> None:
    assert experiments().items() >= EXPERIMENTS.items()
    found = {"ours": EntryPoint("ours", "benchmarks.experiments:EXPERIMENTS", experiments_module.GROUP)}
    monkeypatch.setattr(experiments_module, "registered", lambda group: found)
    assert experiments() == EXPERIMENTS
    found["gone"] = EntryPoint("gone", "not_installed:EXPERIMENTS", experiments_module.GROUP)
    with pytest.raises(
        ConfigError, match=r"experiments of 'gone' \(not_installed:EXPERIMENTS\) cannot be loaded: No mod"
    ):
        experiments()
    found.clear()
    with pytest.raises(ConfigError, match="unknown experiment 'azure-conv'; known: none, since only a checkout"):
        experiment_flags("azure-conv")


def test_an_experiment_on_a_trace_says_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLOSERVE_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"no trace azure.*: not in /.*, and SLOSERVE_DATA, .* is not set"):
        experiment_flags("azure-conv")
    monkeypatch.setenv("SLOSERVE_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no trace azure.*: not in .*, nor in SLOSERVE_DATA=/"):
        experiment_flags("azure-conv")
    with pytest.raises(ConfigError, match="unknown experiment 'azure'"):
        experiment_flags("azure")


def test_requests_that_come_at_once_have_a_rate_that_json_can_say(tmp_path: Path) -> None:
    """Divided by the time between the first and the last it would be infinite, and result.json could not be written."""
    trace = tmp_path / "burst.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n0.0,20,6\n")
    asked = SimulateOptions(trace=trace, engine="model", policy="stock", seeds=1, max_requests=2)
    assert [point.rps for point in measured_points(build_experiment(asked))] == [2.0]


def test_capacity_is_the_rate_of_the_saturated_middle() -> None:
    """Two requests a second while it is full; the batch fills for seven seconds, and drains four times as slowly."""
    slo = DEFAULT_CLASSES.slo(None, Targets())
    ends_s = [7.0 + 0.5 * i + 1.5 * max(i - 90, 0) for i in range(100)]
    logs = [
        RequestLog(WorkloadRequest(f"r{i}", 0.0, 1, 1, slo), Outcome.COMPLETED, np.array([end_s]))
        for i, end_s in enumerate(ends_s)
    ]
    empty = np.empty(0)
    steps = StepLog(empty, empty, empty.astype(int), empty.astype(int), empty.astype(int), empty)
    experiment = build_experiment(SimulateOptions(workload="voice"))
    assert capacity_rps(experiment, RunLog(logs, steps)) == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="stock completed 10 of 10"):
        capacity_rps(experiment, RunLog(logs[:10], steps))


@pytest.mark.parametrize(("waiting", "is_told"), [(0, True), (3, False)])
def test_a_burst_in_which_nothing_waits_is_said_not_to_saturate(
    waiting: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """60 requests gave "1.5 x" of a capacity at which nothing queues, and both policies 100 %."""
    times, many = np.linspace(0.0, 50.0, 100), np.full(100, waiting)
    steps = StepLog(times, times, many, many, many, times)
    experiment = build_experiment(SimulateOptions(workload="voice"))
    slo = DEFAULT_CLASSES.slo(None, Targets())
    requests = [WorkloadRequest(str(i), 0.0, 10, 5, slo) for i in range(60)]
    logs = [RequestLog(one, Outcome.COMPLETED, np.array([i / 2])) for i, one in enumerate(requests)]
    capacity_rps(experiment, RunLog(logs, steps))
    assert ("does not saturate: 60 requests of voice" in caplog.text) == is_told


@pytest.mark.slow
def test_one_line_and_status_2_for_a_malformed_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,task\n0.0,10,5,chat\n1.0,ten,5,chat\n")
    command = [sys.executable, "-m", "sloserve.cli", "simulate", "--trace", str(trace), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for part in (str(trace), "3", "prompt_tokens", "ten"):
        assert part in done.stderr


def test_unknown_flag_and_help() -> None:
    mistake = CliRunner().invoke(app, ["simulate", "--nope"]).exception
    assert isinstance(mistake, ConfigError) and "see sloserve simulate --help" in str(mistake)
    help_text = CliRunner().invoke(app, ["simulate", "--help"]).output
    for flag in (
        "--workload",
        "--trace",
        "--profile",
        "--policy",
        "--slo",
        "--rps",
        "--rate-scale",
        "--load",
        "--seeds",
    ):
        assert flag in help_text


@pytest.mark.vllm
def test_files_depend_on_the_flags_alone(tmp_path: Path) -> None:
    """Here and in a process that hashes differently, in one process or two: the same bytes but for what is timed."""
    flags = ["--workload", "chat-batch-mix", "--load", "1.5", "--seeds", "2" if WHOLE else "1", "--max-requests", "20"]
    flags += ["--policy", "stock,fcfs,edf", "--token-log"]
    folders = [tmp_path / "here", tmp_path / "elsewhere"]
    app(["simulate", *flags, "--out", str(folders[0])], standalone_mode=False)
    elsewhere = Command(["simulate", *flags, "--jobs", "2", "--out", str(folders[1])])
    with elsewhere.stdout as output:
        said = output.read()
    assert elsewhere.wait(600) == 0, said
    first, second = (json.loads((f / "result.json").read_text()) for f in folders)
    for run in first["runs"] + second["runs"]:
        assert set(run.pop("timing")) == {"plan_us_mean", "plan_us_p99", "vllm_schedule_us_mean", "wall_s"}
        assert RUN_KEYS - {"timing"} <= set(run)
        assert run["completed"] == run["requests"] == 20
        assert run["lost"] == 0
        assert sum(run["completion_split"].values()) == pytest.approx(run["mean_e2el_ms"] / 1e3)
    assert first == second
    plots = ("attainment", "latency_cdf", "qoe", "timelines", "utilization", "completion_split")
    for name in ("runs.csv", "requests.csv", "tokens.csv.gz", *(f"{plot}.png" for plot in plots)):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    stock, fcfs = ([r for r in first["runs"] if r["policy"] == p] for p in ("stock", "fcfs"))
    assert [r | {"policy": ""} for r in stock] == [r | {"policy": ""} for r in fcfs]
    _check_logs_agree(folders[0], first["runs"])


@pytest.mark.slow
def test_a_policy_that_fails_is_named_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its figures are those of stock vLLM, whose order holds then; nothing else on the screen shows it."""

    def plan(self: EDF, snapshot: Snapshot, now_s: float) -> Plan:
        raise ZeroDivisionError("ouch")

    monkeypatch.setattr(EDF, "plan", plan)
    flags = ["--workload", "voice", "--rps", "8", "--seeds", "1", "--max-requests", "9", "--engine", "model"]
    app(["simulate", *flags, "--policy", "stock,edf,fcfs", "--out", str(tmp_path)], standalone_mode=False)
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert warning.startswith("WARNING: edf failed ") and "vLLM's own order held" in warning


@pytest.mark.vllm
def test_tuning_on_one_half_and_runs_of_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everybody is served one at a time until that is tuned; what was tried is in the result."""
    flags = ["--workload", "voice", "--rps", "8", "--seeds", "1", "--max-requests", "14", "--policy", "stock,edf"]
    flags += ["--max-num-seqs", "1", "--tune", "max_num_seqs=1,64", "--plan-cost", "2", "--step-noise", "0.1"]
    flags += ["--plan-share", "0.5"]
    app(["simulate", *flags, "--out", str(tmp_path)], standalone_mode=False)
    assert "as stock@max_num_seqs=64" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    names = [name for policy in ("stock", "edf") for name in (policy, f"{policy}@max_num_seqs=64")]
    assert [run["policy"] for run in result["runs"]] == names
    settings = result["settings"]
    assert result["workload"]["window"] == "0.5:1"
    assert settings["plan_share"] == 0.5
    assert (settings["plan_cost"], settings["step_noise"], settings["aged_share"]) == (2.0, 0.1, 0.05)
    assert list(settings["tuned"]["stock"]["tried"]) == names[:2]
    attainment = [run["slo_attainment"] for run in result["runs"]]
    assert attainment[1] > attainment[0] + 0.2 and attainment[3] > attainment[2] + 0.2


def _check_logs_agree(folder: Path, runs: list[dict[str, Any]]) -> None:
    """The raw logs tell the same story as the records."""
    with open(folder / "requests.csv", newline="") as file:
        requests = list(csv.DictReader(file))
    with gzip.open(folder / "tokens.csv.gz", "rt", newline="") as file:
        tokens = list(csv.DictReader(file))
    assert len(requests) == sum(run["requests"] for run in runs)
    assert len(tokens) == sum(int(row["output_tokens"]) for row in requests)
    for run in runs:
        rows = [r for r in requests if r["policy"] == run["policy"] and int(r["seed"]) == run["seed"]]
        ttft_ms = [1e3 * (float(r["first_token_s"]) - float(r["arrival_s"])) for r in rows]
        assert run["mean_ttft_ms"] == pytest.approx(np.mean(ttft_ms))


def test_without_vllm_the_model_of_it_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a traceback."""
    monkeypatch.setattr("sloserve.vllm_plugin.versions.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="give --engine model"):
        engine_class("vllm")
    assert engine_class("model").__name__ == "ModelEngine"


TENANTS = {"workload": "chat-batch-mix", "tenants": "acme=3,globex", "policy": "edf", "rps": "40", "seeds": 1}


def service_s(engine: str, tenant_shares: str | None) -> dict[str, float] | None:
    """The service of each tenant in a small run."""
    options = SimulateOptions(
        **TENANTS, tenant_shares=tenant_shares, engine=engine, max_requests=120, kv_blocks=1500, plan_cost=0.0
    )
    (run,) = run_experiment(build_experiment(options))
    return run.log.tenant_service_s


@pytest.mark.slow
def test_tenants_have_shares_where_they_are_asked_for() -> None:
    assert service_s("model", None) is None
    equal, weighted = service_s("model", "equal"), service_s("model", "acme=2")
    assert equal is not None and weighted is not None and equal["acme"] > equal["globex"] > 0.0
    assert list(weighted) == ["", "acme", "globex"] and weighted != equal
    with pytest.raises(ConfigError, match="--tenant-shares: 'acme=0' is not a tenant"):
        service_s("model", "acme=0")


@pytest.mark.vllm
@pytest.mark.slow
def test_both_engines_charge_tenants_alike() -> None:
    real, model = service_s("vllm", "acme=2"), service_s("model", "acme=2")
    assert real is not None and model is not None and real == pytest.approx(model, rel=1e-6)
