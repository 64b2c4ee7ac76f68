"""Advice: what is searched and in which order, that only what is better is advised, and the file that it writes."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable, SLOClass, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.scheduler.config import read_sources, settle
from sloserve.scheduler.registry import main_policies
from sloserve.sim.advice_text import headline, judged_lines, settings_yaml, vllm_flags
from sloserve.sim.advise import Advice, Found, RunComparison, Space, decide, search
from sloserve.sim.advising import advise, space_for
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.tuning import Score

SETTINGS = EngineSettings(10_000, max_num_seqs=256, max_num_batched_tokens=2048)
TOKENS, SEQS = "@max_num_batched_tokens=", ":max_num_seqs="
SPACE = Space(
    policies=("edf", "sjf", "edf:step_budget=true"),
    sized=("edf", "sjf"),
    axes={"max_num_batched_tokens": (512, 1024), "max_num_seqs": (64, 256)},
    admissions=("cap:max_waiting=16",),
    stock_caps=("vllm:max_num_queued_tokens=16000",),
)


def score(*attainment: float) -> Score:
    return Score(attainment, (1000.0,) * len(attainment))


class Stub:
    """Scores by name, 50 % in time where nothing is said."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.scores = scores
        self.calls: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> Mapping[str, Score]:
        self.calls.append(list(names))
        return {name: score(*(self.scores.get(name, 0.5) + 0.01 * i for i in range(3))) for name in names}


def test_step_sizes_come_first_then_seqs_for_the_two_best_then_admissions() -> None:
    best = f"edf{TOKENS}1024{SEQS}64"
    stub = Stub({f"edf{TOKENS}1024": 0.8, "sjf": 0.7, best: 0.9, f"{best}+cap:max_waiting=16": 0.95})
    found = search(SPACE, SETTINGS, stub)
    assert stub.calls == [
        ["stock", "edf", "sjf", "edf:step_budget=true"]
        + [f"{name}{TOKENS}{size}" for size in (512, 1024) for name in ("stock", "edf", "sjf")],
        ["stock@max_num_seqs=64", f"stock{TOKENS}512{SEQS}64", best, "sjf@max_num_seqs=64"],
        ["stock+vllm:max_num_queued_tokens=16000", f"{best}+cap:max_waiting=16"],
    ]
    assert found.best(stock=False)[0] == f"{best}+cap:max_waiting=16"
    assert found.best(stock=True)[0] == "stock"


def test_a_budget_ends_the_search_alike_for_all() -> None:
    stub = Stub({})
    found = search(replace(SPACE, most_names=6), SETTINGS, stub)
    assert stub.calls == [["stock", "edf", "sjf", "edf:step_budget=true", f"stock{TOKENS}512", f"edf{TOKENS}512"]]
    assert found.untried > 0 and len(found.tried) == 6


def found_with(**scores: Score) -> Found:
    return Found({"stock": score(0.5, 0.5, 0.5), **scores})


@pytest.mark.parametrize(
    ("ours", "advised", "says"),
    [
        ((0.7, 0.72, 0.71), "edf", "+21.0 points"),
        ((0.9, 0.4, 0.6), "stock", "no difference: the interval covers 0"),
        ((0.4, 0.41, 0.42), "stock", "below it"),
    ],
)
def test_only_what_is_better_for_sure_is_advised(ours: tuple[float, ...], advised: str, says: str) -> None:
    scores = {"stock": score(0.5, 0.5, 0.5), "edf": score(*ours)}
    advice = decide(found_with(edf=score(0.9, 0.9, 0.9)), 3, lambda names: {name: scores[name] for name in names}, None)
    assert advice.name == advised
    assert any(says in line for line in judged_lines(advice.judged[0]))


def test_what_vllm_s_scheduler_does_not_confirm_is_not_advised() -> None:
    """The policy is below stock there; stock's own best flags then have to be better than stock as it is."""
    tuned = f"stock{TOKENS}1024"
    found = found_with(edf=score(0.9, 0.9, 0.9), **{tuned: score(0.7, 0.7, 0.7)})
    judge = Stub({"edf": 0.9, tuned: 0.7})
    asked: list[list[str]] = []

    def real(names: Sequence[str]) -> Mapping[str, Score]:
        asked.append(list(names))
        return {name: score({"edf": 0.6, tuned: 0.7, "stock": 0.5}[name]) for name in names}

    advice = decide(found, 3, judge, real)
    assert judge.calls == [["stock", tuned, "edf"]]
    assert asked == [["edf", tuned], [tuned, "stock"]]
    assert advice.name == tuned
    assert "not confirmed: below it on vLLM's scheduler" in judged_lines(advice.judged[0])
    assert "confirmed on vLLM's scheduler, one run each: 70.0% and 50.0%" in judged_lines(advice.judged[1])[1]
    assert headline(advice) == f"advice: vLLM's own scheduler with other flags, {tuned}"


