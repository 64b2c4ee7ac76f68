"""Benchmarks as tests run them."""

import runpy
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a benchmark in this process, ``python -m benchmarks.NAME ARGUMENTS``, and returns what it prints.

    It runs as ``__main__``, beside the module that other tests import: ``--quick`` changes constants of some.
    """

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        return capsys.readouterr().out

    return run
