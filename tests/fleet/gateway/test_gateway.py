"""Requests through a gateway on a socket to doors with stand-in engines behind them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import msgspec
import pytest

from sloserve.core.errors import QueueFull, RateLimited
from sloserve.core.spans import Phase
from sloserve.engine.recording.events import EXPIRED, FRONT_END, INVALID, RefusedRequest, SegmentHead
from sloserve.engine.recording.segments import read_segment
from sloserve.fleet import bounded_protocol as protocol
from sloserve.fleet.contract.endpoint import PREFIX_HEADER, stated_prefixes
from sloserve.fleet.contract.reported_tasks import TASK_HEADER, reported_task, task_in
from sloserve.fleet.gateway.fleet_view import FleetView
from sloserve.fleet.gateway.metrics import NO_MODEL
from sloserve.fleet.gateway.prefixes import beginnings, names_of, part
from sloserve.fleet.gateway.serve import config
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.wire.asgi import Receive, Scope, Send, answer_json
from sloserve.wire.keys import hash_of
from sloserve.wire.opening import BodyLimits, BoundedBody
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET, Played, PlayedAgent, Served, running, serving
from tests.fleet.stand_in.engine import POISON, reply

pytestmark = pytest.mark.slow  # servers start and stop

COMPLETIONS = "/v1/completions"


class Line:
    """A gateway, one door, and a client of both."""

    def __init__(self, door: PlayedAgent, served: Served, http: httpx.AsyncClient) -> None:
        self.door, self.served, self.http = door, served, http

    @property
    def first(self) -> Played:
        return next(iter(self.door.instances.values()))

    async def complete(self, prompt: str = "a", model: str = "chat", **given: Any) -> httpx.Response:
        headers = given.pop("headers", {})
        body = {"model": model, "prompt": prompt, "max_tokens": 5, **given}
        return await self.http.post(COMPLETIONS, json=body, headers=headers)

    async def metric(self, line: str) -> float:
        page = (await self.http.get("/metrics")).text
        return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(line))

    def attained(self, slo_class: str) -> list[float | int | None]:
        """Return the share of requests of a class that met their targets within a minute, and their number."""
        parts = self.served.gateway.parts
        minute: list[float | int | None]
        minute, _ = parts.attained.by_class(parts.clock.monotonic_s())[slo_class]["attained"]
        return minute

    def not_served(self, slo_class: str) -> int:
        """Return how many requests of a class without targets were not served."""
        parts = self.served.gateway.parts
        return int(parts.attained.by_class(parts.clock.monotonic_s())[slo_class]["not_served"][0])


@contextlib.asynccontextmanager
async def line(tmp_path: Path, *names: str, text: str = FLEET, **around: Any) -> AsyncIterator[Line]:
    door = PlayedAgent(tmp_path / "door.sock", *names)
    async with door.open(), serving(GatewayDependencies(endpoints=[door.address], **around), text) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=60.0) as http:
            yield Line(door, served, http)


def run(test: Callable[[], Awaitable[None]]) -> None:
    bounded.run(test())  # type: ignore[arg-type]


def test_clients_and_proxies_close_idle_connections_before_the_gateway_does() -> None:
    """It closed them after 5 s: a burst on 300 idle connections of a client that keeps them for 15 s was reset."""
    assert config(lambda scope, receive, send: asyncio.sleep(0)).timeout_keep_alive > 60


def test_a_request_reaches_its_engine_and_its_answer_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            whole = await to.complete("abc", headers={"x-request-id": "mine", "authorization": "Bearer secret"})
            assert whole.status_code == 200 and whole.headers["x-request-id"] == "mine"
            assert whole.json()["choices"][0]["text"] == reply("chat", "abc", 5)
            stream = await to.complete("abc", stream=True)
            events = [json.loads(x.removeprefix("data: ")) for x in stream.text.split("\n\n")[:-2]]
            assert "".join(e["choices"][0]["text"] for e in events) == reply("chat", "abc", 5)
            assert stream.headers["content-type"].startswith("text/event-stream")
            came = to.first.came[0]
            assert came["x-request-id"] == "mine" and came["x-tenant-id"] == "local" and "authorization" not in came
            assert came[PREFIX_HEADER] == stated_prefixes(
                names_of(beginnings("chat", part(msgspec.Raw()), part(msgspec.Raw(b'"abc"'))))
            )
            assert TASK_HEADER not in came
            await to.complete("abc", headers={"x-slo-task-id": "run-7", TASK_HEADER: f"{1:016x}=0,1,1,,0"})
            known = task_in(to.first.came[-1][TASK_HEADER])
            assert known is not None and known[0] != f"{1:016x}"
            assert reported_task(*known) is not None
            missing = await to.complete(max_tokens="x")
            assert missing.status_code == 400 and "request body" in missing.json()["error"]["message"]
            for n in (1e9, 10**9, 0, "x"):
                endless = await to.complete(n=n)
                assert (endless.status_code, endless.json()["error"]["param"]) == (400, "n")
            assert (
                await to.metric('sloserve:gateway_requests_total{class="interactive",model="chat",outcome="completed"}')
                == 3
            )

    run(test)


def test_a_client_s_mistake_is_no_miss_of_the_fleet(tmp_path: Path) -> None:
    """An engine's 400 counted as a request that missed its targets, and the gateway's own as a rejected one."""
    statuses: list[int] = []

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_json(send, HTTPStatus(statuses.pop(0)), {"error": {"message": "no"}})

    async def test() -> None:
        async with line(tmp_path) as to:
            to.first.apps["chat"] = engine
            slo = {"x-slo-e2e-ms": "5000"}
            for status, counted in ((400, 0), (404, 0), (422, 0), (429, 1), (401, 2)):
                statuses.append(status)
                assert (await to.complete("abc", headers=slo)).status_code == status
                assert to.attained("interactive") == [0.0 if counted else None, counted], status
            assert (await to.complete(headers={"x-slo-e2e-ms": "none"})).status_code == 400
            assert to.attained("interactive") == [0.0, 2]
            ended = 'sloserve:gateway_requests_total{class="interactive",model="chat",outcome="%s"}'
            assert [await to.metric(ended % one) for one in ("invalid", "rejected")] == [3, 2]
            unread = f'sloserve:gateway_requests_total{{class="none",model="{NO_MODEL}",outcome="invalid"}}'
            assert await to.metric(unread) == 1
            found = [await to.metric(f"sloserve:gateway_{name}_requests_total{{") for name in ("slo", "goodput")]
            assert found == [2, 0], "the counters say what the attainment says"

    run(test)


def test_goodput_is_counted_by_model_and_class_and_violations_by_target(tmp_path: Path) -> None:
    """A gateway had its attainment as a gauge alone, from which no burn rate over hours can be computed."""

    async def test() -> None:
        async with line(tmp_path) as to:
            in_time, late = {"x-slo-e2e-ms": "60000"}, {"x-slo-e2e-ms": "0.001", "x-slo-class": "batch"}
            assert (await to.complete("a", headers=in_time)).status_code == 200
            assert (await to.complete("a")).status_code == 200  # its target of a first token is not seen
            assert (await to.complete("a", headers=late)).status_code == 200
            await until(lambda: not to.served.gateway.parts.places.requests)
            counts = [
                [await to.metric(f'sloserve:gateway_{name}_requests_total{{class="{of}",model="chat"}}') for of in both]
                for name in ("slo", "goodput")
                for both in [("interactive", "batch")]
            ]
            assert counts == [[1, 1], [1, 0]]
            page = (await to.http.get("/metrics")).text
            assert 'sloserve:gateway_goodput_requests_total{class="batch",model="chat"} 0.0' in page, (
                "there from the start"
            )
            missed = 'sloserve:gateway_slo_violations_total{class="%s",type="e2e"}'
            assert [await to.metric(missed % of) for of in ("interactive", "batch")] == [0, 1]

    run(test)


def test_what_a_full_gateway_refuses_unread_counts_in_the_class_that_its_headers_name(tmp_path: Path) -> None:
    """It counted in no class, so that a gateway without places looked as if all classes were in time."""

    async def test() -> None:
        async with line(tmp_path) as to:
            parts = to.served.gateway.parts
            parts.places.set_limits(0, 1 << 20)
            batch = {"x-slo-class": "batch", "x-slo-e2e-ms": "5000"}
            asked: tuple[dict[str, str], ...] = (batch, {}, {"x-slo-class": "nosuch"}, {"x-slo-e2e-ms": "5000"})
            for headers in asked:
                assert (await to.complete("abc", headers=headers)).status_code == 429
            assert to.attained("batch") == [0.0, 1] and to.attained("interactive") == [None, 0]
            refused = f'sloserve:gateway_rejected_requests_total{{class="%s",model="{NO_MODEL}",reason="%s"}}'
            assert await to.metric(refused % ("batch", "rejected-saturated")) == 1
            assert await to.metric(refused % ("none", "rejected-saturated")) == 3
            ended = f'sloserve:gateway_requests_total{{class="%s",model="{NO_MODEL}",outcome="rejected"}}'
            assert [await to.metric(ended % of) for of in ("batch", "none")] == [1, 3]
            assert await to.metric(f'sloserve:gateway_slo_requests_total{{class="batch",model="{NO_MODEL}"}}') == 1

    run(test)


def test_a_tenant_beyond_a_limit_of_its_own_is_counted_and_misses_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            parts = to.served.gateway.parts
            limited = RateLimited("2 of 2 requests per minute are used; retry in 30 s", 30, ())
            full = QueueFull("1 of 1 requests of yours are in progress", 1, "", of_tenant=True)
            for error in (limited, full):
                monkeypatch.setattr(parts.rates, "admit", Mock(side_effect=error))
                batch = {"x-slo-class": "batch", "x-slo-e2e-ms": "5000"}
                assert (await to.complete("abc", headers=batch)).status_code == 429
            assert to.attained("batch") == [None, 0]
            refused = (
                f'sloserve:gateway_rejected_requests_total{{class="batch",model="{NO_MODEL}",reason="tenant-limit"}}'
            )
            assert await to.metric(refused) == 2

    run(test)


def test_requests_that_have_missed_a_target_count_before_they_end(tmp_path: Path) -> None:
    """A class was fine while all of its requests were held, or waited for their first byte, beyond their targets."""

    async def test() -> None:
        async with line(tmp_path) as to:
            view, parts, faults = (
                FleetView(to.served.gateway.parts),
                to.served.gateway.parts,
                to.first.engines["chat"].faults,
            )

            def interactive() -> dict[str, Any]:
                found: dict[str, Any] = view.read()["by_class"]["interactive"]
                return found

            faults.step_s = 3_600.0
            soon, late = {"x-slo-ttft-ms": "2"}, {"x-slo-ttft-ms": "3600000"}
            asked = [asyncio.create_task(to.complete(stream=True, headers=slo)) for slo in (soon, soon, late)]
            asked.append(asyncio.create_task(to.complete(headers=soon)))  # when its first token comes is not seen
            asked.append(asyncio.create_task(to.complete(headers={"x-slo-e2e-ms": "2"})))
            await until(lambda: to.first.in_flight == 5 and interactive()["missed"] == 3)
            assert interactive() == {
                "attained": [[None, 0], [None, 0]],
                "not_served": [0, 0],
                "missed": 3,
                "burn": [20.0, 20.0],
                "state": "bad",
            }
            assert "interactive: 3 with a missed deadline" in view.read()["headlines"]
            to.first.room = 0
            await until(lambda: all(one.room == 0 for one in parts.instances.by_name.values()))
            asked.append(asyncio.create_task(to.complete(stream=True, headers=soon)))
            await until(lambda: len(parts.hold) == 1 and interactive()["missed"] == 4)
            for one in asked:
                one.cancel()
            await until(lambda: not parts.places.requests)
            assert interactive()["missed"] == 0

    run(test)


def test_a_stream_that_began_late_counts_as_missed_until_it_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            parts = to.served.gateway.parts

            def missed() -> int:
                return int(parts.attained.by_class(parts.clock.monotonic_s())["interactive"]["missed"])

            to.first.engines["chat"].faults.step_s = 0.05
            body = {"model": "chat", "prompt": "a", "max_tokens": 10_000, "stream": True}
            async with to.http.stream("POST", COMPLETIONS, json=body, headers={"x-slo-ttft-ms": "2"}) as answer:
                await anext(answer.aiter_bytes())
                assert missed() == 1
            await until(lambda: not parts.places.requests)
            assert missed() == 0

    run(test)


def test_what_a_gateway_refuses_is_recorded_with_its_model_and_reason(tmp_path: Path) -> None:
    """A client that is served leaves nothing, and neither does one without a key."""
    folder = tmp_path / "recordings"
    settings = f"settings: {{policy: edf, record_mib: 1, record_folder: {folder}}}"

    async def test() -> None:
        async with line(tmp_path, text=FLEET.replace("settings: {policy: edf}", settings)) as to:
            assert (await to.complete("abc")).status_code == 200
            late = {"headers": {"x-slo-class": "batch", "x-slo-e2e-ms": "none"}}
            assert (await to.complete("abc", **late)).status_code == 400
            assert (await to.complete("abc", model="other")).status_code == 404
            impatient = {"headers": {"x-request-ttl-ms": "200"}, "model": "legal"}  # which no instance has
            assert (await to.complete("abc", **impatient)).status_code == 429

    run(test)
    (path,) = folder.iterdir()
    assert path.name.rpartition("-")[0].endswith("-gateway")
    head, *refused = read_segment(path)
    assert isinstance(head, SegmentHead) and head.process == FRONT_END
    assert [(one.reason, one.model, one.prompt_tokens) for one in refused if isinstance(one, RefusedRequest)] == [
        (INVALID, NO_MODEL, None),
        (INVALID, NO_MODEL, 1),
        (EXPIRED, "legal", 1),
    ]


@pytest.mark.parametrize("digits", ["5000\n", "\uff15\uff10"])
def test_a_target_that_no_header_can_carry_is_its_clients_fault(tmp_path: Path, digits: str) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            for given in ({"slo": {"ttft_ms": digits}}, {"vllm_xargs": {"slo_output_tokens": digits}}):
                answer = await to.complete("abc", **given)
                assert answer.status_code == 400, answer.text
            assert not to.first.came

    run(test)


def test_a_client_that_leaves_is_aborted_in_the_engine(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            to.first.engines["chat"].faults.step_s = 3_600.0
            for stream in (True, False):
                asking = asyncio.create_task(to.complete(stream=stream))
                await until(lambda: to.first.in_flight)
                asking.cancel()
                await until(lambda: not to.first.in_flight)
            assert to.first.engines["chat"].aborted == 2
            await until(lambda: not to.served.gateway.parts.places.requests)
            assert to.not_served("interactive") == 0, "their client did not wait for them"
            assert to.served.gateway.parts.places.bytes == 0
            assert (
                await to.metric('sloserve:gateway_requests_total{class="interactive",model="chat",outcome="aborted"}')
                == 2
            )

    run(test)


def test_who_waits_for_an_instance_when_the_gateway_stops_is_told_to_come_again(tmp_path: Path) -> None:
    """The answer was 500, with a traceback in the log for each."""

    async def test() -> None:
        door = PlayedAgent(tmp_path / "door.sock")
        door.instances["node-a/0"].room = 0
        async with door.open(), httpx.AsyncClient(timeout=30.0) as http:
            async with serving(GatewayDependencies(endpoints=[door.address])) as served:
                asking = asyncio.create_task(
                    http.post(served.url + COMPLETIONS, json={"model": "chat", "prompt": "a", "max_tokens": 5})
                )
                await until(lambda: len(served.gateway.parts.hold))
            answer = await asking
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
            assert not len(served.gateway.parts.hold)

    run(test)


@pytest.mark.parametrize("reason", ["switching", "other-model", "full", "failed", "died", "a word of a newer agent"])
def test_what_one_instance_refuses_another_serves(tmp_path: Path, reason: str) -> None:
    async def test() -> None:
        async with line(tmp_path, "node-a/0", "node-a/1") as to:
            for instance in to.door.instances.values():
                instance.refusals = [reason]
            answer = await to.complete("abc")  # both refuse once, and one of them serves after its next report
            if reason == "died":
                assert answer.status_code == 500 and answer.headers["x-should-retry"] == "false"
                assert "2 engines broke off" in answer.json()["error"]["message"]
            else:
                assert answer.status_code == 200, answer.text
            told = reason if "newer" not in reason else "failed"
            assert await to.metric(f'sloserve:gateway_retries_total{{reason="{told}"}}') == 2

    run(test)


def test_the_head_of_a_request_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any key is shown."""
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await BoundedBody(scope, receive, BodyLimits(1 << 20)).read()
        await answer_json(send, HTTPStatus.OK, body == b"x" * 90_000)

    async def answered(port: int, *parts: bytes, ends: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
            found = await (reader.readuntil(ends) if ends else reader.read())
        writer.close()
        return found

    async def test() -> None:
        settings = config(app, lifespan="off", port=0)
        async with running(settings):
            head, body = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n", b"x" * 90_000
            one = head + b"\r\n" + body
            assert (await answered(settings.port, one, ends=b"true")).startswith(b"HTTP/1.1 200")
            assert (await answered(settings.port, one + one, ends=b"true")).startswith(b"HTTP/1.1 200")
            for endless in (b"x: " + body, b"x: y\r\n" * 15_000):
                refused = await answered(settings.port, head, endless)
                assert refused.startswith(b"HTTP/1.1 400") and b"more than 65536 bytes" in refused
            for slow in ((), (head,), (one, head)):
                assert b"400" not in await answered(settings.port, *slow), "closed"
            chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            pieces = b"1\r\nx\r\n" * 90_000 + b"0\r\n\r\n"
            assert (await answered(settings.port, chunked + pieces, ends=b"true")).startswith(b"HTTP/1.1 200")

    run(test)


def test_a_request_that_is_sent_back_late_has_waited_for_no_instance(tmp_path: Path) -> None:
    """Its engine had it until the model left; the next one is told what is left of its target."""

    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(hold_max_s=0.3)) as to:
            to.first.refusals, to.first.refuses_after_s = ["switching"], 0.4
            answer = await to.complete("abc", headers={"x-slo-ttft-ms": "5000"})
            assert answer.status_code == 200, answer.text
            assert 1_000 < float(to.first.came[0]["x-slo-ttft-ms"]) < 4_600
            assert await to.metric("sloserve:gateway_added_seconds_sum") < 0.4

    run(test)


