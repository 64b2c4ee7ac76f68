"""The help: commands under headings, each with a whole sentence in one line of 80 columns."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.cli.registered import import_commands
from sloserve.cli.root import Root


def commands(*path: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    for name in path:
        group = group.commands[name]
    return {name: one for name, one in group.commands.items() if not one.hidden}


def test_every_command_stands_under_one_heading_with_serve_first() -> None:
    listed = [name for names in Root.headings.values() for name in names]
    assert sorted(listed) == sorted(commands()) and listed[0] == "serve"
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    at = [text.index(f"\n{heading}:\n") for heading in Root.headings] + [text.index(f"\n  {n} ") for n in listed]
    assert at[: len(Root.headings)] == sorted(at[: len(Root.headings)]) and "Other commands" not in text
    assert at[len(Root.headings) :] == sorted(at[len(Root.headings) :])


@pytest.mark.parametrize("path", [(), ("fleet",)])
def test_no_sentence_of_the_help_is_cut_or_broken_at_80_columns(path: tuple[str, ...]) -> None:
    lines = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output.splitlines()
    for name, command in commands(*path).items():
        line = next(line for line in lines if line.split()[:1] == [name])
        said = line.split(maxsplit=1)[1]
        assert said.endswith(".") and command.help.startswith(said), line
        assert said[0].isupper() and len(line) <= 80


def every_command(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, one in group.commands.items():
        yield (*path, name)
        yield from every_command(one, (*path, name)) if hasattr(one, "commands") else ()


import_commands()


@pytest.mark.parametrize("path", [(), *every_command(typer.main.get_command(app))], ids=" ".join)
def test_no_help_shows_types_or_values_of_python(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0 and "--help" in shown.output
    assert not re.findall(r"<\w+(?:\[.*?\]| range)?>", shown.output), "a type"
    assert not re.findall(r"\| None|\bNone\b|\btyping\.|\blist\[|\bdict\[|PosixPath|\w\.[A-Z]{2,}\]", shown.output)
    assert not re.findall(
        r"\[\[|\{FILE\.\.\.\}|\]\.\.\.\]", shown.output.partition("\n\n")[0].replace("[MODEL [", "")
    ), "brackets"


def test_a_command_of_others_is_listed_under_the_last_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Root, "headings", {"Serve": ("serve",)})
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert text.index("\nServe:\n  serve ") < text.index("\nOther commands:\n") < text.index("\n  advise ")


def test_workloads_lists_what_people_use_first_and_experiments_when_asked() -> None:
    plain = CliRunner().invoke(app, ["workloads"]).output
    kinds = list(dict.fromkeys(line.split()[0] for line in plain.splitlines() if line))
    assert kinds == ["workload", "tasks", "of", "profile", "There"] and "--experiments" in plain
    asked = CliRunner().invoke(app, ["workloads", "--experiments"]).output
    assert {line.split()[0] for line in asked.splitlines()} == {"experiment"}
