"""What the tests of the front end share."""

from types import SimpleNamespace

import pytest

from tests.vllm_plugin.server.fake_engine import Malformed, Metrics, Refused


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    found = Metrics()
    monkeypatch.setattr("sloserve.engine.metrics.collectors.install", lambda *_: found)
    monkeypatch.setattr("sloserve.vllm_plugin.server.front_end.remove_pages", lambda: None)
    exceptions = SimpleNamespace(GracefulHTTPError=Refused, VLLMClientError=Malformed, VLLMValidationError=Malformed)
    monkeypatch.setitem(__import__("sys").modules, "vllm.exceptions", exceptions)
    return found