def test_a_request_whose_engine_dies_is_tried_once_more_and_then_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, "node-a/0", "node-a/1", "node-a/2") as to:
            answer = await to.complete(POISON, stream=True)
            assert answer.status_code == 500
            assert to.not_served("interactive") == 1
            assert sum(len(instance.came) for instance in to.door.instances.values()) == 2
            to.first.refusals = ["died"]
            assert (await to.complete("abc")).status_code == 200

    run(test)


def test_a_stream_whose_engine_dies_ends_with_an_error_event(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            body = {"model": "chat", "messages": [{"role": "user", "content": POISON}], "stream": True}
            answer = await to.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            first, error, done, end = answer.text.split("\n\n")
            assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == 502
            assert (done, end) == ("data: [DONE]", "")
            assert (
                await to.metric('sloserve:gateway_requests_total{class="interactive",model="chat",outcome="failed"}')
                == 1
            )

    run(test)


def test_a_client_that_does_not_read_is_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(silent_max_s=0.4)) as to:
            body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 200_000, "stream": True}).encode()
            host, port = to.served.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await until(lambda: to.first.in_flight)
            await until(lambda: not to.first.in_flight)
            assert to.first.engines["chat"].aborted == 1 and not to.served.gateway.parts.passing_on
            writer.transport.abort()

    run(test)


