"""What the front end takes from vLLM's output processor, with a processor that is a fake."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.vllm_plugin.server.observe import entering
from sloserve.vllm_plugin.server.output_states import OutputStates


class Processor:
    """Keeps a state of each request that is added."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any) -> str:
        """Add a request."""
        self.request_states[request.request_id] = SimpleNamespace(stats=object(), is_prefilling=True)
        return str(request.request_id)


def call_of(engine_request_id: str | None, figures: Any = None) -> Any:
    """Return a call of the engine."""
    return SimpleNamespace(engine_request_id=engine_request_id, figures={} if figures is None else figures)


def test_figures_of_each_output_are_kept_with_the_call_that_enters() -> None:
    processor, call = Processor(), call_of(None)
    OutputStates(processor, None)
    token = entering.set(call)
    try:
        for name in ("0_a", "1_a"):
            assert processor.add_request(SimpleNamespace(request_id=name)) == name
    finally:
        entering.reset(token)
    assert call.figures == {name: state.stats for name, state in processor.request_states.items()}


def test_a_fault_of_ours_leaves_the_request_to_vllm(caplog: pytest.LogCaptureFixture) -> None:
    processor = Processor()
    OutputStates(processor, None)
    token = entering.set(call_of(None, figures=()))  # takes no figures
    try:
        with caplog.at_level(logging.ERROR):
            assert processor.add_request(SimpleNamespace(request_id="a")) == "a"
    finally:
        entering.reset(token)
    assert "it is served" in caplog.text


def test_a_call_prefills_until_its_first_output_has_a_token() -> None:
    processor = Processor()
    states = OutputStates(processor, None)
    assert states.is_prefilling(call_of(None)), "it is not in the engine yet"
    processor.add_request(SimpleNamespace(request_id="0_a"))
    assert states.is_prefilling(call_of("a"))
    processor.request_states["0_a"].is_prefilling = False
    assert not states.is_prefilling(call_of("a"))
    assert not states.is_prefilling(call_of("b")), "it has ended"
