"""A workload goes out open-loop, on time, and at most so many at once."""

import asyncio
from collections.abc import Callable, Sequence
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
from tests.client.fake_server import FakeServer, reply

MakeRequest = Callable[..., WorkloadRequest]


def run(fake: FakeServer, requests: Sequence[WorkloadRequest], on_ended: Any = None, **settings: Any) -> ReplayedRun:
    async def main() -> ReplayedRun:
        async with httpx.AsyncClient(base_url=fake.url, verify=False) as client:
            payloads = [payload(r, [20], PayloadSettings("fake")) for r in requests]
            return await replay(client, payloads, SystemClock(), ReplaySettings(**settings), on_ended)

    return asyncio.run(main())


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


def test_the_first_wrong_request_stops_the_run(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: (
        JSONResponse({"error": {"message": "too long"}}, 400) if len(fake.bodies) == 2 else [*reply(body)[:1], 30.0]
    )
    with pytest.raises(ConfigError, match="400: too long to request r1; the run is stopped"):
        run(fake, [make_request(f"r{i}", 0.05 * i) for i in range(1000)])
    assert len(fake.bodies) < 10
