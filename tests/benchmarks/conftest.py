"""Benchmarks as tests run them."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the slow tests of benchmarks to ``make whole``: no user runs what they test."""
    for item in items:
        if HERE in item.path.parents and any(map(item.get_closest_marker, ("slow", "vllm"))):
            item.add_marker("whole")


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
