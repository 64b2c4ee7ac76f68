"""A link in virtual time for tests."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests import bounded


@pytest.fixture
def virtually() -> Callable[..., None]:
    """Runs a test in virtual time, over a link that loses nothing."""

    def run(test: Callable[[Any], Any], rate_bps: float = 1e9) -> None:
        shape = import_module("benchmarks.http3.quic_link").LinkShape(rate_bps=rate_bps, loss=0.0, delay_s=0.01)
        with bounded.within(f"the end of {test.__qualname__} in virtual time"):
            import_module("benchmarks.http3.quic_virtual").run(shape, test)

    return run
