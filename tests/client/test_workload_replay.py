"""A workload goes out open-loop, on time, and at most so many at once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from sloserve.client.payload import PayloadSettings, payload
from sloserve.client.workload_replay import ReplayedRun, ReplaySettings, replay
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from tests import bounded
from tests.client.fake_server import FakeServer, chunk, reply
from tests.client.virtual_time import SteppedClock
from tests.client.virtual_time import run as in_virtual_time

MakeRequest = Callable[..., WorkloadRequest]


def run(fake: FakeServer, requests: Sequence[WorkloadRequest], on_ended: Any = None, **settings: Any) -> ReplayedRun:
    async def main() -> ReplayedRun:
        async with httpx.AsyncClient(base_url=fake.url, verify=False) as client:
            payloads = [payload(r, [20], PayloadSettings("fake")) for r in requests]
            return await replay(client, payloads, SystemClock(), ReplaySettings(**settings), on_ended)

    return bounded.run(main())


def test_requests_are_sent_when_due_whatever_became_of_those_before(
    fake: FakeServer, make_request: MakeRequest
) -> None:
    last_came = asyncio.Event()

    def script(body: dict[str, Any], _: Any) -> list[Any]:
        if len(fake.bodies) == 3:
            last_came.set()
        return [last_came, *reply(body)]  # a client that waited for the first reply would wait for ever

    fake.script = script
    done = []
    found = run(fake, [make_request(f"r{i}", 0.05 * i) for i in range(3)], on_ended=lambda: done.append(1))
    assert [e.request.request_id for e in found.exchanges] == ["r0", "r1", "r2"]
    assert all(e.outcome is Outcome.COMPLETED for e in found.exchanges) and len(done) == 3
    assert [e.sent_s >= e.woke_s >= e.request.arrival_s - 0.002 for e in found.exchanges] == [True] * 3
    assert found.exchanges[0].chunk_times_s[0] > 0.09
    assert found.duration_s >= found.exchanges[0].ended_s
    assert found.send_lag_s.shape == (3,) and found.send_lag_s.min() >= 0.0 and found.loop_lag_s.size >= 1


def test_no_more_than_max_concurrency_are_under_way_and_the_wait_counts(
    fake: FakeServer, make_request: MakeRequest
) -> None:
    under_way, most = 0, 0
    pairs = asyncio.Barrier(2)

    async def script(body: dict[str, Any], _: Any) -> list[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await pairs.wait()
        under_way -= 1
        return reply(body)

    fake.script = script
    found = run(fake, [make_request(f"r{i}") for i in range(6)], max_concurrency=2)
    assert most == 2
    waits_s = [e.sent_s - e.woke_s for e in found.exchanges]
    assert max(waits_s[:2]) < min(waits_s[4:])
    last = found.exchanges[-1]
    from_due, from_sending = last.latency(last.request.arrival_s), last.latency(last.sent_s)
    assert from_due is not None and from_sending is not None
    assert from_due.ttft_s - from_sending.ttft_s == pytest.approx(last.sent_s)


@pytest.mark.slow
def test_the_first_wrong_request_stops_the_run(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: (
        JSONResponse({"error": {"message": "too long"}}, 400) if len(fake.bodies) == 2 else [*reply(body)[:1], 30.0]
    )
    with pytest.raises(ConfigError, match="to request r1 with 400: too long; the run is stopped"):
        run(fake, [make_request(f"r{i}", 0.05 * i) for i in range(1000)])
    assert len(fake.bodies) < 10


@pytest.mark.parametrize("step_s", [5.0, -5.0])
def test_setting_the_hosts_clock_changes_no_figure(make_request: MakeRequest, step_s: float) -> None:
    class Answers(httpx.AsyncBaseTransport):
        """Answers each request with two chunks, after 50 ms and 100 ms."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._body())

        async def _body(self) -> AsyncIterator[bytes]:
            for part in (chunk("a", 1), chunk("b", 2, "length")):
                await asyncio.sleep(0.05)
                yield f"data: {json.dumps(part)}\n\n".encode()

    async def main() -> ReplayedRun:
        async with httpx.AsyncClient(transport=Answers(), base_url="http://test") as client:
            requests = [make_request(f"r{i}", 0.1 * i, output=2) for i in range(10)]
            payloads = [payload(r, [20], PayloadSettings("fake")) for r in requests]
            return await replay(client, payloads, SteppedClock(0.33, step_s), ReplaySettings())

    found = in_virtual_time(main())
    assert found.duration_s == pytest.approx(1.0) and found.send_lag_s.max() == pytest.approx(0.0, abs=1e-6)
    latencies = [ended.latency(ended.request.arrival_s) for ended in found.exchanges]
    assert [one and (one.ttft_s, one.e2e_s) for one in latencies] == [pytest.approx((0.05, 0.1))] * 10
