"""A fake endpoint on a free port, and requests to send to it."""

import functools
import ssl
from collections.abc import Callable, Iterator

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets
from tests.client.fake_server import FakeServer, serving


@pytest.fixture(scope="session")
def _server() -> Iterator[FakeServer]:
    with pytest.MonkeyPatch.context() as patch, serving(FakeServer()) as server:
        # Reading the certificates of all authorities takes 30 ms, and each client reads them.
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield server


@pytest.fixture
def fake(_server: FakeServer) -> FakeServer:
    """Answers every request with as many tokens as it asks for, until a test gives it another script."""
    vars(_server).update(vars(FakeServer(url=_server.url)))
    return _server


@pytest.fixture
def make_request() -> Callable[..., WorkloadRequest]:
    def make(
        request_id: str = "r0", arrival_s: float = 0.0, prompt: int = 10, output: int = 3, **targets: float
    ) -> WorkloadRequest:
        return WorkloadRequest(
            request_id, arrival_s, prompt, output, SLO(SLOClass("interactive", 1), Targets(**targets))
        )

    return make
