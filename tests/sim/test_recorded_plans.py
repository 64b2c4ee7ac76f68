"""Recorded plans come out the same when they are made again, of every policy."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.engine.recording.events import FORMAT, Event, Lost, PlanMade, PolicyBegan, RowsSeen, SegmentHead
from sloserve.engine.recording.plan_log import WHOLE_EVERY, PlanLog
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.engine.virtual.drafts import Drafts
from sloserve.scheduler.policy import Plan, Snapshot
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.model.planned import PlannedScheduler
from sloserve.sim.recorded_plans import Checked, PlanCheck, check_plans
from tests.sim.model.cases import SCARCE, SLOTS, Case, cases, generated
from tests.whole import first_of_each, sampled

HEAD = SegmentHead(FORMAT, 100.0, {}, PluginSettings().as_config(), "edf", None, 64, [])


def tenants(requests: list[WorkloadRequest]) -> list[WorkloadRequest]:
    return [replace(one, tenant=f"t{i % 3}") for i, one in enumerate(requests)]


def all_cases() -> list[Case]:
    bursts = generated("sharegpt-bursts", 40, 20.0, 2)
    found = [case for case in cases() if case.policy is not None]
    found += [Case("kv-scarce", policy, SCARCE, bursts) for policy in ("qlm", "sa", "auto", "andes", "chaos")]
    found += [Case("shares", "auto", SCARCE, tenants(bursts), tenant_shares={"half_life_s": 5.0, "weights": {}})]
    found += [Case("drafts", policy, replace(SLOTS, drafts=Drafts(3, 0.7, 0.1)), bursts) for policy in ("auto", "edf")]
    return found


def recorded(case: Case) -> list[Event]:
    """Return what a run of the engine model records of its plans, as a reader gets it."""
    engine, events = ModelEngine(case.settings, case.profile, case.config, **case.virtual_time), list[Event]()
    scheduler = engine.scheduler
    assert isinstance(scheduler, PlannedScheduler) and case.policy is not None
    if scheduler.planner is None:
        return []
    scheduler.planner.record(PlanLog(events.append), case.policy, 100.0)
    engine.run(case.requests)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=list[Event])


def checked(events: list[Event]) -> Checked:
    check = PlanCheck()
    for event in events:
        check.take(event)
    return check.found


def plans(events: list[Event]) -> list[PlanMade]:
    return [event for event in events if isinstance(event, PlanMade)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    first_of_each(all_cases(), lambda case: case.name, lambda case: case.policy.partition(":")[0]),
    ids=lambda case: f"{case.name}-{case.policy}",
)
def test_all_plans_repeat(case: Case) -> None:
    events = recorded(case)
    found = checked(events)
    assert (found.repeated, found.differing) == (len(plans(events)), []) and found.is_from_beginning
    assert found.plans == len(found.seconds) and (found.plans > 20 or "fcfs" in str(case.policy))


def case_of(policy: str) -> Case:
    return Case("kv-scarce", policy, SCARCE, generated("sharegpt-bursts", 40, 20.0, 2))


@functools.cache
def _recorded_edf() -> tuple[Event, ...]:
    return tuple(recorded(case_of("edf")))


def recorded_edf() -> list[Event]:
    """Return what a run under edf records."""
    return list(_recorded_edf())


@pytest.mark.slow
@pytest.mark.parametrize("policy", sampled(["auto", "qlm", "andes", "econo", "sa"], ["auto", "qlm"]))
def test_being_recorded_changes_no_decision(policy: str) -> None:
    case = case_of(policy)

    def tokens(with_log: bool) -> list[Any]:
        engine = ModelEngine(case.settings, case.profile, case.config, **case.virtual_time)
        if with_log:
            engine.scheduler.planner.record(PlanLog(lambda event: None), policy, 100.0)  # type: ignore[attr-defined]
        return [one.token_times_s.tolist() for one in engine.run(case.requests).requests]

    assert tokens(True) == tokens(False)


@pytest.mark.slow
def test_a_changed_snapshot_or_answer_is_found() -> None:
    events = recorded_edf()
    at = max(i for i, event in enumerate(events) if isinstance(event, PlanMade) and event.plan and event.plan[1])
    made = events[at]
    assert isinstance(made, PlanMade) and made.plan is not None and made.plan[1] is not None
    order = np.frombuffer(made.plan[1], np.int64)[::-1].tobytes()
    events[at] = msgspec.structs.replace(made, plan=(made.plan[0], order + order[:8], *made.plan[2:]))
    found = checked(events)
    assert found.plans - found.repeated == 1 and found.differing == [(len(plans(events[: at + 1])), made.at_s)]


@pytest.mark.slow
def test_without_its_beginning_plans_are_made_from_the_first_whole_rows() -> None:
    events = recorded_edf()
    assert len(events) > 3 * WHOLE_EVERY
    repeated = [i for i, event in enumerate(events) if isinstance(event, PolicyBegan) and event.goes_on]
    found = checked(events[repeated[1] - 40 :])
    assert not found.is_from_beginning and found.plans == found.repeated > 20
    assert found.plans == len(plans(events[repeated[1] :]))


@pytest.mark.slow
def test_what_follows_a_loss_is_not_checked() -> None:
    events = recorded_edf()
    half = len(events) // 2
    found = checked([*events[:half], Lost(1.0, 3), *events[half + 3 :]])
    assert found.lost and found.plans == found.repeated == len(plans(events[:half]))


@pytest.mark.slow
def test_a_policy_that_fails_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from sloserve.scheduler.edf import EDF

    stock, calls = EDF.plan, list[int]()

    def plan(self: Any, snapshot: Snapshot, now_s: float) -> Plan:
        calls.append(snapshot.running.size)
        if snapshot.running.size == 5:
            raise ValueError("five")
        return stock(self, snapshot, now_s)

    monkeypatch.setattr(EDF, "plan", plan)
    events = recorded(case_of("edf"))
    assert any(event.plan is None for event in plans(events))
    assert checked(events).repeated == len(plans(events))


@pytest.mark.slow
def test_a_fault_of_the_log_ends_it_and_no_plan(caplog: pytest.LogCaptureFixture) -> None:
    case, events = case_of("edf"), list[Event]()

    def add(event: Event) -> None:
        if len(events) == 50:
            raise RuntimeError("a fault")
        events.append(event)

    engine = ModelEngine(case.settings, case.profile, case.config, **case.virtual_time)
    engine.scheduler.planner.record(PlanLog(add), "edf", 100.0)  # type: ignore[attr-defined]
    log = engine.run(case.requests)
    assert len(events) == 50 and "plans are not recorded any more" in caplog.text
    assert not log.counters.get("plan_errors") and all(one.outcome == "completed" for one in log.requests)


@pytest.mark.slow
def test_the_command_says_how_many_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root.import_commands()
    events = recorded(case_of("auto"))
    count = len(plans(events))
    for name, written in (("a-1-rank0", events), ("b-1-rank0", [msgspec.structs.replace(events[0], policy="fcfs")])):
        writer = SegmentWriter(tmp_path, name, 1 << 24)
        writer.write(written if name[0] == "a" else [*written, *events[1:]], lambda: HEAD)
        writer.close()
    front_end = SegmentWriter(tmp_path, "a-1-api0", 1 << 20)
    front_end.write([Lost(1.0, 2)], lambda: HEAD)
    front_end.close()
    root.app(["record", "check", "a-1-rank0", "--folder", str(tmp_path)], standalone_mode=False)
    said = capsys.readouterr().out
    assert f"plans: {count}, of which {count} repeat" in said and "lost" not in said
    assert root.app(["record", "check", "--folder", str(tmp_path), "--json"], standalone_mode=False) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["repeated"] < shown["plans"] == count and shown["differing"][0]["plan"] >= 1


@pytest.mark.slow
def test_a_recording_without_plans_or_with_broken_rows_is_refused(tmp_path: Path) -> None:
    began = PolicyBegan(1.0, "edf", 0, False, False, [[1, 16, 0, 0, 0, 0, 0, 0, 0]], 0, 4096)
    broken = RowsSeen(64, 0, True, [(0, ["seq"], b"", b"123")])
    events = recorded_edf()
    made = next(event for event in events if isinstance(event, PlanMade))
    for name, written, says in (
        ("none-1-rank0", [HEAD], "the recording has no plans; sloserve serve --record plans"),
        ("torn-1-rank0", [began, msgspec.structs.replace(made, rows=broken)], "torn-1-rank0-000000.slorec: "),
    ):
        writer = SegmentWriter(tmp_path, name, 1 << 20)
        writer.write(written, lambda: HEAD)  # type: ignore[arg-type]
        writer.close()
        with pytest.raises(ConfigError, match=says):
            check_plans([tmp_path / f"{name}-000000.slorec"])