def test_loads_of_a_seed_are_one_observation() -> None:
    """Two loads of three seeds: what differs between loads alone is no spread."""
    scores = {"stock": score(0.5, 0.5, 0.5, 0.2, 0.2, 0.2), "edf": score(0.6, 0.6, 0.6, 0.5, 0.5, 0.5)}
    found = found_with(edf=score(0.9, 0.9, 0.9))
    (judged,) = decide(found, 3, lambda names: {name: scores[name] for name in names}, None).judged
    assert (judged.difference.n, judged.difference.value) == (3, pytest.approx(0.2))
    assert judged.difference.low == pytest.approx(0.2)


@pytest.mark.parametrize(("rival", "ties"), [((0.7, 0.9, 0.8), True), ((0.6, 0.61, 0.62), False)])
@pytest.mark.parametrize("first", ["auto", "edf"])
def test_a_tie_of_the_general_policy_and_a_simpler_one_is_said_with_what_speaks_for_each(
    first: str, rival: tuple[float, ...], ties: bool
) -> None:
    """Only the best run of each is judged: not auto's second, nor sjf."""
    other = {"auto": "edf", "edf": "auto"}[first]
    scores = {"stock": score(0.5, 0.5, 0.5), first: score(0.8, 0.81, 0.82), other: score(*rival)}
    found = found_with(**{first: score(0.9, 0.9), f"{first}@max_num_seqs=64": score(0.8, 0.8), other: score(0.7, 0.7)})
    found.tried["sjf"] = score(0.6, 0.6)
    asked: list[str] = []

    def judge(names: Sequence[str]) -> Mapping[str, Score]:
        asked.extend(names)
        return {name: scores[name] for name in names}

    advice = decide(found, 3, judge, None)
    assert (advice.name, asked) == (first, ["stock", first, other])
    assert (advice.tie is not None) == ties
    text = settings_yaml(advice, DEFAULT_CLASSES, SETTINGS, "a trace on an engine")
    said = "edf has fewer parts to understand; auto holds where the mix of requests changes"
    assert (said in text) == ties == (f"a tie: {other}: 80.0% in time, {first}: 81.0%" in text)


def test_stock_is_advised_without_a_word_on_ties() -> None:
    scores = {name: score(0.5, 0.5, 0.5) for name in ("stock", "auto", "edf")}
    found = found_with(auto=score(0.9, 0.9), edf=score(0.8, 0.8))
    advice = decide(found, 3, lambda names: {name: scores[name] for name in names}, None)
    assert (advice.name, advice.beside) == ("stock", None)


def test_what_is_tried_are_the_policies_of_the_registry_with_the_general_one_first() -> None:
    experiment = build_experiment(SimulateOptions(workload="voice", rps="1", seeds=3, policy="stock"))
    space = space_for(experiment, 300)
    assert space.policies[0] == "auto"
    named = {name.partition(":")[0] for name in space.policies}
    assert named == set(main_policies())
    assert "fcfs" not in space.policies  # stock's order
    limited = {f"{name}:step_budget=true" for name in (*space.sized, "fcfs")}
    assert {*space.sized, *limited, "auto"} == set(space.policies)


def advice_of(name: str) -> Advice:
    difference = mean_interval([0.1, 0.11, 0.12])
    assert difference is not None
    return Advice(name, (RunComparison(name, "stock", score(0.9, 0.9), score(0.8, 0.8), difference),), Found())


@pytest.mark.parametrize(
    ("name", "policy", "admission", "flags"),
    [
        ("stock", "fcfs", None, ["--max-num-batched-tokens 2048", "--max-num-seqs 256"]),
        (
            f"edf:step_budget=true{TOKENS}1024+cap:max_waiting=16",
            "edf:step_budget=true",
            {"mode": "cap", "max_waiting": 16},
            ["--max-num-batched-tokens 1024", "--max-num-seqs 256"],
        ),
        (
            "stock@max_num_seqs=64+vllm:max_num_queued_tokens=16000",
            "fcfs",
            None,
            ["--max-num-batched-tokens 2048", "--max-num-seqs 64", "--max-num-queued-tokens 16000"],
        ),
    ],
)
def test_the_file_is_one_that_the_server_reads(
    name: str, policy: str, admission: Any, flags: list[str], tmp_path: Path
) -> None:
    text = settings_yaml(advice_of(name), DEFAULT_CLASSES, SETTINGS, "a trace on an engine")
    settings = yaml.safe_load(text)
    assert (settings["policy"], settings.get("admission")) == (policy, admission)
    assert vllm_flags(name, SETTINGS) == flags
    assert all(flag in text for flag in flags)
    file = tmp_path / "advice.yaml"
    file.write_text(text)
    found = settle(read_sources(file, {}))
    assert found.settings.policy == policy.partition(":")[0]