def test_those_that_wait_go_in_the_order_of_their_deadlines(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            to.first.room = 0
            await until(lambda: to.served.gateway.parts.instances.by_name["node-a/0"].room == 0)
            waiting = []
            for name, ttft_ms in (("late", 90_000), ("soon", 20_000), ("none", None), ("now", 5_000)):
                headers = {"x-request-id": name} | ({} if ttft_ms is None else {"x-slo-ttft-ms": str(ttft_ms)})
                headers |= {"x-slo-class": "background"} if ttft_ms is None else {}
                waiting.append(asyncio.create_task(to.complete(name, headers=headers)))
                await until(lambda: len(to.served.gateway.parts.hold) == len(waiting))
            assert await to.metric("sloserve:gateway_held_requests") == 4
            report = to.served.gateway.parts.demand.report(to.served.gateway.parts.hold.held, 0.0)
            assert {d.slo_class: d.held for d in report.demand} == {"interactive": 3, "background": 1}
            to.first.room = 1
            for one in waiting:
                assert (await one).status_code == 200
            ids = [headers["x-request-id"] for headers in to.first.came]
            assert [name for name in ids if name != "none"] == ["now", "soon", "late"]
            left_ms = float(to.first.came[0]["x-slo-ttft-ms"])
            assert 1.0 <= left_ms < 5_000.0, "the engine is told what is left of the time"
            assert len(to.served.gateway.parts.hold) == 0

    run(test)


def test_a_model_that_stays_active_nowhere_is_refused_after_the_longest_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(hold_max_s=0.2)) as to:
            answer = await to.complete(model="legal")
            assert answer.status_code == 429 and 1 <= int(answer.headers["retry-after"]) <= 30
            assert answer.headers["x-slo-dropped-reason"] == "rejected-saturated"
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"

    run(test)


