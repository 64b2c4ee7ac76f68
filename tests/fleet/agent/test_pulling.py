"""Pulling from the store: what is claimed, what is committed, what goes back, and what an engine's death does."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sloserve.core.clock import ManualClock, SystemClock
from sloserve.core.errors import StoreError
from sloserve.fleet.agent import line_output, line_service, pulling
from sloserve.fleet.agent.claims import ClaimedLine, Pull
from sloserve.fleet.agent.line_service import attempted
from sloserve.fleet.agent.pulling import Pulling
from sloserve.fleet.contract.endpoint import InstanceResponse, Refused
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import Claimed, DurableRequest, RequestState
from sloserve.fleet.store.requests import MOST_LOST, Requests
from sloserve.fleet.store.store import Store, open_store
from tests import bounded
from tests.fleet.agent.fake_endpoint import FakeEndpoint
from tests.fleet.stand_in.engine import HANG, POISON, StandIn, reply

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Host:
    """An agent's store, its doors, and who pulls for them."""

    store: Store
    doors: list[FakeEndpoint]
    pulling: Pulling
    store_clock: ManualClock

    def accept(self, n: int, group: int = 1, **given: Any) -> None:
        """n lines of a group, each with a prompt of its own."""
        self.store.requests.accept([self.line(f"{group}.{i:03}", f"p{i} ", group, **given) for i in range(n)])

    def line(self, id: str, prompt: str, group: int = 1, **given: Any) -> DurableRequest:
        extra = given.pop("body", {})
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 20, **extra}).encode()
        values = {"tenant": "t", "model": "m", "slo_class": "batch", "batch": "b", "route": COMPLETIONS, **given}
        return DurableRequest(id=id, group=group, body=body, **values)

    def results(self) -> dict[str, Any]:
        """By id: text of the reply, or the state of what has none."""
        rows = self.store.requests.results("b", most=10_000)
        return {row.id: _text(row.body) if row.state is RequestState.DONE else row.state for row in rows}

    async def until_ended(self, n: int) -> dict[str, Any]:
        await bounded.until(lambda: len(self.results()) >= n)
        return self.results()


def stop_after(engine: StandIn, tokens: int) -> None:
    """Let an engine compute this many tokens, or one more for each further line, and none after them."""
    step = engine._step

    async def step_or_wait() -> None:
        if engine.computed >= tokens:
            await asyncio.Event().wait()
        await step()

    engine._step = step_or_wait  # type: ignore[method-assign]


def _text(body: bytes | None) -> Any:
    choice = json.loads(body or b"")["choices"][0]
    return choice.get("text") or choice["message"]["content"]


@asynccontextmanager
async def host(folder: Path, *doors: FakeEndpoint, lease_s: float = 30.0) -> AsyncIterator[Host]:
    clock = ManualClock()
    store = open_store(f"sqlite:{folder / 'store.sqlite'}", clock)
    with ThreadPoolExecutor(2) as executor:
        pulls = Pulling(store.requests, "agent-1", SystemClock(), executor, lease_s=lease_s)
        for door in doors:
            door.work = pulls
        pulls.start(doors)
        try:
            yield Host(store, list(doors), pulls, clock)
        finally:
            await pulls.stop(0.0)
    store.close()


def run(test: Any) -> None:
    bounded.run(test)


@pytest.mark.slow
def test_lines_are_served_in_the_order_of_the_plan_while_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=4)
        async with host(tmp_path, door) as a:
            a.accept(20, group=1)
            a.accept(20, group=2, deadline_s=3_600.0)
            a.pulling.follow("a/0", [Pull(2, "m"), Pull(1, "m")])
            results = await a.until_ended(40)
            assert results["2.003"] == reply("m", "p3 ", 20)
            sent = [headers["x-request-id"] for _, _, headers in door.asked]
            assert sorted(sent) == sorted(results) and set(sent[:20]) == {f"2.{i:03}" for i in range(20)}
            path, body, headers = door.asked[0]
            assert (path, body["stream"], headers["x-slo-class"]) == (COMPLETIONS, True, "batch")
            assert 3_500_000 < int(headers["x-slo-e2e-ms"]) <= 3_600_000
            assert "x-slo-e2e-ms" not in door.asked[-1][2]

    run(scenario())


