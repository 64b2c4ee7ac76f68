"""What packages add to the command line, and what a package that is broken does not take away."""

from importlib.metadata import EntryPoint

import pytest

from sloserve.cli import registered
from sloserve.core.errors import ConfigError


def register(monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Make these the only entry points of every group, by name."""
    entries = {name: EntryPoint(name, value, registered.COMMANDS) for name, value in modules.items()}
    monkeypatch.setattr(registered, "registered", lambda group: entries)


def test_what_is_registered_is_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, pi="math:pi", e="math:e")
    assert registered.names(registered.CHECKS) == ["e", "pi"]
    assert registered.load(registered.CHECKS, "pi") == pytest.approx(3.14159, abs=1e-5)
    with pytest.raises(ConfigError, match="sloserve.checks: nothing is registered as 'tau'; known: e, pi"):
        registered.load(registered.CHECKS, "tau")


def test_commands_that_cannot_be_loaded_are_named_and_take_no_others_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, broken="no.such.module", working="math:pi")
    registered.import_commands()
    assert capsys.readouterr().err.startswith("sloserve: the commands broken could not be loaded: No module named")


def test_an_installation_older_than_the_code_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with pytest.raises(ConfigError, match="no command is registered; install sloserve again: "):
        registered.import_commands()
