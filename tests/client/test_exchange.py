"""One request against a real socket: every way in which it may end."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sloserve.client.exchange import Exchange, exchange
from sloserve.client.payload import PayloadSettings, payload
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.wire.headers import TENANTS
from tests import bounded
from tests.client.fake_server import FakeServer, chunk, final
from tests.client.virtual_time import LoopClock
from tests.client.virtual_time import run as in_virtual_time

MakeRequest = Callable[..., WorkloadRequest]
GAP_S = 0.03


def send(fake: FakeServer, request: WorkloadRequest, *, timeout_s: float = 10.0, **settings: Any) -> Exchange:
    async def run() -> Exchange:
        clock = SystemClock()
        async with httpx.AsyncClient(base_url=fake.url, verify=False) as client:
            sent = payload(request, list(range(request.prompt_tokens)), PayloadSettings("fake", **settings))
            return await exchange(client, sent, clock, clock.monotonic_s(), 0.0, timeout_s)

    return bounded.run(run())


def test_tokens_are_timed_as_they_come(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: [
        GAP_S, chunk("a", 1), GAP_S, chunk("bc", 3), GAP_S, chunk("d", 4, "length"), final(body, 4), "[DONE]"
    ]  # fmt: skip
    for _ in range(5):
        ended = send(fake, make_request(output=4))
        assert ended.outcome is Outcome.COMPLETED and ended.error is None
        assert ended.chunk_times_s.size == 3 and ended.token_times_s.size == 4
        assert ended.token_times_s[1] == ended.token_times_s[2]
        least_s = min(ended.chunk_times_s[0], *(ended.chunk_times_s[1:] - ended.chunk_times_s[:-1]))
        if least_s > 0.8 * GAP_S:  # a busy machine may read two at once
            break
    assert least_s > 0.8 * GAP_S
    assert ended.ended_s >= ended.token_times_s[-1] > ended.sent_s
    measured, ours = ended.latency(ended.request.arrival_s), ended.log(ended.request).latency
    assert measured is not None and measured == ours, "one request is measured alike by vLLM's definition and by ours"


def test_the_tenant_is_named_in_a_header_that_a_server_reads(fake: FakeServer, make_request: MakeRequest) -> None:
    send(fake, replace(make_request(), tenant="acme"))
    send(fake, make_request())
    assert [headers.get("x-tenant-id") for headers in fake.headers] == ["acme", None] and "x-tenant-id" in TENANTS


def test_the_body_asks_for_the_workloads_lengths(fake: FakeServer, make_request: MakeRequest) -> None:
    send(fake, make_request(prompt=7, output=2))
    send(fake, make_request(prompt=7, output=2), ignore_eos=False, continuous_usage=False, report=True)
    first, second = fake.bodies
    assert first == {
        "model": "fake",
        "prompt": list(range(7)),
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
    }
    assert second["stream_options"] == {"include_usage": True} and "ignore_eos" not in second
    assert [headers.get("x-slo-report") for headers in fake.headers] == [None, "1"]


@pytest.mark.parametrize(("status", "wait", "seconds"), [(429, "7", 7.0), (503, "Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_overload_is_a_rejection_with_its_reason(
    fake: FakeServer, make_request: MakeRequest, status: int, wait: str, seconds: float | None
) -> None:
    headers = {"retry-after": wait, "x-slo-dropped-reason": "rejected-saturated"}
    fake.script = lambda body, _: JSONResponse({"error": {"message": "queue full"}}, status, headers)
    ended = send(fake, make_request())
    assert (ended.outcome, ended.reason, ended.retry_after_s) == (Outcome.REJECTED, "rejected-saturated", seconds)
    assert ended.error == f"{status}: queue full"
    assert ended.token_times_s.size == 0 and ended.latency(0.0) is None


def test_a_rejection_may_give_no_reason(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: PlainTextResponse("busy", 503)
    ended = send(fake, make_request())
    assert (ended.reason, ended.retry_after_s, ended.error) == ("no reason given", None, "503: busy")


@pytest.mark.parametrize("status", [500, 502, 408])
def test_a_server_error_is_a_failure(fake: FakeServer, make_request: MakeRequest, status: int) -> None:
    fake.script = lambda body, _: Response("oops", status)
    ended = send(fake, make_request())
    assert (ended.outcome, ended.error, ended.reason) == (Outcome.FAILED, f"{status}: oops", None)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_request_that_is_wrong_raises_with_the_servers_words(
    fake: FakeServer, make_request: MakeRequest, status: int
) -> None:
    fake.script = lambda body, _: JSONResponse({"error": {"message": "slo_ttft_ms: -1 is not allowed"}}, status)
    with pytest.raises(
        ConfigError, match=f"to request r0 with {status}: slo_ttft_ms: -1 is not allowed; the run is stopped"
    ):
        send(fake, make_request())


def test_an_error_in_mid_stream_is_a_failure_that_keeps_its_tokens(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: [chunk("a", 1), {"error": {"message": "engine died"}}, "[DONE]"]
    ended = send(fake, make_request())
    assert (ended.outcome, ended.error, ended.token_times_s.size) == (Outcome.FAILED, "engine died", 1)


def test_a_connection_cut_in_mid_stream_is_a_failure(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: [chunk("a", 1), ConnectionResetError("cut")]
    ended = send(fake, make_request())
    assert ended.outcome is Outcome.FAILED and ended.token_times_s.size == 1
    assert ended.error is not None and ended.error.startswith("RemoteProtocolError")


@pytest.mark.parametrize("parts", [[chunk("a", 1)], ["[DONE]"], []])
def test_a_stream_that_ends_early_or_empty_is_a_failure(
    fake: FakeServer, make_request: MakeRequest, parts: list[Any]
) -> None:
    fake.script = lambda body, _: parts
    ended = send(fake, make_request())
    assert (ended.outcome, ended.error) == (Outcome.FAILED, "the stream ended before the response was complete")


def test_an_answer_that_is_no_stream_is_a_failure(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: JSONResponse({"choices": []})
    ended = send(fake, make_request())
    assert ended.outcome is Outcome.FAILED and "text/event-stream" in str(ended.error)


def test_what_takes_too_long_is_given_up(make_request: MakeRequest) -> None:
    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._body())

        async def _body(self) -> AsyncIterator[bytes]:
            yield f"data: {json.dumps(chunk('a', 1))}\n\n".encode()
            await asyncio.sleep(5.0)

    async def main() -> Exchange:
        sent, clock = payload(make_request(), [20], PayloadSettings("fake")), LoopClock()
        async with httpx.AsyncClient(transport=Slow(), base_url="http://test") as client:
            return await exchange(client, sent, clock, clock.monotonic_s(), 0.0, 0.1)

    ended = in_virtual_time(main())
    assert (ended.outcome, ended.error, ended.token_times_s.size) == (Outcome.ABORTED, "not complete after 0.1 s", 1)
    assert ended.ended_s == pytest.approx(0.1)


def test_nobody_there_is_a_failure(make_request: MakeRequest) -> None:
    ended = send(FakeServer(url="http://127.0.0.1:9"), make_request())
    assert ended.outcome is Outcome.FAILED and str(ended.error).startswith("ConnectError")


class Refusing(httpx.AsyncBaseTransport):
    """Fails to connect, for the reasons that an address of several families has."""

    def __init__(self, *codes: int) -> None:
        self._errors = [OSError(code, os.strerror(code)) for code in codes]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        causes = OSError("All connection attempts failed")
        causes.__cause__ = ExceptionGroup("attempts", self._errors)
        raise httpx.ConnectError("All connection attempts failed") from causes


def refused_for(make_request: MakeRequest, *codes: int) -> Exchange:
    async def main() -> Exchange:
        sent, clock = payload(make_request(), [20], PayloadSettings("fake")), SystemClock()
        async with httpx.AsyncClient(transport=Refusing(*codes), base_url="http://test") as client:
            return await exchange(client, sent, clock, clock.monotonic_s(), 0.0, 60.0)

    return bounded.run(main())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS])
def test_what_this_machine_lacks_is_no_failure_of_the_server(make_request: MakeRequest, code: int) -> None:
    with pytest.raises(ConfigError, match="fewer requests at a time .--max-concurrency.; the run is stopped"):
        refused_for(make_request, code, code)


def test_an_address_of_a_family_that_this_machine_lacks_is_not_blamed(make_request: MakeRequest) -> None:
    ended = refused_for(make_request, errno.EADDRNOTAVAIL, errno.ECONNREFUSED)
    assert (ended.outcome, ended.error) == (Outcome.FAILED, "ConnectError: All connection attempts failed")


@pytest.mark.parametrize("wait", ["²", "٣", "9" * 400, "-1", "1.5", "NaN"])
def test_another_retry_after_is_not_read(fake: FakeServer, make_request: MakeRequest, wait: str) -> None:
    fake.script = lambda body, _: Response("busy", 429, {"retry-after": wait.encode().decode("latin-1")})
    ended = send(fake, make_request())
    assert (ended.outcome, ended.retry_after_s) == (Outcome.REJECTED, None)
