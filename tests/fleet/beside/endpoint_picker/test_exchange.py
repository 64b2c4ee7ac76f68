"""What a picker says in each mode of Envoy's, message by message, and what it does with faults."""

from collections.abc import Collection
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.fleet.beside.choice_settings import ChoiceSection
from sloserve.fleet.beside.endpoint_picker.exchange import BodyMemory, PickerExchange, PickerState
from sloserve.fleet.beside.endpoint_picker.messages import BUFFERED, ProcessingRequest
from sloserve.fleet.beside.endpoint_picker.picker_metrics import PickerMetrics
from sloserve.fleet.beside.picking import Pick, Picking
from sloserve.fleet.beside.request_reading import RequestReading
from sloserve.fleet.beside.server_figures import ServerFigures
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.scheduler.settings import PluginSettings
from tests import bounded
from tests.fleet.beside.endpoint_picker.played_envoy import (
    Seen,
    body_message,
    chat,
    headers_message,
    response_message,
    take,
)

STREAMED, NONE = 1, 0


class Broken(Picking):
    """A choice that raises what a test gives it."""

    error: Exception = RuntimeError("a fault")

    async def pick(self, request: GatewayRequest, subset: Collection[str] | None = None) -> Pick | None:
        raise self.error


def state_with(kind: type[Picking] = Picking, memory: BodyMemory | None = None) -> PickerState:
    clock = ManualClock()
    picking = kind({}, ChoiceSection(hold_max_s=0.0), clock)
    picking.servers.listed(["a:1", "b:1"])
    for name in ("a:1", "b:1"):
        picking.reported(name, ServerFigures("m"), 0)
    return PickerState(
        picking, RequestReading(PluginSettings()), memory or BodyMemory(1 << 20, 1 << 16), PickerMetrics(), clock
    )


def said(state: PickerState, *messages: Any) -> tuple[Seen, PickerExchange, list[list[str]]]:
    """Return what is said to these messages, and the kinds of answers to each."""
    exchange, seen, kinds = PickerExchange(state), Seen(), []

    async def main() -> None:
        for message in messages:
            answers = await exchange.take(message)
            kinds.append([one.WhichOneof("response") for one in answers])
            for answer in answers:
                take(seen, answer)

    bounded.run(main())
    return seen, exchange, kinds


def trailers_message(kind: str = "request_trailers") -> Any:
    made = ProcessingRequest()
    getattr(made, kind).SetInParent()
    return made


def test_in_full_duplex_nothing_is_said_before_the_end_of_the_body() -> None:
    first, second = chat()[:20], chat()[20:]
    messages = headers_message(), body_message(first, end=False), body_message(second, end=True)
    seen, _, kinds = said(state_with(), *messages)
    assert kinds == [[], [], ["request_headers", "request_body"]] and seen.body == chat() and seen.ended


def test_trailers_end_a_body_as_well() -> None:
    messages = headers_message(), body_message(chat(), end=False), trailers_message()
    seen, _, kinds = said(state_with(), *messages)
    assert kinds == [[], [], ["request_headers", "request_body", "request_trailers"]]
    assert seen.body == chat() and not seen.ended


def test_a_request_without_a_body_is_chosen_for_by_its_headers() -> None:
    seen, _, kinds = said(state_with(), headers_message(end=True, path="/v1/models"))
    assert kinds == [["request_headers"]] and seen.server == seen.metadata != ""


def test_a_buffered_body_is_answered_with_the_server_after_the_headers_are_let_go() -> None:
    messages = headers_message(mode=BUFFERED), body_message(chat(), end=True)
    seen, _, kinds = said(state_with(), *messages)
    assert kinds == [["request_headers"], ["request_body"]] and seen.server == seen.metadata != ""


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_other_modes_are_chosen_for_by_their_headers(mode: int) -> None:
    messages = headers_message(mode=mode), body_message(chat(), end=True)
    seen, _, kinds = said(state_with(), *messages)
    assert kinds == [["request_headers"], ["request_body"]] and seen.server and not seen.body


def test_the_response_passes_unchanged_and_ends_the_request() -> None:
    state = state_with()
    messages = [headers_message(end=True), response_message()]
    messages += [body_message(b"data: 1\n\n", end=False, kind="response_body")]
    _, _, kinds = said(state, *messages)
    assert kinds[1:] == [["response_headers"], ["response_body"]]
    assert sum(one.in_flight for one in state.picking.instances.by_name.values()) == 1
    _, _, kinds = said(
        state, *messages, body_message(b"", end=True, kind="response_body"), trailers_message("response_trailers")
    )
    assert kinds[-1] == ["response_trailers"]
    assert sum(one.in_flight for one in state.picking.instances.by_name.values()) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_refuses_is_full_until_it_reports_room(status: int) -> None:
    state = state_with()
    seen, _, _ = said(state, headers_message(end=True), response_message(status))
    again = {said(state, headers_message(end=True))[0].server for _ in range(2)}
    assert again == {"a:1", "b:1"} - {seen.server}


def test_a_fault_in_the_choice_lets_the_servers_take_turns() -> None:
    state = state_with(Broken)
    found = [said(state, headers_message(end=True))[0].server for _ in range(4)]
    assert sorted(found) == ["a:1", "a:1", "b:1", "b:1"]
    assert b"sloserve:picker_faults_total 4.0" in state.metrics.page()


def test_a_refusal_has_the_form_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "error", QueueFull("no room", 5, "batch"))
    seen, exchange, kinds = said(state_with(Broken), headers_message(end=True, path="/v1/messages"))
    assert kinds == [["immediate_response"]] and exchange.is_over
    assert seen.status == 429 and seen.refusal["error"]["type"] == "rate_limit_error"
    assert seen.headers["retry-after"] == "5"


def test_memory_of_bodies_is_given_back_however_a_stream_ends() -> None:
    memory = BodyMemory(100, 80)
    _, exchange, _ = said(state_with(memory=memory), headers_message(), body_message(b"x" * 70, end=False))
    assert memory.kept == 70
    other, _, kinds = said(state_with(memory=memory), headers_message(), body_message(b"y" * 70, end=True))
    assert kinds[-1] == ["request_headers", "request_body"] and other.body == b"y" * 70 and memory.kept == 70
    exchange.over()
    exchange.over()
    assert memory.kept == 0


def test_a_piece_after_the_choice_is_passed_on_at_once() -> None:
    memory = BodyMemory(1 << 20, 10)
    messages = [headers_message(), *(body_message(b"z" * 8, end=place == 2) for place in range(3))]
    seen, _, kinds = said(state_with(memory=memory), *messages)
    assert kinds == [[], [], ["request_headers", "request_body"], ["request_body"]]
    assert seen.body == b"z" * 24 and seen.ended


def test_in_observability_mode_nothing_is_said() -> None:
    message = headers_message(end=True)
    message.observability_mode = True
    _, _, kinds = said(state_with(), message)
    assert kinds == [[]]
