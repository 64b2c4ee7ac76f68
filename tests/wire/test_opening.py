"""One way to open a request, whichever server does it: what is bounded, and how a refusal is answered."""

import asyncio
import json
import math
from typing import Any

import pytest

from sloserve.core.errors import BadBody, BodyTooLarge, BodyTooSlow, MalformedBody, UnknownModel
from sloserve.wire.asgi import ClientLeft
from sloserve.wire.opening import SILENT_S, BodyLimits, BoundedBody, open_request
from tests.client.virtual_time import run

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"mine")]}


class Client:
    """Sends a body in parts, each ``gap_s`` after the one before, then leaves."""

    def __init__(self, *parts: bytes, gap_s: float = 0.0, more: bool = False) -> None:
        self.parts, self.gap_s, self.more = list(parts), gap_s, more
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        await asyncio.sleep(self.gap_s)
        if not self.parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": self.more or bool(self.parts)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def body(self, limits: BodyLimits, **headers: str) -> BoundedBody:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return BoundedBody({**SCOPE, "headers": raw}, self.receive, limits)


def test_a_body_within_its_limits_is_read_and_each_part_told() -> None:
    taken: list[int] = []
    body = Client(b"ab", b"", b"c", gap_s=0.3 * SILENT_S).body(BodyLimits(3))
    assert run(body.read(taken.append)) == b"abc" and taken == [2, 0, 1] and body.is_whole


def test_a_longer_body_ends_before_it_is_read_where_it_says_so_and_else_with_the_part_that_passes_the_limit() -> None:
    said, client = Client(b"abcd"), Client(b"ab", b"cd", b"ef")
    with pytest.raises(BodyTooLarge, match="request body: more than 3 bytes"):
        run(said.body(BodyLimits(3), content_length="4").read())
    with pytest.raises(BodyTooLarge):
        run(client.body(BodyLimits(3)).read())
    assert (said.parts, client.parts) == ([b"abcd"], [b"ef"])


@pytest.mark.parametrize(
    ("gap", "parts", "rate", "ends"),
    [(1.1, 1, math.inf, False), (0.3, 3, math.inf, True), (0.3, 4, math.inf, False), (0.3, 4, 1.0, True)],
    ids=["silent", "in time", "as a whole too slow", "fast enough for its rate"],
)
def test_a_body_that_does_not_go_on_or_not_fast_enough_is_ended(
    gap: float, parts: int, rate: float, ends: bool
) -> None:
    body = Client(*[b"x" * 10] * parts, gap_s=gap * SILENT_S).body(BodyLimits(100, SILENT_S, rate))
    if ends:
        assert len(run(body.read())) == 10 * parts
    else:
        with pytest.raises(BodyTooSlow, match="not whole after 60 s"):
            run(body.read())


def test_waiting_for_the_client_to_leave_is_no_part_of_the_body() -> None:
    client = Client(b"x")
    body = client.body(BodyLimits(1))

    async def both() -> Any:
        await body.read()
        client.gap_s = 10 * SILENT_S
        return await body()

    assert run(both()) == {"type": "http.disconnect"}
    with pytest.raises(ClientLeft):
        run(Client(b"x", more=True).body(BodyLimits(1)).read())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'{"a": 1, "a": 2}', "more than once"),
        (b'{"a": NaN}', "not a number"),
        (b"[]", "not a JSON object"),
        (b"{", "JSON"),
    ],
)
def test_a_body_that_only_sloserve_reads_is_strict_json(text: bytes, fault: str) -> None:
    with pytest.raises(MalformedBody, match=f"^request body: .*{fault}"):
        run(Client(text).body(BodyLimits(100)).json_object())
    assert run(Client(b'{"a":', b" [1]}").body(BodyLimits(100)).json_object()) == {"a": [1]}


@pytest.mark.parametrize("is_read", [False, True])
def test_a_refusal_repeats_the_id_and_closes_where_the_body_is_not_read(is_read: bool) -> None:
    client = Client(b"x")

    async def refused(error: BadBody | UnknownModel) -> dict[bytes, bytes]:
        request = await open_request(SCOPE, client.receive, client.send, BodyLimits(1))
        assert request is not None and request.id == "mine"
        if is_read:
            await request.body.read()
        await request.refuse(error, [("allow", "POST")])
        return dict(client.sent[0]["headers"])

    headers = run(refused(UnknownModel("x", ())))
    assert headers[b"x-request-id"] == b"mine" and headers[b"allow"] == b"POST"
    assert (b"connection" in headers) is not is_read
    answer = json.loads(client.sent[1]["body"])["error"]
    assert (client.sent[0]["status"], answer["param"]) == (404, "model")


def test_an_id_that_is_none_is_refused_before_anything_else() -> None:
    client = Client(b"x")
    scope = {**SCOPE, "headers": [(b"x-request-id", b"x" * 200)]}
    assert run(open_request(scope, client.receive, client.send, BodyLimits(1))) is None
    assert client.sent[0]["status"] == 400 and client.parts == [b"x"]
