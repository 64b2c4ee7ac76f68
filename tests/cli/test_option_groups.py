"""Options of commands as dataclasses."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from benchmarks.experiments import EXPERIMENTS
from sloserve.cli import app
from sloserve.cli.option_groups import given, with_option_groups
from sloserve.sim import build_experiment as building
from sloserve.sim import simulation
from sloserve.sim.bench.bench_options import BenchOptions
from sloserve.sim.experiment_options import AdviseOptions, ExperimentOptions, SimulateOptions
from sloserve.sim.experiments import ExperimentRow
from sloserve.sim.workloads.traffic_options import TrafficOptions


@dataclass(frozen=True, kw_only=True)
class Oven:
    heat: Annotated[int, typer.Option(min=0, help="Degrees.")]
    fan: Annotated[bool, typer.Option("--fan", help="Hot air.")] = False


@dataclass(frozen=True, kw_only=True)
class Dough:
    eggs: Annotated[int, typer.Option(envvar="EGGS", help="Whole.")] = 2
    spices: Annotated[list[str] | None, typer.Option(help="Each.")] = None


def baked(*argv: str, env: dict[str, str] | None = None) -> tuple[Result, list[Any]]:
    """How the command ended, and what it was called with."""
    calls: list[Any] = []
    kitchen = typer.Typer(rich_markup_mode=None)

    @kitchen.command()
    @with_option_groups
    def bake(
        context: typer.Context,
        *,
        cake: Annotated[str, typer.Argument()] = "plain",
        oven: Oven,
        minutes: int = 30,
        dough: Dough,
    ) -> None:
        """Bakes."""
        calls.append((cake, oven, minutes, dough, given(context, oven) | given(context, dough)))

    return CliRunner().invoke(kitchen, argv, env={"COLUMNS": "100", **(env or {})}), calls


def test_a_command_gets_its_groups_filled_with_flags_and_defaults() -> None:
    done, calls = baked("--heat", "180", "--spices", "salt", "--spices", "mace", "rich", "--fan")
    assert done.exit_code == 0
    named = {"heat": 180, "fan": True, "spices": ["salt", "mace"]}
    assert calls == [("rich", Oven(heat=180, fan=True), 30, Dough(spices=["salt", "mace"]), named)]


def test_what_was_given_is_told_from_an_equal_default() -> None:
    assert baked("--heat", "1", "--eggs", "2")[1][0][-1] == {"heat": 1, "eggs": 2}
    assert baked("--heat", "1", env={"EGGS": "2"})[1][0][-1] == {"heat": 1, "eggs": 2}
    assert baked("--heat", "1")[1][0][-1] == {"heat": 1}


def test_help_shows_each_option_in_place_and_typer_checks_it() -> None:
    text = " ".join(baked("--help")[0].output.split())
    at = [text.index(part) for part in ("--heat", "Degrees.", "--fan", "--minutes", "--eggs", "default: 2]", "Each.")]
    assert at == sorted(at) and "Bakes." in text
    assert [baked(*argv)[0].exit_code for argv in ((), ("--heat", "-1"), ("--heat", "1", "--eggs", "x"))] == [2, 2, 2]


@pytest.mark.parametrize(
    ("command", "options"),
    [("simulate", SimulateOptions), ("advise", AdviseOptions), ("bench", BenchOptions)],
)
def test_commands_have_one_flag_for_each_field_of_their_options(command: str, options: type[Any]) -> None:
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{name.replace('_', '-')} " in text for name in options.__dataclass_fields__)
    assert issubclass(options, TrafficOptions)


def test_advice_is_sought_for_an_experiment_that_says_what_simulate_says() -> None:
    assert AdviseOptions.__dataclass_fields__.keys() == ExperimentOptions.__dataclass_fields__.keys()


@pytest.mark.slow
def test_a_flag_beats_an_experiments_row_even_with_the_flags_default(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"workload": "voice", "load": "2", "seeds": 7, "max_requests": 9, "policy": "edf"}
    monkeypatch.setitem(EXPERIMENTS, "row", ExperimentRow("?", row))
    built: list[SimulateOptions] = []
    monkeypatch.setattr(building, "build_experiment", built.append)
    monkeypatch.setattr(simulation, "simulate", lambda *_, **__: None)
    flags = ["--engine", "model", "--experiment", "row", "--seeds", "3", "--rps", "4"]
    assert CliRunner().invoke(app, ["simulate", *flags], catch_exceptions=False).exit_code == 0
    expected = SimulateOptions(workload="voice", rps="4", seeds=3, max_requests=9, policy="edf", engine="model")
    assert built == [expected]


@pytest.mark.slow
def test_a_fleet_takes_only_the_flags_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "--engine", "model", "--fleet", "f.yaml", "--rps", "1", "--kv-blocks", "5"]
    failed = CliRunner().invoke(app, asked)
    assert failed.exception is not None
    assert str(failed.exception) == (
        "--fleet goes with --workload, --policy, --rps, --seeds, --max-requests, --engine, --swap-cost alone, "
        "not with --kv-blocks"
    )