def test_a_model_that_is_active_nowhere_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(hold_max_s=30.0, max_held=2)) as to:
            answer = await to.complete(model="legal", headers={"x-request-ttl-ms": "20"})
            assert answer.status_code == 429 and answer.headers["x-slo-dropped-reason"] == "rejected-ttl-expired"
            held = [asyncio.create_task(to.complete(model="legal")) for _ in range(2)]
            await until(lambda: len(to.served.gateway.parts.hold) == 2)
            full = await to.complete(model="legal")
            assert full.status_code == 429 and "2 requests wait" in full.json()["error"]["message"]
            assert (await to.complete(model="chat")).status_code == 200, "another model's requests do not wait for it"
            to.first.active = "legal"
            assert [(await one).status_code for one in held] == [200, 200]
            states = {m["id"]: m["state"] for m in (await to.http.get("/v1/models")).json()["data"]}
            assert states == {"chat": "warm", "legal": "active"}
            assert (await to.http.get("/v1/models/legal")).json()["id"] == "legal"
            to.first.phase = Phase.SWITCHING
            await until(lambda: to.served.gateway.parts.instances.state_of("legal", _now(to)) == "coming")

    run(test)


def test_a_request_that_is_sent_again_is_known_by_its_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the place which Retry-After promised is kept for it."""
    keys: list[Any] = []
    stock = Admission.admit

    def admit(self: Admission, new: ArrivingRequest, *args: Any) -> Any:
        assert new.key is not None
        keys.append(new.key())
        return stock(self, new, *args)

    monkeypatch.setattr(Admission, "admit", admit)

    async def test() -> None:
        async with line(tmp_path) as to:
            for prompt in ("same", "same", "other"):
                assert (await to.complete(prompt)).status_code == 200

    run(test)
    assert keys[0] == keys[1] != keys[2]


def _now(to: Line) -> float:
    return to.served.gateway.parts.clock.monotonic_s()


def test_an_agent_that_does_not_answer_gets_no_requests(tmp_path: Path) -> None:
    async def test() -> None:
        missing = f"unix:{tmp_path / 'nobody.sock'}"
        async with line(tmp_path, limits=GatewaySettings(hold_max_s=0.1)) as to:
            assert (await to.http.get("/ready")).status_code == 200
            gateway = to.served.gateway
            gateway.watch._ask(frozenset({missing}))
            assert (await to.complete()).status_code == 429
            assert (await to.http.get("/ready")).status_code == 503
            assert (await to.http.get("/health")).status_code == 200
            assert (await to.http.get("/v1/models/chat")).json()["state"] == "unavailable"

    run(test)


KEYS = f"""
tenants:
  a:
    keys: ['{hash_of("key-a")}']
    models: [chat]
    class: batch
    quota: {{requests: 1}}
  b: {{keys: ['{hash_of("key-b")}'], metrics: true}}
