"""Sessions stay at the instance that served them, while that is in time and has room."""

from pathlib import Path
from typing import Any

import pytest

from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.gateway.held import HeldRequests
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.sessions import Home, Sessions
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.virtual_queues.contract import RunningSums
from sloserve.wire.tasks import CHAIN, OWN, StatedTask
from tests.bounded import until
from tests.fleet.gateway.test_gateway import KEYS, line, run
from tests.fleet.gateway.test_routing import fleet, report

BUSY = RunningSums(20, 20_000.0, 50_000.0, 4_000.0, 1e6, 300.0)


def task(id: str, kind: str = OWN) -> StatedTask:
    return StatedTask(kind, id, None, None, None, False)


def booked(instances: Instances, home: Home | None, **given: Any) -> str | None:
    request = HeldRequest("m", "c", 0.0, work=Work(1, 3_000, 10), home=home, **given)
    found = HeldRequests(instances, 10).arrived(request, 0.0)
    return None if found is None else found.instance.name


def test_a_session_goes_home_while_that_is_in_time() -> None:
    instances = fleet(report("busy", running=BUSY), report("idle"))
    assert booked(instances, None) == "idle"
    for is_for_first in (True, False):
        assert booked(instances, Home("busy", 30.0, is_for_first)) == "busy"
        assert booked(instances, Home("busy", 0.01, is_for_first)) == "idle", "it would be late there"
    first_s = instances.by_name["busy"].times_s(next(iter(instances.paces.values())), Work(1, 3_000, 10), ()).first_s
    assert booked(instances, Home("busy", 1.5 * first_s, True)) == "busy", "its first token alone is due"


@pytest.mark.parametrize("home", ["full", "switching", "gone"])
def test_a_session_without_room_at_home_goes_elsewhere(home: str) -> None:
    instances = fleet(report("full", 0), report("switching", phase=Phase.SWITCHING), report("idle"))
    assert booked(instances, Home(home, 1e9, True)) == "idle"


def test_the_plan_goes_before_a_session() -> None:
    instances = fleet(report("busy", running=BUSY), report("idle"))
    instances.plan = PlanInForce(0.0, {"idle": (PlannedGroup(-1, "m", "c"),)})
    assert booked(instances, Home("busy", 1e9, True)) == "idle"
    instances.plan = PlanInForce(0.0, {"busy": (PlannedGroup(-1, "m", "c"),), "idle": (PlannedGroup(-1, "m", "c"),)})
    assert booked(instances, Home("busy", 1e9, True)) == "busy"


def test_sessions_are_bounded_and_of_one_tenant_and_model() -> None:
    sessions = Sessions(4)
    sessions.served("a", task("s"), "m", "one")
    assert sessions.instance_of("a", task("s"), "m") == "one"
    for tenant, stated, model in (("b", task("s"), "m"), ("a", task("s", "x-session-id"), "m"), ("a", task("s"), "n")):
        assert sessions.instance_of(tenant, stated, model) is None
    for number in range(100):
        sessions.served("b", task(f"{number}\ud800"), "m", "two")
    assert len(sessions) == 4 and sessions.instance_of("a", task("s"), "m") == "one", "others' sessions take no places"
    assert sessions.instance_of("b", task("99\ud800"), "m") == "two"
    assert sessions.instance_of("b", task("0\ud800"), "m") is None
    for stated in (None, task("resp_1", CHAIN)):
        sessions.served("c", stated, "m", "one")
        assert sessions.instance_of("c", stated, "m") is None
    off = Sessions(0)
    off.served("a", task("s"), "m", "one")
    assert len(off) == 0 and off.instance_of("a", task("s"), "m") is None


@pytest.mark.slow
@pytest.mark.parametrize("most", [16, 0])
def test_a_header_names_the_session_of_a_tenant(tmp_path: Path, most: int) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        limits = GatewaySettings(affinity=False, max_sessions=most)
        async with line(tmp_path, "node-a/0", "node-a/1", keys=keys, limits=limits) as to:
            known = to.served.gateway.parts.instances.by_name
            home, other = to.door.instances.values()

            async def served(tenant: str, **names: str) -> str:
                before = len(home.came)
                headers = {
                    "authorization": f"Bearer key-{tenant}",
                    **{k.replace("_", "-"): v for k, v in names.items()},
                }
                assert (await to.complete(headers=headers)).status_code == 200
                return "home" if len(home.came) > before else "other"

            names = [{"x_session_id": "s"}, {"x_claude_code_session_id": "s"}, {"x_slo_task_id": "s"}]
            other.room = 0
            await until(lambda: known["node-a/1"].room == 0)
            assert [await served("b", **one) for one in names] == ["home"] * 3
            other.room, home.running = 100, BUSY
            await until(lambda: known["node-a/1"].room == 100 and known["node-a/0"].report.running == BUSY)
            assert [await served("b", **one) for one in names] == ["home" if most else "other"] * 3
            assert await served("b") == await served("b", x_session_id="t") == "other"
            assert await served("a", x_session_id="s") == "other", "another tenant's session of this name"
            body = {"model": "chat", "prompt": "a", "max_tokens": 5, "session_id": "x"}
            for _ in range(2):
                answer = await to.http.post("/v1/completions", json=body, headers={"x-api-key": "key-b"})
                assert answer.status_code == 200
            assert len(to.served.gateway.parts.sessions) == (6 if most else 0)

    run(test)
