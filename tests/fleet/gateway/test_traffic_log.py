"""The log of a gateway's recent requests: bounded in time and number, and it says how much it covers."""

from pathlib import Path

import pytest

from sloserve.core.slo import Targets
from sloserve.fleet.contract.traffic import WINDOW_S, traffic_of
from sloserve.fleet.gateway.traffic_log import LoggedRequest, TrafficLog
from sloserve.fleet.store.store import Store, open_store
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET
from tests.fleet.gateway.test_gateway import line

TARGETS = Targets(ttft_s=1.0)


def arrive(log: TrafficLog, now_s: float) -> LoggedRequest:
    return log.arrived("a", "interactive", TARGETS, 10, None, now_s)


def test_a_request_is_reported_with_its_age_and_what_became_of_it() -> None:
    log = TrafficLog(100.0)
    whole, cut = arrive(log, 110.0), arrive(log, 120.0)
    arrive(log, 130.0)
    whole.over(7, complete=True)
    cut.over(3, complete=False)
    found = log.report(150.0)
    assert found.covers_s == 50.0
    assert [(one.age_s, one.output_tokens, one.ended) for one in found.requests] == [
        (40.0, 7, True),
        (30.0, 3, False),
        (20.0, 0, False),
    ]
    assert {one.targets for one in found.requests} == {TARGETS}


def test_what_is_older_than_the_window_is_forgotten() -> None:
    log = TrafficLog(0.0)
    for k in range(10):
        arrive(log, 100.0 * k)
    found = log.report(900.0 + 1.0)
    assert found.covers_s == WINDOW_S and [one.age_s for one in found.requests] == [501, 401, 301, 201, 101, 1]
    assert log.report(5000.0).requests == ()


def test_a_full_log_covers_less() -> None:
    log = TrafficLog(0.0, most=3)
    for k in range(5):
        arrive(log, 10.0 * k)
    found = log.report(50.0)
    assert [one.age_s for one in found.requests] == [30.0, 20.0, 10.0] and found.covers_s == 40.0


@pytest.mark.slow
def test_a_gateway_reports_what_came_through_it_where_the_file_asks_for_replays(tmp_path: Path) -> None:
    async def check(text: str) -> Store:
        store = open_store(f"sqlite:{tmp_path}/store")
        async with line(tmp_path, "node-a/0", text=text, store=store, files=tmp_path) as one:
            headers = {"x-slo-ttft-ms": "900"}
            assert (await one.complete(stream=True, headers=headers)).status_code == 200
            assert (await one.complete(model="unknown")).status_code == 404
            traffic = one.served.gateway.parts.traffic
            if traffic is not None:
                (seen,) = traffic.report(one.served.gateway.parts.clock.monotonic_s()).requests
                assert (seen.model, seen.ended, seen.max_tokens, seen.targets.ttft_s) == ("chat", True, 5, 0.9)
                assert 1 <= seen.output_tokens <= 5 and seen.prompt_tokens >= 1
                await until(lambda: bool(store.traffic.read()))
        return store

    replaying = bounded.run(check(FLEET + "pool: {scaling: {replay_s: 10}}\n"))
    assert traffic_of(replaying.traffic.read()[0][0]) is not None
    replaying.close()
    (tmp_path / "store").unlink()
    others = bounded.run(check(FLEET))
    assert others.traffic.read() == []
    others.close()
