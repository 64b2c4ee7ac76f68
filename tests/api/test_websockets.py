"""Websockets, which keep no SLO: one that states none is passed on, the others are refused before they are accepted."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.api.middleware import SLOMiddleware
from sloserve.vllm_plugin.server.stated import warn_operator
from tests import bounded


class Connection:
    """One websocket to an app that accepts it, behind the middleware. engine: ``None`` for an app of no engine."""

    def __init__(self, *headers: tuple[str, str], can_answer: bool = True) -> None:
        self.sent: list[Any] = []
        self.invalid = 0
        front_end = SimpleNamespace(count_invalid=self._count, live=None)
        engine = SimpleNamespace(
            vllm_config=SimpleNamespace(additional_config={"sloserve": {}}), sloserve_front_end=front_end
        )
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "extensions": {"websocket.http.response": {}} if can_answer else {},
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine)),
        }
        bounded.run(SLOMiddleware(self._app)(scope, self._receive, self._send))

    def _count(self) -> None:
        self.invalid += 1

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})

    async def _receive(self) -> Any:
        return {"type": "websocket.connect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("headers", [[], [("x-tenant-id", "acme")], [("x-slo-deadline", "1")], [("x-other", "1")]])
def test_without_an_slo_it_is_passed_on(headers: list[tuple[str, str]]) -> None:
    connection = Connection(*headers)
    assert connection.sent == [{"type": "websocket.accept"}] and connection.invalid == 0


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("x-slo-ttft-ms", "x-slo-ttft-ms: '500' is not allowed here: this route keeps no SLO; send it without one"),
        ("x-slo-class", "x-slo-class: '500' is not allowed here"),
        ("x-slo-tfft-ms", "did you mean x-slo-ttft-ms?"),
    ],
)
def test_with_an_slo_or_a_misspelt_one_it_is_refused_and_counted(
    header: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_operator.cache_clear()
    with caplog.at_level(logging.WARNING):
        connection = Connection((header, "500"))
    start, body = connection.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 400)
    assert body["type"] == "websocket.http.response.body" and says in json.loads(body["body"])["error"]["message"]
    assert connection.invalid == 1
    assert [record.getMessage() for record in caplog.records] == [
        "clients state SLOs for a websocket, which keeps none, and are refused with 400"
    ]


def test_a_server_that_cannot_answer_a_websocket_closes_it_with_the_reason() -> None:
    (closed,) = Connection(("x-slo-tfft-ms", "5"), can_answer=False).sent
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert closed["reason"].startswith("x-slo-tfft-ms: '5' is not a known SLO header") and len(closed["reason"]) <= 123
