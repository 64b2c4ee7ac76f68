"""Replays from reports in the store to the need in the plan: in the real process, within bounds, failing safe."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.slo import Targets
from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup, ReplayedNeed, plan_of, to_json
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.contract.reports import to_json as report_json
from sloserve.fleet.contract.traffic import WINDOW_S, RecentTraffic, SeenRequest, to_text
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.planning.plan_metrics import PlanCollector
from sloserve.fleet.planning.planning_task import Planning
from sloserve.fleet.planning.replay_process import Job, replayed
from sloserve.fleet.planning.replays import MOST_MODELS, Replays, job_of, need_of, with_lines
from sloserve.fleet.planning.scaling import REPLAYED_S, ScaledKind, Scaling, instances_needed
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.requests import RecentLine
from sloserve.fleet.store.store import Store, open_store
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests import bounded

FILE = """
models:
  a: {model: m, profile: a100-llama2-7b, flags: {max_num_seqs: 4}}
  b: {model: m, profile: a100-llama2-7b}
pool:
  ray: auto
  scaling: {objective: 0.9, replay_s: 40}
  devices: {a100: {devices: 2, least: 0, most: 3}}
settings: {policy: edf}
"""
FLEET = parse_fleet(FILE, to_run=True)
NEED = ReplayedNeed(1000.0, 0.95, 2, 3, 4, 600.0, 900)


def traffic(per_s: float, model: str = "a", covers_s: float = WINDOW_S) -> RecentTraffic:
    count = int(per_s * covers_s)
    requests = tuple(
        SeenRequest(covers_s - k / per_s, model, "interactive", 500, None, 200, True, Targets(ttft_s=0.5))
        for k in range(count)
    )
    return RecentTraffic(covers_s, requests)


def agent(host: str, *models: str) -> AgentReport:
    instances = tuple(
        InstanceReport(f"{host}/{k}", "a100", Phase.SERVING, {model: ModelState.ACTIVE})
        for k, model in enumerate(models)
    )
    return AgentReport(host, "unix:x", instances)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:{tmp_path}/store", ManualClock())
    yield opened
    opened.close()


@pytest.mark.slow
def test_the_process_finds_what_the_traffic_needs(store: Store) -> None:
    replays = Replays(FLEET, store)
    bounded.run(replays.turn())
    assert replays.need is None, "no gateway has reported"
    store.members.beat("agent:x", report_json(agent("x", "a", "a")))
    store.traffic.write("g", to_text(traffic(1.0, covers_s=30.0)))
    bounded.run(replays.turn())
    few = replays.need
    assert (
        few is not None and few.low <= few.expected <= few.high and few.objective == 0.9 and few.in_flight is not None
    )
    store.traffic.write("g", to_text(traffic(7.0, covers_s=15.0)))
    bounded.run(replays.turn())
    assert replays.need is not None and replays.need.expected > few.expected
    found = replays.need
    store.traffic.write("g", "from another version")
    bounded.run(replays.turn())
    assert replays.need == found, "it holds until it is too old"


def test_no_time_for_a_replay_is_no_need() -> None:
    job = job_of(FLEET, traffic(2.0), [agent("x", "a")])
    assert replayed(replace(job, cpu_s=0.0)) == {}


def test_models_are_replayed_apart_and_in_bounded_number() -> None:
    both = RecentTraffic(
        WINDOW_S, (*traffic(1.0).requests, *traffic(0.5, "b").requests, *traffic(0.1, "unknown").requests)
    )
    job = job_of(FLEET, both, [agent("x", "a", "b"), agent("y", "a", "b")])
    assert {name: (one.there, one.most) for name, one in job.models.items()} == {"a": (2, 6), "b": (2, 6)}
    assert len(job.models) <= MOST_MODELS and job.objective == 0.9
    assert len(job.models["a"].traffic.requests) == 480 and job.models["a"].traffic.covers_s == 480.0
    assert job_of(FLEET, traffic(1.0), []).models["a"].there == 0, "a fleet without hosts is replayed, too"


def test_without_any_request_the_need_is_none_only_after_the_whole_window() -> None:
    job = Job({}, FLEET.settings.classes, 0.9, 60.0, 5.0)
    assert need_of({}, job, 5.0, WINDOW_S).high == 0
    assert need_of({}, job, 5.0, 30.0).high == 1


def test_lines_of_batches_that_are_due_soon_are_replayed_with_the_streams() -> None:
    lines = [
        RecentLine(30.0, "a", "batch", 10, 20.0, 600.0),
        RecentLine(40.0, "a", "batch", 10, 20.0, 86_400.0),
        RecentLine(50.0, "a", "batch", 10, 20.0, None),
        RecentLine(700.0, "a", "batch", 10, 20.0, 600.0),
    ]
    both = with_lines(traffic(0.01), lines)
    assert [one.is_line for one in both.requests].count(True) == 1
    (line,) = [one for one in both.requests if one.is_line]
    assert (line.age_s, line.output_tokens, line.targets.e2e_s) == (30.0, 20, 600.0)
    assert list(both.requests) == sorted(both.requests, key=lambda one: -one.age_s)


def test_the_store_tells_the_newest_requests(store: Store) -> None:
    new = [DurableRequest(f"r{k}", "t", "a", "batch", 1, b"{}", 7, 9.0, 600.0) for k in range(5)]
    store.requests.accept(new)
    found = store.requests.recent(600.0, 3)
    assert len(found) == 3 and found[0] == RecentLine(found[0].age_s, "a", "batch", 7, 9.0, pytest.approx(600.0))


def test_the_need_is_written_into_the_plan_at_once(store: Store) -> None:
    needs: list[ReplayedNeed | None] = [None]
    planning = Planning(FLEET, store, "p", ManualClock(), replayed=lambda: needs[0])
    assert not planning.leads
    planning.step()
    assert planning.leads
    needs[0] = NEED
    planning.step()
    stored = store.members.plan()
    assert stored is not None
    plan = plan_of(stored.plan)
    assert plan is not None and plan.replayed == NEED


def test_a_plan_of_an_older_version_has_no_need() -> None:
    old = to_json(PlanInForce(0.0, {}))
    for key in ("replayed", "waiting", "streams"):
        del old[key]
    assert plan_of(old) == PlanInForce(0.0, {}) and plan_of(old | {"of a newer version": 1}) is not None


def test_a_recent_need_counts_and_an_old_one_does_not() -> None:
    plan = PlanInForce(1000.0, {"x/0": (), "x/1": ()}, pressure={"interactive": 1.4}, replayed=NEED)
    assert instances_needed(plan) == 4
    assert instances_needed(replace(plan, made_s=1000.0 + REPLAYED_S + 1.0)) == 4 == math.ceil(2 * 1.4 / 0.7)
    assert instances_needed(replace(plan, replayed=None)) == 4
    assert instances_needed(replace(plan, replayed=replace(NEED, high=1, expected=1, low=1))) == 1


def test_lines_and_more_streams_than_usual_need_more() -> None:
    line = PlannedGroup(5, "a", "batch", 100.0)
    plan = PlanInForce(1000.0, {"x/0": (line,), "x/1": ()}, pressure={"batch": 2.0, "interactive": 9.0}, replayed=NEED)
    assert instances_needed(plan) == 6
    busy = PlanInForce(1000.0, {"x/0": ()}, streams=33, replayed=replace(NEED, in_flight=5.0))
    assert instances_needed(busy) == 7


def test_an_idle_fleet_goes_to_zero_and_comes_back_with_the_first_request() -> None:
    idle = PlanInForce(1000.0, {"x/0": ()}, replayed=ReplayedNeed(1000.0, 0.95, 0, 0, 0, WINDOW_S))
    assert instances_needed(idle) == 0 and instances_needed(replace(idle, waiting=1)) == 1
    scaling = Scaling({"a100": ScaledKind(2, 0, 3)}, 30.0, 60.0)
    assert scaling.want(0.0, 1, 2) == {"a100": 1}
    assert scaling.want(10.0, 0, 2) == {"a100": 1}, "not before the hold time"
    assert scaling.want(59.0, 0, 2) == {"a100": 1}
    assert scaling.want(61.0, 0, 2) == {"a100": 0}
    assert scaling.want(62.0, 1, 0) == {"a100": 1}, "no hold time for the first"


def test_the_need_is_among_the_metrics_while_it_counts() -> None:
    def series(plan: PlanInForce) -> dict[tuple[str, str], float]:
        found = PlanCollector(lambda: plan).collect()
        return {(one.name, one.labels.get("bound", "")): one.value for of in found for one in of.samples}

    plan = PlanInForce(1000.0, {"x/0": ()}, replayed=NEED)
    found = series(plan)
    bounds = [found["sloserve:fleet_replicas_needed", bound] for bound in ("low", "expected", "high", "now")]
    assert bounds == [2.0, 3.0, 4.0, 4.0] and found["sloserve:fleet_objective_ratio", ""] == 0.95
    old = series(replace(plan, made_s=1000.0 + REPLAYED_S + 1.0))
    assert not [name for name, _ in old if name == "sloserve:fleet_replicas_needed"]
