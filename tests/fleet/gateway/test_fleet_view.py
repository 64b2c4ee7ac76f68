"""The fleet as its watchers see it: instances, switches and queues, for those who have the admin key and no others."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sloserve.client.watching import watch
from sloserve.core.clock import ManualClock
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.spans import Phase
from sloserve.engine.metrics.load_history import EVERY_S, ROW
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.gateway.fleet_view import COLUMNS, LOST, MOST_NAMED, FleetView
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.gateway_instance import FRESH_S
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.store.store import Store, open_store
from sloserve.wire.live_feed import fitted
from sloserve.wire.rate_limits import RateQuota
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import Played, PlayedAgent, fleet, serving

KEY = "an admin key"


class Observed:
    """A gateway whose agent says what a test wants."""

    def __init__(self, store: Store | None = None) -> None:
        self.clock = ManualClock()
        self.gateway = Gateway(fleet(), GatewayDependencies(store, admin_key=KEY), self.clock)
        self.view = FleetView(self.gateway.parts)

    def says(self, name: str, **what: Any) -> dict[str, Any]:
        self.reports(name, **what)
        return self.row(name)

    def reports(self, name: str, **what: Any) -> None:
        report = AgentReport(host="node-a", door="unix:x", instances=(Played(name, **what).report(),))
        self.gateway.parts.instances.reported(report, "unix:x", {}, self.clock.monotonic_s())

    def row(self, name: str) -> dict[str, Any]:
        return dict(zip(COLUMNS, self.view.read()["rows"][name], strict=True))


def test_a_switch_is_shown_while_it_lasts_and_after() -> None:
    seen = Observed()
    assert seen.says("node-a/0")["phase"] == "serving"
    seen.clock.advance_to(seen.clock.now_s() + 5.0)
    assert seen.says("node-a/0", active="legal", phase=Phase.DRAINING)["model"] == "legal"
    seen.clock.advance_to(seen.clock.now_s() + 2.0)
    seen.says("node-a/0", active="legal", phase=Phase.SWITCHING)
    seen.clock.advance_to(seen.clock.now_s() + 1.5)
    row = seen.says("node-a/0", active="legal")
    (switch,) = seen.view.read()["switches"]
    assert (switch["leaving"], switch["coming"], switch["seconds"], switch["instance"]) == (
        "chat", "legal", 3.5, "node-a/0",
    )  # fmt: skip
    assert row["since_s"] == pytest.approx(seen.clock.now_s()) and seen.view.read()["models"]["legal"]["serving"] == 1


def test_an_instance_whose_agent_is_silent_is_lost_and_its_host_says_so() -> None:
    seen = Observed()
    seen.says("node-a/0")
    assert seen.view.read()["hosts"] == {"node-a": {"instances": 1, "lost": 0}}
    seen.clock.advance_to(seen.clock.now_s() + FRESH_S)
    assert (seen.row("node-a/0")["phase"], seen.row("node-a/0")["age_s"]) == (LOST, None)
    assert seen.view.read()["hosts"] == {"node-a": {"instances": 1, "lost": 1}}
    assert seen.view.read()["models"]["chat"]["state"] == "unavailable"


@pytest.mark.slow
def test_hosts_that_the_store_does_not_name_any_more_are_forgotten(tmp_path: Path) -> None:
    """Of each host that had ever come a gateway kept instances, each with 4,096 beginnings of prompts."""
    store = open_store(f"sqlite:{tmp_path}/fleet.db")
    seen = Observed(store)
    parts, watch = seen.gateway.parts, seen.gateway.watch

    async def comes(host: str) -> None:
        report = AgentReport(host, f"unix:{tmp_path}/{host}", (Played(f"{host}/0").report(),))
        store.members.beat(f"agent:{host}", to_json(report))
        parts.instances.reported(report, report.door, {}, seen.clock.monotonic_s())
        await parts.agents.state(report.door)  # none answers, but there is a session for it

    async def test() -> None:
        await comes("pod-1")
        await comes("pod-2")
        await watch._read_store(store)
        assert seen.view.read()["rows"].keys() == {"pod-1/0", "pod-2/0"}
        answering = parts.instances.by_name["pod-1/0"].send(Work(1, 1.0, 1.0), ())
        store.members.leave("agent:pod-1")
        await watch._read_store(store)
        assert parts.instances.by_name.keys() == {"pod-1/0", "pod-2/0"}, "its stream would break"
        assert len(parts.agents._sessions) == 2
        answering.end()
        await comes("pod-3")
        await watch._read_store(store)
        assert seen.view.read()["rows"].keys() == {"pod-2/0", "pod-3/0"}
        assert len(seen.view._courses) == len(parts.agents._sessions) == 2
        await watch.stop()
        await parts.agents.close()

    bounded.run(test())


def test_a_late_group_says_first_why_no_instance_takes_it() -> None:
    seen = Observed()
    hold, now_s = seen.gateway.parts.hold.held, seen.clock.monotonic_s
    seen.says("node-a/0", room=0)

    def held(model: str, due_in_s: float) -> None:
        hold.arrived(HeldRequest(model, "interactive", now_s(), now_s() + due_in_s), now_s())

    def headlines() -> list[str]:
        return list(seen.view.read()["headlines"])

    held("chat", 5.0)
    held("legal", 60.0)
    assert headlines() == []
    held("legal", -3.0)
    held("chat", -1.5)
    legal, chat = headlines()
    # An operator reads the cause on a line of its own, and what to do about it.
    view = seen.view.read()
    assert view["causes"] == [
        "no instance serves it, and the plan has none for it",
        "1 of 1 instances that serve it are full",
    ]
    assert "planner runs" in view["advice"][0] and view["advice"][1].startswith("Add instances")
    assert all(said.endswith(f": {cause}") for said, cause in zip(view["headlines"], view["causes"], strict=True))
    assert legal == (
        "interactive of legal: 2 held, the first 3.0 s late: no instance serves it, and the plan has none for it"
    )
    assert chat == "interactive of chat: 2 held, the first 1.5 s late: 1 of 1 instances that serve it are full"
    seen.gateway.parts.instances.plan = PlanInForce(0.0, {"node-a/0": (PlannedGroup(-1, "legal", "interactive"),)})
    assert headlines()[0].endswith("no instance serves it yet; it is in the queue of node-a/0")
    seen.reports("node-a/1", active="legal", phase=Phase.SWITCHING)
    assert headlines()[0].endswith("no instance serves it; one that switches to it is ready in 0.0 s")
    seen.reports("node-a/1", active="legal")
    assert headlines()[0].endswith("late: 0 of 1 instances that serve it are full"), "until it is let go"
    seen.clock.advance_to(seen.clock.now_s() + FRESH_S)
    assert headlines()[0].endswith("no responding instance has it")
    assert headlines()[-1] == "hosts with silent agents: node-a"
    assert "sloserve fleet logs" in seen.view.read()["advice"][0]
    assert "sloserve fleet agent" in seen.view.read()["advice"][-1]


def test_attainment_is_by_class_over_one_and_ten_minutes() -> None:
    seen = Observed()
    attained, now_s = seen.gateway.parts.attained, seen.clock.monotonic_s
    slo = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=1.0, e2e_s=5.0))

    def ended(ttft_s: float, e2e_s: float, *, streamed: bool = True) -> None:
        attained.ended(slo, Outcome.COMPLETED, Latency(ttft_s, 0.01, e2e_s), now_s(), streamed=streamed)

    ended(0.5, 4.0)
    ended(2.0, 4.0)
    ended(4.0, 4.0, streamed=False)  # when its first token came is not seen here
    view = seen.view.read()
    assert view["by_class"]["interactive"] == {
        "attained": [[0.6667, 3], [0.6667, 3]],
        "not_served": [0, 0],
        "missed": 0,
        "burn": [6.67, 6.67],
        "state": "bad",
    }
    assert view["headlines"] == ["interactive: 67% of 3 in time within 60 s, 67% of 3 in time within 10 min"]
    assert view["calm"] == "No alarm. Missed targets within 10 min: interactive 1 of 3."
    seen.clock.advance_to(seen.clock.now_s() + 100.0)
    attained.ended(slo, Outcome.REJECTED, None, now_s(), streamed=True)
    view = seen.view.read()
    assert view["by_class"]["interactive"]["attained"] == [[0.0, 1], [0.5, 4]]
    assert view["by_class"]["batch"] == {
        "attained": [[None, 0], [None, 0]],
        "not_served": [0, 0],
        "missed": 0,
        "burn": [None, None],
        "state": "fine",
    }
    assert view["spans_s"] == [60.0, 600.0]


def test_attainment_is_a_metric_by_class_and_target() -> None:
    seen = Observed()
    attained, now_s = seen.gateway.parts.attained, seen.clock.monotonic_s()
    slo = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=1.0, e2e_s=5.0))
    name = "sloserve:gateway_slo_attainment_ratio"

    def shown() -> dict[str, float]:
        rows = [
            row.removeprefix(name).rpartition(" ")
            for row in seen.gateway.metrics.page().decode().splitlines()
            if row.startswith(name)
        ]
        return {labels: float(value) for labels, _, value in rows}

    assert shown() == {}
    attained.ended(slo, Outcome.COMPLETED, Latency(2.0, 0.01, 4.0), now_s, streamed=True)
    attained.ended(slo, Outcome.COMPLETED, Latency(0.5, 0.01, 4.0), now_s, streamed=True)
    attained.ended(slo, Outcome.REJECTED, None, now_s, streamed=True)
    dims = {"ttft": 1 / 3, "e2e": 2 / 3, "all": 1 / 3, "all_admitted": 1 / 2}
    expected = {f'{{class="interactive",dim="{dim}"}}': share for dim, share in dims.items()}
    assert shown() == pytest.approx(expected)


def test_requests_without_a_target_that_can_be_judged_count_if_they_were_not_served() -> None:
    seen = Observed()
    attained, now_s = seen.gateway.parts.attained, seen.clock.monotonic_s
    batch = DEFAULT_CLASSES.slo("batch", Targets())
    first = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=1.0))
    for outcome in (Outcome.COMPLETED, Outcome.ABORTED, Outcome.REJECTED, Outcome.EVICTED, Outcome.FAILED):
        latency = Latency(0.1, 0.1, 0.1) if outcome is Outcome.COMPLETED else None
        attained.ended(batch, outcome, latency, now_s(), streamed=True)
        attained.ended(first, outcome, latency, now_s(), streamed=False)
    view = seen.view.read()
    for name in ("interactive", "batch"):
        figures = {"attained": [[None, 0]] * 2, "not_served": [3, 3], "missed": 0, "burn": [None] * 2, "state": "late"}
        assert view["by_class"][name] == figures
    said = "3 without targets not served within 60 s"
    assert view["headlines"] == [f"{name}: {said}" for name in ("interactive", "batch")]
    seen.clock.advance_to(seen.clock.now_s() + 100.0)
    view = seen.view.read()
    assert view["headlines"] == [] and view["calm"] == (
        "No alarm. Without targets and not served within 10 min: interactive 3, batch 3."
    )


@pytest.mark.slow
def test_queues_are_by_group_and_a_view_of_a_large_fleet_fits_a_frame() -> None:
    seen = Observed()
    parts = seen.gateway.parts
    for i in range(3 * MOST_NAMED):
        parts.demand.arrived(f"a-model-with-a-long-name-{i:040d}", "interactive", 10, seen.clock.monotonic_s())
        seen.reports(f"node-{i:030d}/0", active=f"a-model-with-a-long-name-{i:040d}")
    view = seen.view.read()
    assert len(view["groups"]) == MOST_NAMED and view["counts"]["groups"] == 3 * MOST_NAMED
    assert len(fitted(view)["rows"]) > 0
    json.dumps(view, allow_nan=False)


@pytest.mark.slow
def test_the_feed_of_a_gateway_opens_to_the_admin_key_alone(tmp_path: Path) -> None:
    canary = "canary-7f3a"

    async def test() -> None:
        door = PlayedAgent(tmp_path / "door.sock")
        async with door.open(), serving(GatewayDependencies(endpoints=[door.address], admin_key=KEY)) as served:
            async with httpx.AsyncClient(base_url=served.url, timeout=60.0) as http:
                for headers in ({}, {"authorization": "Bearer other"}, {"authorization": KEY}):
                    for path in ("/sloserve/events", "/sloserve/other"):
                        assert (await http.get(path, headers=headers)).status_code == 401
                shown = {"authorization": f"Bearer {KEY}"}
                assert (await http.get("/sloserve/other", headers=shown)).status_code == 404
                assert (await http.post("/sloserve/events", headers=shown)).status_code == 405
                for instance in door.instances.values():
                    instance.room = 0
                await until(lambda: all(one.room == 0 for one in served.gateway.parts.instances.by_name.values()))
                body = {"model": "chat", "prompt": canary, "max_tokens": 4, "user": canary}
                within = {"x-slo-e2e-ms": "60000"}
                asked = asyncio.create_task(
                    http.post("/v1/completions", json=body, headers={"x-request-id": canary, **within})
                )

                def one_view() -> dict[str, Any]:
                    return next(view for view in watch(served.url, KEY) if view["held"])

                view = await asyncio.to_thread(one_view)
                text = json.dumps(view)
                assert canary not in text and KEY not in text and "local" not in text
                (group,) = [one for one in view["groups"] if one["held"]]
                assert (group["model"], group["class"], group["held"]) == ("chat", "interactive", 1)
                for instance in door.instances.values():
                    instance.room = 100
                assert (await asked).status_code == 200
                parts = served.gateway.parts

                def met() -> object:
                    return parts.attained.by_class(parts.clock.monotonic_s())["interactive"]["attained"]

                await until(lambda: met() == [[1.0, 1]] * 2)

    bounded.run(test())


@pytest.mark.slow
def test_without_an_admin_key_a_gateway_has_no_feed(tmp_path: Path) -> None:
    async def test() -> None:
        door = PlayedAgent(tmp_path / "door.sock")
        async with door.open(), serving(GatewayDependencies(endpoints=[door.address])) as served:
            async with httpx.AsyncClient(base_url=served.url, timeout=60.0) as http:
                assert (await http.get("/sloserve/events")).status_code == 404

    bounded.run(test())


def test_a_gateway_shows_its_load_over_ten_minutes() -> None:
    seen = Observed()
    load, metrics = seen.gateway._load, seen.gateway.metrics
    seen.reports("node-a/0")
    assert load.parts() == {"load": None} and load.history()["rows"] == []

    async def sampled(requests: int, refused: int) -> None:
        for outcome, count in ((Outcome.COMPLETED, requests), (Outcome.REJECTED, refused)):
            for _ in range(count):
                metrics.ended("chat", "interactive", outcome)
        seen.gateway.parts.rates._tenants["acme"].use.output_tokens += 50 * requests
        await load.sample()
        seen.clock.advance_to(seen.clock.now_s() + EVERY_S)

    seen.clock.advance_to(seen.clock.now_s() + 100.0)
    seen.gateway.parts.rates.admit("acme", RateQuota())
    for requests, refused in ((2, 0), (10, 5)):
        bounded.run(sampled(requests, refused))
    latest = FleetView(seen.gateway.parts, load.parts).read()["load"]
    assert (latest["requests_per_s"], latest["refused_per_s"], latest["output_tokens_per_s"]) == (2, 1, 100)
    assert (latest["running"], latest["waiting"], latest["kv_used"], latest["attained"]) == (0, 0, None, [])
    assert [dict(zip(ROW, row, strict=True)) for row in load.history()["rows"]] == [latest]