"""


def test_a_key_says_whose_a_request_is_and_what_it_may(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        async with line(tmp_path, keys=keys) as to:
            a, b = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
            for headers in ({}, {"authorization": "Bearer no"}, {"x-tenant-id": "a"}):
                for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", COMPLETIONS), ("GET", "/x")):
                    answer = await to.http.request(method, path, headers=headers, content=b"{")
                    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert [m["id"] for m in (await to.http.get("/v1/models", headers=a)).json()["data"]] == ["chat"]
            for model in ("legal", "nothing", None, 5):
                answer = await to.complete(model=model, headers=a)  # type: ignore[arg-type]
                assert answer.status_code == 404 and "available: chat" in answer.json()["error"]["message"]
            assert (await to.http.get("/v1/models/legal", headers=a)).status_code == 404
            assert (await to.http.get("/metrics", headers=a)).status_code == 404
            assert "key-" not in (await to.http.get("/metrics", headers=b)).text
            await to.complete(headers=b | {"x-tenant-id": "someone else"})
            assert to.first.came[-1]["x-tenant-id"] == "b"
            to.first.room = 0
            await until(lambda: to.served.gateway.parts.instances.by_name["node-a/0"].room == 0)
            held = asyncio.create_task(to.complete(headers=a))
            await until(lambda: len(to.served.gateway.parts.hold) == 1)
            answer = await to.complete(headers=a)
            assert answer.status_code == 429 and "1 of 1 requests of yours" in answer.json()["error"]["message"]
            to.first.room = 5
            assert (await held).status_code == 200

    run(test)


def test_a_class_is_held_to_that_of_the_key_however_it_is_stated(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        async with line(tmp_path, keys=keys) as to:
            a, b = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
            ways: list[dict[str, Any]] = [
                {"headers": {"x-slo-class": "interactive", "x-slo-ttft-ms": "1"}},
                {"headers": {"x-slo-objective": "x"}, "slo": {"class": "interactive", "ttft_ms": 1, "report": True}},
                {"vllm_xargs": {"slo_class": "interactive", "slo_ttft_ms": 1, "other": 5}},
                {"service_tier": "priority"},
                {},
            ]
            for way in ways:
                given = dict(way)
                headers = given.pop("headers", {})
                answer = await to.complete(headers=headers | a, **given)
                assert answer.status_code == 200, answer.text
                came, body = to.first.came[-1], json.loads(to.first.bodies[-1])
                assert came["x-slo-class"] == "batch" and float(came.get("x-slo-ttft-ms", 1e9)) > 500.0, (way, came)
                assert "slo" not in body or body["slo"] == {"report": True}
                assert body.get("vllm_xargs", {}).get("slo_class", "batch") == "batch"
                if "vllm_xargs" in way:
                    assert body["vllm_xargs"]["other"] == 5
            await to.complete(headers=ways[0]["headers"] | b)
            assert to.first.came[-1]["x-slo-class"] == "interactive" and to.first.came[-1]["x-slo-ttft-ms"] == "1"
            for urgent in ({"priority": -1}, {"priority": "-1"}):
                assert (await to.complete(headers=a, **urgent)).status_code == 400
            assert (await to.complete(headers=a | {"x-vllm-priority": "-1"})).status_code == 400
            assert (await to.complete(headers=b | {"x-slo-ttf-ms": "5"})).status_code == 400

    run(test)


def test_routes_are_an_allow_list_and_bodies_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        text = FLEET.replace("{policy: edf}", "{policy: edf, max_body_bytes: 1000}")
        async with line(tmp_path, text=text) as to:
            for method, path in (
                ("GET", "/v1/responses/resp_1"),
                ("POST", "/collective_rpc"),
                ("POST", "/v1/load_lora_adapter"),
                ("POST", "/sloserve/park"),
                ("POST", "/v1/completions/"),
                ("GET", "/v1/files"),
                ("GET", COMPLETIONS),
                ("GET", "/docs"),
            ):
                answer = await to.http.request(method, path)
                assert answer.status_code in (400, 404, 405) and "error" in answer.json(), path

            async def parts() -> AsyncIterator[bytes]:
                for _ in range(3):
                    yield b" " * 400

            for content in (b" " * 1_001, parts()):
                answer = await to.http.post(COMPLETIONS, content=content)
                assert answer.status_code == 413 and "more than 1000 bytes" in answer.json()["error"]["message"]
            for content in (b"", b"[]", b"{", b'"x"', b"\xff"):
                answer = await to.http.post(COMPLETIONS, content=content)
                assert answer.status_code in (400, 404) and "error" in answer.json()
            too_long = {"x-request-id": "x" * 500}
            assert (await to.complete(headers=too_long)).status_code == 400
            assert to.first.came == [] and to.served.gateway.parts.places.bytes == 0

    run(test)


LIMITED = f"""
tenants:
  a: {{keys: ['{hash_of("key-a")}'], quota: {{tokens_per_minute: 60}}}}
  b: {{keys: ['{hash_of("key-b")}'], metrics: true, quota: {{requests_per_minute: 2}}}}