def test_lines_state_their_tenant_and_are_in_its_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m")
        async with host(tmp_path, door) as a:
            several = a.line("n2", "p ", body={"n": 2, "max_tokens": 30}, tenant="b")  # is not streamed
            a.store.requests.accept([a.line("one", "p "), several, a.line("late", "p ", deadline_s=0.0)])
            a.pulling.follow("a/0", [Pull(1, "m")])
            await a.until_ended(2)
            sent = {headers["x-request-id"]: headers["x-tenant-id"] for _, _, headers in door.asked}
            assert sent == {"one": "t", "n2": "b"}
            used = {row.tenant: row for row in a.store.usage.since(1)}
            prompts = {json.loads(row.body or b"{}")["usage"]["prompt_tokens"] for row in a.store.requests.results("b")}
            assert {row.batch_prompt_tokens for row in used.values()} == prompts
            assert [used[name].batch_output_tokens for name in "tb"] == [20, 30]
            assert [used[name].batch_lines for name in "tb"] == [1, 1]

    run(scenario())


def test_lines_leave_places_to_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=6, step_s=0.05)
        door.room_for_streams = 2
        async with host(tmp_path, door) as a:
            a.accept(20)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(door.asked) == 4)
            a.pulling.ended("a/0")  # as of a stream, so that it looks again
            await bounded.until(lambda: not a.pulling._work["a/0"].wake.is_set())
            assert len(door.asked) == 4

    run(scenario())


