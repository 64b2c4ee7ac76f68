"""Comments in a stream while its request waits: how often, where they stand, and when they end."""

import asyncio
from typing import Any

import pytest

from sloserve.core.predicted import Quantiles
from sloserve.wire.progress import RequestProgress
from sloserve.wire.waiting_comments import WaitingComments, may_have_comments
from tests.client.virtual_time import run

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Client:
    """Notes what it is sent, and when."""

    def __init__(self) -> None:
        self.progress: RequestProgress | None = RequestProgress(
            "batch", True, 0.0, position=2, remaining=Quantiles(1.0, 2.0, 3.0)
        )
        self.sent: list[tuple[float, Any]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.fails: Exception | None = None

    async def send(self, message: Any) -> None:
        await self.may_send.wait()
        if self.fails is not None:
            raise self.fails
        now_s = asyncio.get_running_loop().time()
        self.sent.append((round(now_s, 3), message.get("body", message.get("status"))))

    def comments(self, every_s: float = 1.0, head: Any = None) -> WaitingComments:
        return WaitingComments(self.send, lambda: self.progress, every_s, head)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.sent]


LINE = b": slo-queue position=2 p50_ms=1000 p90_ms=2000\n\n"


def test_comments_come_at_their_rate_after_the_head_and_end_with_the_first_token() -> None:
    async def test() -> None:
        client = Client()
        comments = client.comments()
        begun_s = asyncio.get_running_loop().time()
        await asyncio.sleep(5)
        assert client.sent == [], "none before the head"
        await comments.send(dict(START))
        await asyncio.sleep(2.5)
        client.progress = RequestProgress("batch", False, 7.5)  # the token is out, and on its way here
        await asyncio.sleep(2)
        await comments.send(part(b"data: 1\n\n"))
        await asyncio.sleep(9)
        await comments.send(part(b"data: 2\n\n", more=False))
        await asyncio.sleep(9)
        expected = [(5, 200), (6, LINE), (7, LINE), (9.5, b"data: 1\n\n"), (18.5, b"data: 2\n\n")]
        assert client.sent == [(begun_s + at_s, body) for at_s, body in expected]
        assert len(asyncio.all_tasks()) == 1

    run(test())


def test_no_comment_stands_within_an_event() -> None:
    """A stream may say something before its first token, and a part of a body may be a part of an event."""

    async def test() -> None:
        client = Client()
        comments = client.comments()
        await comments.send(dict(START))
        await comments.send(part(b"event: created\n"))
        await asyncio.sleep(3.5)
        await comments.send(part(b"data: {}\n\n"))
        await asyncio.sleep(1)
        await comments.send(part(b""))
        await asyncio.sleep(1)
        assert client.bodies == [200, b"event: created\n", b"data: {}\n\n", LINE, b"", LINE]
        comments.stop()

    run(test())


def test_the_first_token_waits_for_a_comment_that_a_slow_client_reads_and_no_second_one_is_made() -> None:
    async def test() -> None:
        client = Client()
        comments = client.comments()
        await comments.send(dict(START))
        client.may_send.clear()
        await asyncio.sleep(100)
        client.progress = RequestProgress("batch", False, 100.0)
        token = asyncio.create_task(comments.send(part(b"data: 1\n\n")))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        client.may_send.set()
        await token
        assert client.bodies == [200, LINE, b"data: 1\n\n"]

    run(test())


def test_a_comment_on_its_way_is_sent_whole_before_what_ends_the_response() -> None:
    async def test() -> None:
        client = Client()
        comments = client.comments(head=dict(START))
        comments.start()
        client.may_send.clear()
        await asyncio.sleep(1.5)
        comments.stop()
        assert comments.has_begun and client.bodies == []
        ending = asyncio.create_task(comments.send(part(b"data: error\n\n", more=False)))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        client.may_send.set()
        await ending
        await asyncio.sleep(5)
        assert client.bodies == [200, LINE, b"data: error\n\n"]
        assert len(asyncio.all_tasks()) == 1

    run(test())


def test_before_admission_there_is_nothing_to_say() -> None:
    async def test() -> None:
        client = Client()
        client.progress, waits = None, client.progress
        comments = client.comments()
        await comments.send(dict(START))
        await asyncio.sleep(3.5)
        assert client.bodies == [200]
        client.progress = waits
        await asyncio.sleep(1)
        assert client.bodies == [200, LINE]
        comments.stop()
        await asyncio.sleep(5)
        assert client.bodies == [200, LINE]

    run(test())


@pytest.mark.parametrize("fails", [OSError("gone"), ValueError("a fault of ours")])
def test_a_client_that_left_gets_none_and_the_response_goes_its_way(fails: Exception) -> None:
    async def test() -> None:
        client = Client()
        comments = client.comments()
        await comments.send(dict(START))
        client.fails = fails
        await asyncio.sleep(5)
        client.fails = None
        await comments.send(part(b"data: 1\n\n"))
        assert client.bodies == [200, b"data: 1\n\n"]
        comments.stop()

    run(test())


def test_a_held_response_begins_with_its_first_comment_and_only_once() -> None:
    async def test() -> None:
        client = Client()
        comments = client.comments(head=dict(START))
        comments.start()
        await asyncio.sleep(2.5)
        assert comments.has_begun and client.bodies == [200, LINE, LINE]
        await comments.send({**START, "status": 299})
        assert client.bodies == [200, LINE, LINE]
        comments.stop()
        early = Client()
        comments = early.comments(head=dict(START))
        comments.start()
        await comments.send({**START, "status": 299})
        await comments.send(part(b"data: 1\n\n", more=False))
        await asyncio.sleep(5)
        assert early.bodies == [299, b"data: 1\n\n"]

    run(test())


@pytest.mark.parametrize(
    ("status", "headers", "may"),
    [
        (200, {b"content-type": b"text/event-stream; charset=utf-8"}, True),
        (200, {b"Content-Type": b"text/event-stream", b"content-encoding": b"gzip"}, False),
        (200, {b"content-type": b"text/event-stream", b"content-length": b"10"}, False),
        (200, {b"content-type": b"application/json"}, False),
        (429, {b"content-type": b"text/event-stream"}, False),
        (200, {}, False),
    ],
)
def test_comments_stand_in_plain_streams_alone(status: int, headers: dict[bytes, bytes], may: bool) -> None:
    assert may_have_comments({"status": status, "headers": list(headers.items())}) is may