"""


def test_requests_and_tokens_per_minute_are_limited_by_key_and_counted_by_tenant(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(LIMITED)
        async with line(tmp_path, keys=keys) as to:
            a, b = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
            first = await to.complete("x" * 40, headers=a)
            assert (first.status_code, first.headers["x-ratelimit-limit-tokens"]) == (200, "60")
            stream = await to.complete("x" * 40, headers=a, stream=True, max_tokens=200)
            assert stream.status_code == 200
            refused = await to.complete("x" * 40, headers=a)
            assert refused.status_code == 429 and 190 <= int(refused.headers["retry-after"]) <= 196
            assert "of 60 tokens per minute are used" in refused.json()["error"]["message"]
            assert int(refused.headers["x-ratelimit-remaining-tokens"]) == 0
            answers = [await to.complete("abc", headers=b) for _ in range(3)]
            assert [one.status_code for one in answers] == [200, 200, 429]
            assert answers[2].headers["retry-after"] in ("29", "30")
            assert len(to.first.came) == 4, "what is refused never reaches an engine"
            page = (await to.http.get("/metrics", headers=b)).text
            counts = dict(row.rsplit(" ", 1) for row in page.splitlines() if row.startswith("sloserve:gateway_tenant"))
            assert float(counts['sloserve:gateway_tenant_requests_total{tenant="a"}']) == 2
            # 40 tokens by the usage of a whole answer, 10 by the bytes of the prompt where a stream states no usage.
            assert float(counts['sloserve:gateway_tenant_prompt_tokens_total{tenant="a"}']) == 40 + 10
            assert float(counts['sloserve:gateway_tenant_output_tokens_total{tenant="a"}']) == 5 + 200
            assert float(counts['sloserve:gateway_tenant_requests_total{tenant="b"}']) == 2

    run(test)


def test_a_request_that_no_instance_takes_uses_no_tokens(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(LIMITED)
        async with line(tmp_path, keys=keys, limits=GatewaySettings(hold_max_s=0.1)) as to:
            to.first.room = 0
            await until(lambda: to.served.gateway.parts.instances.by_name["node-a/0"].room == 0)
            for _ in range(3):
                answer = await to.complete("x" * 10_000, headers={"authorization": "Bearer key-a"})
                assert "no instance took the request" in answer.json()["error"]["message"]
            used = to.served.gateway.parts.rates.used()["a"]
            assert (used.requests, used.prompt_tokens, used.output_tokens) == (3, 0, 0)

    run(test)


def test_a_gateway_promises_and_its_engine_takes_the_promise_over(tmp_path: Path) -> None:
    """A refused promise never reaches an engine; without one an engine is asked for none, whatever its class has."""
    asks = {"x-slo-ttft-ms": "60000", "x-slo-promise": "0.9"}
    falls_back = asks | {"x-slo-promise-fallback": "1"}

    async def test() -> None:
        async with line(tmp_path) as to:
            first = await to.complete("a", headers=asks, stream=True)
            assert first.status_code == 429 and first.headers["x-slo-dropped-reason"] == "rejected-promise"
            assert "too few requests of its class have ended" in first.json()["error"]["message"]
            for i in range(20):
                learning = await to.complete(f"{i}", headers=falls_back, stream=True)
                assert learning.headers["x-slo-promised"] in ("none;why=unknown", "0.9")
            assert to.first.came[0]["x-slo-promise"] == "0"
            assert "x-slo-promise-fallback" not in to.first.came[0] and "x-slo-promised" not in to.first.came[0]
            forged = await to.complete("more", headers={"x-slo-promised": "0.9;first-ms=0"}, stream=True)
            assert forged.status_code == 200 and "x-slo-promised" not in to.first.came[-1]
            given = await to.complete("last", headers=asks, stream=True)
            assert given.status_code == 200 and given.headers.get_list("x-slo-promised") == ["0.9"]
            assert to.first.came[-1]["x-slo-promise"] == "0.9" and to.first.came[-1]["x-slo-promise-fallback"] == "1"
            level, _, first_ms = to.first.came[-1]["x-slo-promised"].partition(";first-ms=")
            assert level == "0.9" and 0 <= int(first_ms) < 60_000
            to.first.active = None
            await until(lambda: not to.served.gateway.parts.instances.serving("chat", _now(to)))
            gone = await to.complete("none", headers=asks, stream=True)
            assert gone.status_code == 429 and "no instance serves the model now" in gone.json()["error"]["message"]
            assert await to.metric('sloserve:gateway_promises_total{class="interactive",model="chat",outcome="kept"}')
            assert await to.metric('sloserve:gateway_tenant_promises_total{outcome="kept"')
            refused = 'sloserve:gateway_promises_refused_total{class="interactive",model="chat",why="late"}'
            assert await to.metric(refused) == 1

    run(test)