def test_a_line_takes_the_place_of_a_stream_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the next look, half a second later at most."""
    monkeypatch.setattr(pulling, "_IDLE_S", 1e9)

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=0)
        async with host(tmp_path, door) as a:
            a.accept(1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            work = a.pulling._work["a/0"]
            await bounded.until(lambda: not work.has_suspects and not work.wake.is_set())  # it has looked, and waits
            door.room = 1
            a.pulling.ended("a/0")
            assert await a.until_ended(1) == {"1.000": reply("m", "p0 ", 20)}

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_a_line_that_leaves_goes_on_from_its_tokens(tmp_path: Path, route: str) -> None:
    """Its reply and its usage are those of one that was never interrupted."""

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", "other")
        stop_after(door.engine, tokens=5)
        async with host(tmp_path, door) as a:
            prompt: Any = {"prompt": "tell me "} if route == COMPLETIONS else {"messages": [_user("tell me")]}
            whole = "tell me " if route == COMPLETIONS else "user: tell me\nassistant: "
            line = a.line("x", "", route=route, body={"prompt": None, **prompt})
            body = json.loads(line.body)
            a.store.requests.accept([_with(line, {k: v for k, v in body.items() if v is not None})])
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: door.engine.computed == 5)
            assert await door.switch("other")
            assert [s.requests for s in a.store.requests.sums()] == [1]
            assert await door.switch("m")
            results = await a.until_ended(1)
            assert results == {"x": reply("m", whole, 20)}
            (row,) = a.store.requests.results("b")
            usage = json.loads(row.body or b"")["usage"]
            assert usage == {"prompt_tokens": len(whole), "completion_tokens": 20, "total_tokens": len(whole) + 20}
            path, again, _ = door.asked[-1]
            assert path == COMPLETIONS and 0 < again["max_tokens"] < 20
            assert again["prompt"][: len(whole)] == [ord(c) for c in whole]

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("field", [{"seed": 1}, {"vllm_xargs": {"of_a_logits_processor": 1}}])
def test_what_a_continuation_could_change_is_computed_from_scratch(tmp_path: Path, field: dict[str, Any]) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", "other", step_s=10.0)
        async with host(tmp_path, door) as a:
            a.store.requests.accept([a.line("x", "tell me ", body=field)])
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: bool(door.asked))
            assert await door.switch("other")
            door.step_s = 0.0
            assert await door.switch("m")
            assert await a.until_ended(1) == {"x": reply("m", "tell me ", 20)}
            assert [(path, "stream" in body) for path, body, _ in door.asked] == [(COMPLETIONS, False)] * 2

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("others", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_one_poison_among_many_fails_alone(tmp_path: Path, others: int) -> None:

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=32)
        async with host(tmp_path, door) as a:
            a.accept(others - 1)
            a.store.requests.accept([a.line("bad", POISON)])
            a.accept(1, group=2)
            a.pulling.follow("a/0", [Pull(1, "m"), Pull(2, "m")])
            results = await a.until_ended(others + 1)
            failed = [id for id, result in results.items() if result is RequestState.FAILED]
            assert failed == ["bad"]
            (row,) = [row for row in a.store.requests.results("b", most=500) if row.id == "bad"]
            assert b"the engine died while it served this request" in (row.body or b"")
            assert 1 < door.deaths <= 9

    run(scenario())


class SilentEndpoint(FakeEndpoint):
    """An endpoint whose engine dies before its response begins; the agent learns of the death first."""

    async def send(self, method: str, path: str, headers: Any, body: bytes, **given: Any) -> InstanceResponse:
        if POISON.encode() in body:
            self.die()
            await asyncio.Event().wait()
        return await super().send(method, path, headers, body, **given)


@pytest.mark.slow
def test_a_poison_that_kills_before_the_response_begins_fails(tmp_path: Path) -> None:
    """It went back as a line that no engine had seen, and killed one engine after the other."""

    async def scenario() -> None:
        door = SilentEndpoint("a/0", "m")
        async with host(tmp_path, door) as a:
            a.accept(3)
            a.store.requests.accept([a.line("bad", POISON)])
            a.pulling.follow("a/0", [Pull(1, "m")])
            results = await a.until_ended(4)
            assert [id for id, result in results.items() if result is RequestState.FAILED] == ["bad"]
            assert 1 < door.deaths <= 9

    run(scenario())


@pytest.mark.slow
def test_a_cancelled_line_leaves_the_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m")
        async with host(tmp_path, door, lease_s=0.3) as a:
            a.store.requests.accept([a.line("x", HANG)])
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: bool(door.engine.running))
            a.store.requests.cancel("b")
            assert await a.until_ended(1) == {"x": RequestState.CANCELLED}
            await bounded.until(lambda: not door.engine.running)

    run(scenario())


@pytest.mark.slow
def test_no_cancelled_line_is_sent_while_others_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines computed such lines whole, for nobody."""

    async def scenario() -> None:
        door, may_commit = FakeEndpoint("a/0", "m", room=1, step_s=10.0), asyncio.Event()
        async with host(tmp_path, door) as a:
            a.accept(4)
            a.pulling.follow("a/0", [Pull(1, "m")])
            work = a.pulling._work["a/0"]
            await bounded.until(lambda: len(work.lines) == 4 and bool(door.engine.running))
            commit = a.pulling._service.commit

            async def later(result: Any) -> None:
                await may_commit.wait()
                await commit(result)

            monkeypatch.setattr(a.pulling._service, "commit", later)
            a.store.requests.cancel("b")
            renewing = asyncio.create_task(a.pulling._leases.renew())
            await bounded.until(lambda: not door.engine.running)
            for _ in range(3):
                a.pulling.ended("a/0")
                await bounded.until(lambda: not work.wake.is_set())  # it has looked for lines to send
            assert len(door.asked) == 1 and a.pulling.at_hand("a/0") == set()
            may_commit.set()
            await renewing
            assert a.store.requests.counts("b") == {RequestState.CANCELLED: 4} and not work.claims

    run(scenario())


@pytest.mark.slow
def test_a_line_that_runs_past_its_deadline_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m")
        async with host(tmp_path, door) as a:
            a.store.requests.accept([a.line("x", HANG, deadline_s=0.1)])
            a.pulling.follow("a/0", [Pull(1, "m")])
            assert await a.until_ended(1) == {"x": RequestState.EXPIRED}

    run(scenario())