@pytest.mark.parametrize("ranks", [{"interactive": 0, "batch": 1}, {"batch": 0, "interactive": 1}, {"chat": 0}])
def test_the_file_keeps_the_classes_that_the_workload_does_not_have(ranks: dict[str, int], tmp_path: Path) -> None:
    own = {name: SLOClass(name, rank, Targets(e2e_s=2.0 + rank), 30.0) for name, rank in ranks.items()}
    table, file = ClassTable(own, next(iter(own))), tmp_path / "advice.yaml"
    file.write_text(settings_yaml(advice_of("edf"), table, SETTINGS, "a trace on an engine"))
    served = settle(read_sources(file, {})).settings
    assert {*served.classes.names} == {*ranks, *DEFAULT_CLASSES.names} and served.default_class == table.default.name
    assert [name for name in served.classes.names if name in ranks] == list(table.names)
    assert all(served.classes[name] == replace(own[name], rank=served.classes[name].rank) for name in ranks)
    usual = list(ranks) == ["interactive", "batch"]
    assert ("rank:" in file.read_text()) is not usual
    assert [c for c in served.classes if c.name not in ranks] == [c for c in DEFAULT_CLASSES if c.name not in ranks]
    assert "keeps its built-in classes beside those below: priority (rank 0)" in file.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"budget": 5}, "--budget: 5 runs are too few; stock and one policy take 6"),
        ({"policies": ["edff"]}, "did you mean 'edf'"),
        ({"admissions": ["caps"]}, "'caps' is not one of none, cap, predict, vllm"),
        ({"seeds": 2}, "--seeds: 2 is below 3"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: dict[str, Any], message: str) -> None:
    experiment = build_experiment(
        SimulateOptions(workload="voice", rps="1", seeds=flags.pop("seeds", 3), policy="stock")
    )
    with pytest.raises(ConfigError, match=message):
        space_for(experiment, **({"budget": 100} | flags))


def test_help_names_what_can_be_chosen() -> None:
    text = CliRunner().invoke(app, ["advise", "--help"], env={"COLUMNS": "200"}).output
    assert all(
        flag in text for flag in ("--trace", "--profile", "--slo", "--budget", "--no-confirm", "--tune", "--out")
    )


def short_replies(folder: Path) -> Path:
    """A trace of 50 requests a second, more than an engine that serves them one at a time can do."""
    rows = [f"{0.02 * i:.2f},{400 + 7 * (i % 30)},{3 + i % 4},chat" for i in range(120)]
    trace = folder / "short.csv"
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,task", *rows]) + "\n")
    return trace


@pytest.mark.slow
def test_advice_on_a_derived_profile_says_so_first_and_in_its_file(tmp_path: Path) -> None:
    experiment = build_experiment(SimulateOptions(
        trace=short_replies(tmp_path), rate_scale=1.0, seeds=3, max_requests=20, profile="h200-gpt-oss-120b",
        policy="stock", slo="default", engine="model",
    ))  # fmt: skip
    space = space_for(experiment, 10, policies=["edf"], axes={"max_num_seqs": (64,)}, admissions=["none"])
    console = Console(record=True, width=200, file=io.StringIO())
    advise(experiment, space, tmp_path / "advice.yaml", confirm=False, console=console)
    said = console.export_text()
    assert "step times of profile h200-gpt-oss-120b (derived, " in said
    assert "(derived, " in (tmp_path / "advice.yaml").read_text()


@pytest.mark.slow
def test_a_search_in_the_engine_model_finds_room_for_more_requests(tmp_path: Path) -> None:
    texts = []
    for attempt in "ab":
        experiment = build_experiment(SimulateOptions(
            trace=short_replies(tmp_path), rate_scale=1.0, seeds=3, max_requests=40, max_num_seqs=1,
            policy="stock", slo="default", engine="model",
        ))  # fmt: skip
        space = space_for(experiment, 30, policies=["edf"], axes={"max_num_seqs": (64,)}, admissions=["none"])
        out = tmp_path / attempt / "advice.yaml"
        advice = advise(experiment, space, out, confirm=False, console=Console(quiet=True))
        texts.append(out.read_text())
    assert advice.name == "stock@max_num_seqs=64"
    assert "--max-num-seqs 64" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.vllm
def test_advice_is_confirmed_on_vllm_s_scheduler(tmp_path: Path) -> None:
    """The command as it is typed: search, judgement, one run each on the real scheduler, a file of settings."""
    flags = [
        "--trace",
        str(short_replies(tmp_path)),
        "--slo",
        "default",
        "--max-num-seqs",
        "1",
        "--tune",
        "max_num_seqs=64",
    ]
    flags += ["--policy", "edf", "--admission", "none", "--seeds", "3", "--max-requests", "40", "--budget", "30"]
    out = tmp_path / "advice.yaml"
    done = CliRunner().invoke(app, ["advise", *flags, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "confirmed on vLLM's scheduler, one run each" in done.output
    assert f"sloserve serve MODEL --slo-config {out} --max-num-batched-tokens 2048 --max-num-seqs 64" in done.output
    assert yaml.safe_load(out.read_text())["policy"] == "fcfs"
