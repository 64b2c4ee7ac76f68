"""The feed: watchers that apply its changes see the view; their number, frames and waiting are bounded."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.wire import live_feed
from sloserve.wire.asgi import ClientLeft
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.live_feed import MOST_BYTES, MOST_WATCHERS, LiveFeed, changes, fitted, frame
from tests import bounded

rows = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(0, 2), min_size=2, max_size=2))
views = st.builds(lambda at_s, policy, rows: {"at_s": at_s, "policy": policy, "rows": rows}, st.integers(0, 2),
                  st.sampled_from(["edf", "auto"]), rows)  # fmt: skip


def applied(view: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """As the page and ``sloserve top`` do."""
    shown = {**view["rows"], **change.get("rows", {})}
    return {**view, **change, "rows": {key: row for key, row in shown.items() if row is not None}}


@given(views, views)
def test_a_view_and_its_changes_are_the_next_view(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert applied(before, changes(before, now)) == now
    assert changes(now, now) == {}


def test_a_change_names_only_what_is_other() -> None:
    before = {"at_s": 1, "policy": "edf", "rows": {"0-1": [1], "0-2": [2], "0-3": [3]}}
    now = {"at_s": 2, "policy": "edf", "rows": {"0-1": [1], "0-2": [5], "0-4": [4]}}
    assert changes(before, now) == {"at_s": 2, "rows": {"0-2": [5], "0-4": [4], "0-3": None}}


def test_a_frame_has_a_bound_which_rows_give_way_to() -> None:
    view = {"rows": {f"0-{i}": ["x" * 400] * 3 for i in range(200)}}
    kept = fitted(view)
    assert 0 < len(kept["rows"]) < 200 and list(kept["rows"]) == list(view["rows"])[: len(kept["rows"])]
    gone = {"rows": {f"0-{10**9 + i}": [i] for i in range(200)}}
    assert len(frame("change", changes(gone, kept))) <= MOST_BYTES
    with pytest.raises(ValueError, match="without rows"):
        fitted({"classes": "x" * MOST_BYTES, "rows": {}})


class Client:
    """One watcher's end. reads: whether it takes what is sent."""

    def __init__(self, feed: LiveFeed, reads: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self._reads, self._left = reads, asyncio.Event()
        self.came = asyncio.Event()
        self.task = asyncio.create_task(feed.serve(self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))
        self.came.set()
        if not self._reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def events(self, least: int) -> list[tuple[str, Any]]:
        while True:
            text = b"".join(part.get("body", b"") for part in self.sent).decode()
            found = [one.split("\ndata: ") for one in text.replace("event: ", "").split("\n\n") if one]
            if len(found) >= least:
                return [(kind, json.loads(data)) for kind, data in found]
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 60.0)

    async def leave(self) -> None:
        self._left.set()
        await self.task

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def run(test: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, every_s: float = 0.002) -> None:
    monkeypatch.setattr(live_feed, "EVERY_S", every_s)
    bounded.run(test())


class Counting:
    """A view that is another at each reading."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self) -> dict[str, Any]:
        self.read += 1
        return {"at_s": self.read, "model": "m", "rows": {"0-1": [self.read]}}


def test_each_watcher_gets_a_snapshot_and_then_changes_of_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        view = Counting()
        feed = LiveFeed(view)
        one = Client(feed)
        await one.events(3)
        two = Client(feed)
        for client in (one, two):
            events = await client.events(5)
            assert [kind for kind, _ in events[:3]] == ["snapshot", "change", "change"]
            shown = events[0][1]
            for _, change in events[1:]:
                assert change["at_s"] == shown["at_s"] + 1 and "model" not in change
                shown = applied(shown, change)
            assert shown["model"] == "m" and shown["rows"] == {"0-1": [shown["at_s"]]}
            await client.leave()
        read = view.read
        await asyncio.sleep(0.02)
        assert view.read <= read + 1  # without watchers nothing is read

    run(test, monkeypatch)


def test_a_watcher_too_many_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        feed = LiveFeed(Counting())
        clients = [Client(feed) for _ in range(MOST_WATCHERS)]
        for client in clients:
            await client.events(1)
        refused = Client(feed)
        await refused.task
        assert refused.status == 429 and b"8 of 8 watchers" in refused.sent[1]["body"]
        await clients.pop().leave()
        again = Client(feed)
        await again.events(1)
        for client in (again, *clients):
            assert client.status == 200
            await client.leave()

    run(test, monkeypatch)


def test_who_does_not_read_is_dropped_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        feed = LiveFeed(Counting())
        stuck, reads = Client(feed, reads=False), Client(feed)
        await stuck.task
        await reads.events(8)
        assert len(stuck.sent) == 2
        await reads.leave()

    run(test, monkeypatch)


def test_a_client_that_is_given_up_twice_at_once_has_left() -> None:
    """A feed that closed as a slow watcher was dropped logged an exception of the app."""

    async def test() -> None:
        async with WhileClientWaits(asyncio.Event().wait) as client:  # type: ignore[arg-type]
            client.give_up()
            client.give_up()
            await asyncio.sleep(0)

    with pytest.raises(ClientLeft):
        bounded.run(test())


def test_a_server_that_stops_ends_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        feed = LiveFeed(Counting())
        clients = [Client(feed), Client(feed)]
        for client in clients:
            await client.events(2)
        feed.close()
        for client in clients:
            await client.task
            assert client.sent[-1] == {"type": "http.response.body", "body": b""}
        again = Client(feed)
        await again.task
        assert again.status == 503 and b"stopping" in again.sent[1]["body"]

    run(test, monkeypatch)


def test_a_view_that_cannot_be_read_sends_watchers_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        def broken() -> dict[str, Any]:
            raise OSError("private")

        client = Client(LiveFeed(broken))
        await client.task
        assert b"private" not in b"".join(part.get("body", b"") for part in client.sent)

    run(test, monkeypatch)
    assert "could not be read" in caplog.text


def test_a_watcher_gets_the_history_once_when_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        samples = [[1.0], [2.0]]
        feed = LiveFeed(Counting(), history=lambda: {"columns": ["at_s"], "rows": samples})
        first = Client(feed)
        (kind, snapshot), (then, change) = (await first.events(2))[:2]
        assert (kind, snapshot["history"]) == ("snapshot", {"columns": ["at_s"], "rows": [[1.0], [2.0]]})
        assert then == "change" and "history" not in change
        samples.append([3.0])
        second = Client(feed)
        ((kind, snapshot),) = (await second.events(1))[:1]
        assert kind == "snapshot" and snapshot["history"]["rows"][-1] == [3.0]
        await first.leave()
        await second.leave()

    run(test, monkeypatch)