@pytest.mark.slow
def test_lines_at_hand_expire_although_their_engine_has_no_room(tmp_path: Path) -> None:
    """They were kept, and with them their batch, for as long as streams left no room."""

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=1)
        async with host(tmp_path, door) as a:
            a.store.requests.accept([a.line("x", HANG)])
            a.accept(3, deadline_s=0.1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            results = await a.until_ended(3)
            assert set(results.values()) == {RequestState.EXPIRED} and "x" not in results
            assert len(door.asked) == 1

    run(scenario())


GARBAGE = {
    "text": b'{"choices": [{"text": 5, "finish_reason": "stop"}]}',
    "content": b'{"choices": [{"delta": {"content": ["a"]}, "finish_reason": "stop"}]}',
    "tokens": b'{"choices": [{"text": "a", "token_ids": "abc", "finish_reason": "stop"}]}',
    "created": b'{"created": "now", "choices": [{"text": "a", "prompt_token_ids": [1], "token_ids": [1]}]}',
    "usage": b'{"usage": [1], "choices": [{"text": "a", "finish_reason": "stop"}]}',
    "error": b'{"error": ["no"]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("event", GARBAGE.values(), ids=GARBAGE)
def test_a_line_whose_engine_answers_garbage_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: bytes
) -> None:
    """It was kept for ever, or kept all lines beside it from being given back."""
    monkeypatch.setattr(line_service, "RETRY_S", 0.0)

    class Garbage(FakeEndpoint):
        async def send(self, *args: Any, **given: Any) -> InstanceResponse:
            async def parts() -> AsyncIterator[bytes]:
                yield b"data: " + event + b"\n\ndata: [DONE]\n\n"

            self.asked.append(("", {}, {}))
            return InstanceResponse(200, {}, parts())

    async def scenario() -> None:
        async with host(tmp_path, Garbage("a/0", "m")) as a:
            a.accept(1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            assert await a.until_ended(1) == {"1.000": RequestState.FAILED}
            (row,) = a.store.requests.results("b")
            assert row.status == 502 and b"engine" in (row.body or b"")

    run(scenario())


@pytest.mark.slow
def test_a_line_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    """As one so nested that the gateway could read it, and the agent, deeper in its stack, cannot. It blocked its group
    and all groups after it.
    """

    async def scenario() -> None:
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            a.store.requests.accept([replace(a.line("deep", ""), body=b"[" * 5_000 + b"]" * 5_000)])
            a.accept(1)
            a.accept(1, group=2)
            a.pulling.follow("a/0", [Pull(1, "m"), Pull(2, "m")])
            results = await a.until_ended(3)
            assert results.pop("deep") is RequestState.FAILED
            assert set(results.values()) == {reply("m", "p0 ", 20)}

    run(scenario())


def test_a_claim_that_cannot_be_given_back_is_so_at_the_next_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was renewed for as long as its agent lived."""

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", step_s=10.0)
        async with host(tmp_path, door) as a:
            a.accept(1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: bool(door.asked))
            with monkeypatch.context() as patched:
                patched.setattr(Requests, "give_back", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await a.pulling.leave("a/0", 0.0)
            a.pulling.follow("a/0", [])
            async with asyncio.timeout(60.0):
                while not a.store.requests.sums():  # not while a claim is on its way
                    await a.pulling._leases.renew()

    run(scenario())


def test_a_commit_that_fails_in_an_unknown_way_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines were kept for ever, those beside the one at fault too."""
    monkeypatch.setattr(line_service, "RETRY_S", 0.0)
    finish, failures = Requests.finish, [ZeroDivisionError(), KeyError()]

    def failing(self: Requests, results: Any) -> Any:
        if failures:
            raise failures.pop()
        return finish(self, results)

    async def scenario() -> None:
        monkeypatch.setattr(Requests, "finish", failing)
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            a.accept(3)
            a.pulling.follow("a/0", [Pull(1, "m")])
            assert len(await a.until_ended(3)) == 3

    run(scenario())


@pytest.mark.parametrize("lasts_s", [5.0, 15.0])
def test_a_line_is_not_sent_again_after_its_lease(lasts_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine breaks it off and lives, and meanwhile the lease has ended: another agent may have the line."""
    monkeypatch.setattr(line_service, "RETRY_S", 0.0)
    clock, sent = ManualClock(), list[float]()

    async def send(*_: Any, **__: Any) -> InstanceResponse:
        sent.append(clock.monotonic_s())
        clock.advance_to(clock.now_s() + lasts_s)
        return InstanceResponse(500 if len(sent) == 1 else 200, {}, _parts(b"{}"))

    async def scenario() -> None:
        line = ClaimedLine(
            Claimed("x", 1, b'{"model": "m", "prompt": "p", "n": 2}', COMPLETIONS, "batch", None), "m", 1e9
        )
        lease = Lease(clock, 15.0)
        lease.ask()
        lease.granted()
        serving = attempted(cast(Any, SimpleNamespace(send=send)), line, lease, clock)
        if lasts_s == 5.0:
            assert (await serving).state is RequestState.DONE and len(sent) == 2
        else:
            with pytest.raises(Refused):
                await serving
            assert len(sent) == 1

    run(scenario())


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    yield body


@pytest.mark.slow
def test_a_lapsed_claim_of_a_zombie_is_served_by_another_and_its_result_does_not_count(tmp_path: Path) -> None:
    """The store's clock runs an hour ahead of what the agents' own count."""

    async def scenario() -> None:
        zombie, heir = FakeEndpoint("a/0", "m", step_s=0.02), FakeEndpoint("b/0", "m")
        async with host(tmp_path, zombie) as a:
            a.accept(3)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(zombie.engine.running) == 3)
            a.store_clock.advance_to(a.store_clock.now_s() + 3_600.0)
            assert a.store.requests.take_back() == 1
            with ThreadPoolExecutor(2) as executor:
                other = Pulling(a.store.requests, "agent-2", SystemClock(), executor)
                heir.work = other
                other.start([heir])
                other.follow("b/0", [Pull(1, "m")])
                results = await a.until_ended(3)
                await other.stop(0.0)
            before = a.store.requests.results("b")
            await bounded.until(lambda: not zombie.engine.running and not a.pulling._work["a/0"].lines)
            assert results == a.results() == {f"1.{i:03}": reply("m", f"p{i} ", 20) for i in range(3)}
            assert a.store.requests.results("b") == before

    run(scenario())


@pytest.mark.slow
def test_lines_of_an_agent_that_is_slow_to_renew_are_served_in_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", step_s=10.0)
        async with host(tmp_path, door) as a:
            a.accept(1)
            for lapses in range(MOST_LOST + 1):
                a.pulling.follow("a/0", [Pull(1, "m")])
                await bounded.until(lambda: len(door.asked) > lapses)  # noqa: B023
                door.engine.faults.step_s = 0.0 if lapses == MOST_LOST else 10.0
                a.store_clock.advance_to(a.store_clock.now_s() + 3_600.0)
                await a.pulling._leases.renew()
            a.pulling.follow("a/0", [Pull(1, "m")])
            assert await a.until_ended(1) == {"1.000": reply("m", "p0 ", 20)}

    run(scenario())


@pytest.mark.parametrize("n", [1, 2], ids=["streamed", "whole"])
def test_a_reply_that_is_too_long_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """An agent keeps as many replies in memory as its engines run."""
    monkeypatch.setattr(line_output, "MOST_BYTES", 100)

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m")
        async with host(tmp_path, door) as a:
            a.accept(1, body={"n": n})
            a.pulling.follow("a/0", [Pull(1, "m")])
            assert await a.until_ended(1) == {"1.000": RequestState.FAILED}
            (row,) = a.store.requests.results("b")
            assert b"more than 100 bytes" in (row.body or b"") and len(door.asked) == 1

    run(scenario())


def test_what_is_stopped_is_in_the_queue_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", step_s=10.0)
        async with host(tmp_path, door) as a:
            a.accept(30)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(door.engine.running) == 8)
            await a.pulling.stop(0.0)
            assert [s.requests for s in a.store.requests.sums()] == [30]
            assert a.store.requests.renew("agent-1", 30.0).claims == frozenset()

    run(scenario())


def test_a_claim_that_is_on_its_way_when_the_agent_stops_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines waited for the lease to end."""
    claim, (asked, may_go_on, done) = Requests.claim, (threading.Event() for _ in range(3))

    def slow(self: Requests, *args: Any) -> Any:
        asked.set()
        may_go_on.wait(5.0)
        found = claim(self, *args)
        done.set()
        return found

    monkeypatch.setattr(Requests, "claim", slow)

    async def scenario() -> None:
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            a.accept(3)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(asked.is_set)
            stopping = asyncio.create_task(a.pulling.stop(0.5))
            await bounded.until(lambda: not a.pulling._work["a/0"].is_open)
            may_go_on.set()
            await stopping
            await bounded.until(done.is_set)
            assert [s.requests for s in a.store.requests.sums()] == [3]

    run(scenario())


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _with(line: DurableRequest, body: dict[str, Any]) -> DurableRequest:
    return replace(line, body=json.dumps(body).encode())


def test_what_no_other_engine_can_go_on_with_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", step_s=0.01)
        async with host(tmp_path, door) as a:
            a.store.requests.accept([a.line("x", "tell me ", body={"seed": 1})])  # read whole, so nothing is kept of it
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: bool(door.asked))
            await a.pulling.leave("a/0", 60.0)
            assert a.results() == {"x": reply("m", "tell me ", 20)}

    run(scenario())


@pytest.mark.slow
def test_a_group_in_which_nothing_was_found_is_not_asked_for_again_until_a_new_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, asked = Requests.claim, list[int]()

    def noting(self: Requests, agent: str, group: int, *args: Any) -> Any:
        asked.append(group)
        return claim(self, agent, group, *args)

    monkeypatch.setattr(Requests, "claim", noting)

    async def scenario() -> None:
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            for turn in range(2):
                asked.clear()
                a.store.requests.accept([a.line(f"x{turn}", "p", group=2)])
                a.pulling.follow("a/0", [Pull(1, "m"), Pull(2, "m")])
                await bounded.until(lambda: asked.count(2) == 2)
                assert asked == [1, 2, 2]

    run(scenario())


def test_a_renewed_claim_may_still_be_sent(tmp_path: Path) -> None:
    """Lines at hand wait for room for longer than a lease."""

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=1)
        async with host(tmp_path, door) as a:
            a.store.requests.accept([a.line("hangs", HANG)])
            a.accept(1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(a.pulling._work["a/0"].lines) == 2 and bool(door.engine.running))
            (held,) = a.pulling._work["a/0"].claims.values()
            held.lease._until_s = float("-inf")  # as if it had lapsed meanwhile
            await a.pulling._leases.renew()
            door.room = 2
            a.pulling.follow("a/0", [])
            assert await a.until_ended(1) == {"1.000": reply("m", "p0 ", 20)}

    run(scenario())


def test_an_idle_instance_finds_the_suspects_of_another_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            work = a.pulling._work["a/0"]
            await bounded.until(lambda: not work.has_suspects)  # it has looked
            a.accept(2)
            claim = a.store.requests.claim("dies", 1, 2, 30.0)
            assert claim is not None
            a.store.requests.engine_died([claim.id])
            await a.pulling._leases.renew()
            work.wake.set()
            assert len(await a.until_ended(2)) == 2

    run(scenario())


def test_of_one_claim_only_what_is_cancelled_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", step_s=10.0)
        async with host(tmp_path, door) as a:
            a.accept(1)
            a.store.requests.accept([a.line("x", HANG, batch="c")])
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(door.engine.running) == 2)
            a.store.requests.cancel("c")
            await a.pulling._leases.renew()
            assert a.store.requests.counts("c") == {RequestState.CANCELLED: 1}
            assert len(a.pulling._work["a/0"].lines) == 1
            a.store.requests.cancel("b")
            await a.pulling._leases.renew()
            assert not a.pulling._work["a/0"].claims, "an empty claim is not kept"

    run(scenario())


