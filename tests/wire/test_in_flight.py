"""The requests in flight by their ids, and the route that says how far one has come."""

import json
from typing import Any

import pytest

from sloserve.wire.in_flight import REQUESTS, RequestsInFlight, answer_progress
from sloserve.wire.progress import RequestProgress
from tests import bounded

WAITS = RequestProgress("batch", True, 0.25, position=4)


def ask(known: RequestsInFlight, request_id: str, tenant: str | None = None, method: str = "GET") -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"method": method, "path": REQUESTS + request_id}
    bounded.run(answer_progress(scope, send, known, tenant, "; ask the other one"))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_request_is_found_while_it_is_in_flight_by_its_tenant_alone() -> None:
    known = RequestsInFlight()
    with known.entered("acme", "a/b c", lambda: WAITS):
        status, body = ask(known, "a/b c", "acme")
        assert (status, body["id"], body["position"]) == (200, "a/b c", 4)
        assert ask(known, "a/b c", "other")[0] == ask(known, "a/b c")[0] == 404
        assert ask(known, "a/b c", "acme", "POST")[0] == 405
    status, body = ask(known, "a/b c", "acme")
    assert status == 404 and len(known) == 0
    assert body["error"]["code"] == 404 and body["error"]["message"].endswith("; ask the other one")


def test_before_its_admission_a_request_is_not_found() -> None:
    known = RequestsInFlight()
    with known.entered(None, "a", lambda: None):
        assert ask(known, "a")[0] == 404


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_of_two_requests_of_one_id_the_later_one_is_known(first_ends_first: bool) -> None:
    known = RequestsInFlight()
    first, second = known.entered(None, "a", lambda: None), known.entered(None, "a", lambda: WAITS)
    first.__enter__()
    second.__enter__()
    order = [first, second] if first_ends_first else [second, first]
    order[0].__exit__(None, None, None)
    assert (known.find(None, "a") is WAITS) is first_ends_first
    order[1].__exit__(None, None, None)
    assert len(known) == 0
