"""Benchmarks as tests run them."""

import sys
from collections.abc import Callable
from importlib import import_module

import pytest


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a benchmark in this process, ``python -m benchmarks.NAME ARGUMENTS``, and returns what it prints."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        import_module(f"benchmarks.{name}").main()
        return capsys.readouterr().out

    return run