def test_a_store_that_fails_for_long_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with host(tmp_path, FakeEndpoint("a/0", "m")) as a:
            failures = 0

            def fail(*args: Any) -> Any:
                nonlocal failures
                failures += 1
                raise StoreError("away")

            with monkeypatch.context() as patched:
                patched.setattr(Requests, "claim", fail)
                for seen in range(5):
                    a.pulling.follow("a/0", [Pull(1, "m")])
                    await bounded.until(lambda: failures > seen)  # noqa: B023
                a.pulling.follow("a/0", [])
            said = [one.message for one in caplog.records if "since the store fails" in one.msg]
            assert said == ["a/0 pulls no lines, since the store fails: away"]

    run(scenario())


@pytest.mark.parametrize(("route", "states"), [(COMPLETIONS, True), (CHAT, True), ("/v1/embeddings", False)])
def test_an_engine_is_told_no_slo_on_a_route_where_it_would_refuse_one(route: str, states: bool) -> None:
    line: Any = SimpleNamespace(claimed=SimpleNamespace(id="x", tenant="t", slo_class="batch"))
    headers = line_service._headers(line, route, 5.0)
    assert ("x-slo-class" in headers, "x-slo-e2e-ms" in headers) == (states, states)
    assert headers["x-request-id"] == "x"
