"""Numbers in flags: read by the rule of policy options and headers, in every command and subcommand."""

from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError


@pytest.mark.parametrize("value", ["1_0", "\u0661", "1" * 30])
@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--seeds"],
        ["simulate", "--rate-scale"],
        ["bench", "--max-requests"],
        ["judge", "f", "--at-least"],
        ["fleet", "--port"],
        ["doctor", "--port"],
    ],
)
def test_a_flag_reads_numbers_as_a_policy_option_does(command: list[str], value: str) -> None:
    ended = CliRunner().invoke(app, [*command, value])
    assert isinstance(ended.exception, ConfigError), ended.output
    assert f"Invalid value for '{command[-1]}': '{value}' is not" in str(ended.exception)


def test_every_flag_that_takes_a_number_does() -> None:
    group = typer.main.get_command(app)
    found = dict(_numeric(group, group.get_command(None, name), name) for name in group.commands)  # type: ignore[attr-defined]
    assert sum(map(len, found.values())) > 20
    assert not [flag for flags in found.values() for flag in flags if not flag[1]]


def _numeric(group: Any, command: Any, name: str) -> tuple[str, list[tuple[str, bool]]]:
    from sloserve.cli.flag_numbers import _READERS, kind_of

    params = [*command.params, *(one for below in getattr(command, "commands", {}).values() for one in below.params)]
    return name, [(one.name, hasattr(one, "reads_strictly")) for one in params if kind_of(one) in _READERS]
