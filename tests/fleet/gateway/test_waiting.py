"""What clients of a gateway see while it holds their requests, and while these wait at an engine."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sloserve.fleet.client_routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.wire.keys import hash_of
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET, PlayedAgent, serving
from tests.fleet.gateway.test_gateway import Line, line, run
from tests.fleet.stand_in.engine import POISON, reply

pytestmark = pytest.mark.slow  # servers start and stop

TEXT = FLEET.replace("{policy: edf}", "{policy: edf, waiting_comments_s: 0.02}")
KEYS = f"tenants: {{a: {{keys: ['{hash_of('key-a')}']}}, b: {{keys: ['{hash_of('key-b')}']}}}}"
UPDATES = {"x-slo-updates": "1"}
LINE = re.compile(r": slo-queue position=(\d+).*")


async def close(to: Line) -> None:
    """Let no instance take a request."""
    to.first.room = 0
    await until(lambda: all(one.room == 0 for one in to.served.gateway.parts.instances.by_name.values()))


class Stream:
    """A stream that a client reads as it comes."""

    def __init__(self, to: Line | httpx.AsyncClient, route: str = COMPLETIONS, **given: Any) -> None:
        self.lines: list[str] = []
        self.status, self.headers = 0, httpx.Headers()
        headers = UPDATES | given.pop("headers", {})
        body = {"model": "chat", "max_tokens": 5, "stream": True, **({"prompt": "abc"} | given)}
        self.task = asyncio.create_task(self._read(to.http if isinstance(to, Line) else to, route, body, headers))

    async def _read(self, http: httpx.AsyncClient, route: str, body: Any, headers: dict[str, str]) -> None:
        async with http.stream("POST", route, json=body, headers=headers) as response:
            self.status, self.headers = response.status_code, response.headers
            async for one in response.aiter_lines():
                self.lines.append(one)

    @property
    def comments(self) -> list[str]:
        return [one for one in self.lines if LINE.fullmatch(one)]

    @property
    def events(self) -> list[Any]:
        data = [one.removeprefix("data: ") for one in self.lines if one.startswith("data: {")]
        return [json.loads(one) for one in data]

    async def waits(self, comments: int = 3) -> None:
        await until(lambda: len(self.comments) >= comments)


def text_of(stream: Stream) -> str:
    return "".join(event["choices"][0]["text"] for event in stream.events)


def test_a_held_stream_begins_with_comments_and_goes_on_with_what_an_engine_sends(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            await close(to)
            first, second = Stream(to), Stream(to, headers={"x-request-id": "mine"})
            await first.waits()
            await second.waits()
            assert (second.status, second.headers["x-request-id"]) == (200, "mine")
            assert sorted(LINE.fullmatch(one.comments[-1])[1] for one in (first, second)) == ["1", "2"]  # type: ignore[index]
            assert sorted(one.headers["x-slo-queue-position"] for one in (first, second)) == ["0", "2"]
            to.first.room = 9
            for stream in (first, second):
                await stream.task
                last = max(number for number, one in enumerate(stream.lines) if one.startswith(":"))
                assert stream.lines[-2:] == ["data: [DONE]", ""] and stream.lines.index("data: [DONE]") > last
                assert last < next(n for n, one in enumerate(stream.lines) if one.startswith("data: "))
                assert text_of(stream) == reply("chat", "abc", 5)
            assert [one for one in to.first.came if "x-slo-updates" in one] == [], "the engine is asked for none"

    run(test)


def test_comments_go_on_while_the_request_waits_at_an_engine(tmp_path: Path) -> None:
    """And the wish of a body is not passed on to the engine, which would write comments as well."""

    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            await to.first.engines["chat"].pause("wait")
            stream = Stream(to, headers={"x-slo-updates": "1"}, slo={"updates": True})
            await until(lambda: to.first.came)
            await stream.waits(len(stream.comments) + 3)
            assert to.first.came[-1]["x-slo-updates"] == "0"
            await to.first.engines["chat"].resume()
            await stream.task
            assert text_of(stream) == reply("chat", "abc", 5)

    run(test)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (TEXT, {"headers": {"x-slo-updates": "0"}}),
        (TEXT, {"headers": {"x-request-ttl-ms": "60000"}}),
        (TEXT, {"stream": False}),
        (TEXT.replace("0.02", "0.0"), {}),
    ],
)
def test_without_the_wish_or_the_setting_nothing_comes_before_the_response(
    tmp_path: Path, text: str, given: dict[str, Any]
) -> None:
    async def test() -> None:
        async with line(tmp_path, text=text) as to:
            await close(to)
            stream = Stream(to, **given)
            await until(lambda: len(to.served.gateway.parts.hold))
            for _ in range(10):
                await to.http.get("/health")
            assert stream.status == 0
            to.first.room = 9
            await stream.task
            assert stream.status == 200 and stream.comments == []
            assert stream.headers["x-slo-queue-position"] == "0"

    run(test)


def test_a_refusal_after_a_comment_is_an_event_of_the_stream(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT, limits=GatewaySettings(hold_max_s=0.5)) as to:
            await close(to)
            for route, given in (
                (COMPLETIONS, {}),
                (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
                (MESSAGES, {"messages": [{"role": "user", "content": "a"}]}),
                (RESPONSES, {"input": "a"}),
            ):
                stream = Stream(to, route, **given)
                await stream.task
                assert stream.status == 200 and stream.comments
                (event,) = stream.events
                error = event if route == RESPONSES else event["error"]
                assert error["message"].startswith("no instance took the request within"), event
                if route in (COMPLETIONS, CHAT):
                    assert error["code"] == 429 and stream.lines[-2] == "data: [DONE]"
                else:
                    assert "event: error" in stream.lines
            rejected = 'sloserve:gateway_requests_total{class="interactive",model="chat",outcome="rejected"}'
            assert await to.metric(rejected) == 4
            assert not to.served.gateway.parts.passing_on and not len(to.served.gateway.parts.in_flight)

    run(test)


def test_an_engine_s_refusal_after_a_comment_keeps_its_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            await close(to)
            stream = Stream(to, max_tokens="x")
            await stream.waits()
            to.first.room = 9
            await stream.task
            (event,) = stream.events
            assert event["error"]["code"] == 400 and "request body" in event["error"]["message"]
            invalid = 'sloserve:gateway_requests_total{class="interactive",model="chat",outcome="invalid"}'
            assert await to.metric(invalid) == 1

    run(test)


def test_a_request_that_only_had_comments_goes_to_another_instance_and_in_the_end_fails_in_its_stream(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with line(tmp_path, "node-a/0", "node-a/1", text=TEXT) as to:
            for one in to.door.instances.values():
                one.room = 0
            await close(to)
            stream, poison = Stream(to), Stream(to, prompt=POISON)
            await stream.waits()
            await poison.waits()
            for one in to.door.instances.values():
                one.refusals = ["switching"]
                one.room = 9
            await stream.task
            assert text_of(stream) == reply("chat", "abc", 5)
            await poison.task
            (event,) = poison.events
            assert event["error"]["code"] == 500 and "2 engines broke off" in event["error"]["message"]

    run(test)


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            await close(to)
            stream = Stream(to)
            await stream.waits()
            stream.task.cancel()
            parts = to.served.gateway.parts
            await until(lambda: not len(parts.hold) and not parts.places.requests)
            assert not len(parts.in_flight)
            await until(lambda: not [one for one in asyncio.all_tasks() if "WaitingComments" in repr(one)])

    run(test)


def test_a_gateway_that_stops_says_so_in_the_stream(tmp_path: Path) -> None:
    async def test() -> None:
        door = PlayedAgent(tmp_path / "door.sock")
        door.instances["node-a/0"].room = 0
        async with door.open(), httpx.AsyncClient(timeout=30.0) as http:
            async with serving(GatewayDependencies(endpoints=[door.address]), TEXT) as served:
                http.base_url = httpx.URL(served.url)
                stream = Stream(http)
                await stream.waits()
            await stream.task
            (event,) = stream.events
            assert event["error"]["code"] == 503 and "the gateway stops" in event["error"]["message"]

    run(test)


def test_the_route_says_how_far_a_request_has_come_to_its_own_tenant(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    a, b = ({"authorization": f"Bearer key-{name}"} for name in "ab")

    async def test() -> None:
        async with line(tmp_path, text=TEXT, keys=keys, admin_key="admin") as to:

            async def told(headers: dict[str, str], request_id: str = "mine") -> httpx.Response:
                return await to.http.get(f"/sloserve/requests/{request_id}", headers=headers)

            await close(to)
            before = asyncio.create_task(to.complete(headers=b))
            await until(lambda: len(to.served.gateway.parts.hold) == 1)
            held = asyncio.create_task(to.complete(headers=a | {"x-request-id": "mine"}))
            await until(lambda: len(to.served.gateway.parts.hold) == 2)
            answer = await told(a)
            assert answer.status_code == 200
            found = answer.json()
            assert (found["state"], found["position"], found["class"]) == ("waiting", 2, "interactive")
            assert found["waited_ms"] >= 0 and found["remaining_ttft_ms"] is None
            assert [(await told(one)).status_code for one in (b, {}, {"authorization": "Bearer admin"})] == [
                404,
                401,
                401,
            ]
            other = await told(a, "other")
            assert other.status_code == 404 and "another gateway" in other.json()["error"]["message"]
            assert (await to.http.post("/sloserve/requests/mine", headers=a)).status_code == 405
            to.first.room = 9
            assert (await held).headers["x-slo-queue-position"] == "2" and (await before).status_code == 200
            assert (await told(a)).status_code == 404

    run(test)


def test_openai_s_client_reads_a_held_stream_and_its_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT, limits=GatewaySettings(hold_max_s=2.0)) as to:
            async with openai.AsyncOpenAI(api_key="x", base_url=f"{to.served.url}/v1", max_retries=0) as client:

                async def ask(until_held: Callable[[], Any]) -> str:
                    stream = await client.completions.create(
                        model="chat", prompt="abc", max_tokens=5, stream=True, extra_headers=UPDATES
                    )
                    until_held()  # the head is here, so a comment has begun the response
                    return "".join([chunk.choices[0].text async for chunk in stream])

                def let_in() -> None:
                    to.first.room = 9

                await close(to)
                assert await ask(let_in) == reply("chat", "abc", 5)
                await close(to)
                with pytest.raises(openai.APIError, match="no instance took the request"):
                    await ask(lambda: None)

    run(test)
