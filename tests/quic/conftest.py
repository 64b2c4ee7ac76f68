"""A link in virtual time for tests."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def virtually(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a test in virtual time, over a link that loses nothing."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))

    def run(test: Callable[[Any], Any], rate_bps: float = 1e9) -> None:
        shape = import_module("quic_link").Shape(rate_bps=rate_bps, loss=0.0, delay_s=0.01)
        import_module("quic_virtual").run(shape, test)

    return run
