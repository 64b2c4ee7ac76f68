"""Where requests spend their time: changes booked one by one, and whole runs against an account kept step by step."""

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from sloserve.core.runlog import StageTimes
from sloserve.engine.stages import Stages
from sloserve.scheduler.policy import Plan, Policy, Snapshot

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


class Request:
    """Of vLLM's, what is read; like those, equal to itself alone."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


class Engine:
    """Steps of an engine, by what changes in them. Each request is a letter, and arrives at 1 s."""

    def __init__(self, arriving: str) -> None:
        self.stages = Stages()
        self.requests = {name: Request(name) for name in arriving}
        for name in arriving:
            self.stages.arrived(name, 1.0)

    def step(self, start_s: float, new: str = "", resumed: str = "", preempted: str = "", paused: str = "") -> None:
        gone = list(preempted)
        self.stages.scheduled([*new, *resumed], gone, [self.requests[name] for name in paused], start_s)
        assert gone == []


def test_a_request_is_in_one_stage_at_a_time() -> None:
    engine = Engine("ab")
    engine.step(3.0, new="ab")
    engine.step(4.0, paused="ab")
    engine.step(5.0, paused="ba")  # the same two
    engine.step(7.0, paused="b")
    engine.step(8.0, preempted="a")
    engine.step(9.5, resumed="a", paused="b")
    engine.step(10.0)
    assert engine.stages.ended("a", 12.0) == StageTimes(waiting_s=2.0, running_s=4.5, preempted_s=1.5, paused_s=3.0)
    assert engine.stages.ended("b", 11.0) == StageTimes(waiting_s=2.0, running_s=3.5, preempted_s=0.0, paused_s=4.5)


def test_a_paused_request_that_vllm_takes_for_its_victim_is_preempted() -> None:
    """In the step of its pause or later, the plan still naming it; resumed, it runs."""
    for first in ("", "a"):
        engine = Engine("a")
        engine.step(1.0, new="a")
        engine.step(2.0, paused=first)
        engine.step(3.0, paused="a", preempted="a")
        engine.step(5.0)
        engine.step(6.0, resumed="a")
        found = engine.stages.ended("a", 6.5)
        assert (found.preempted_s, found.paused_s) == (3.0, float(len(first)))


def test_who_is_preempted_and_back_in_the_same_step_loses_no_time() -> None:
    engine = Engine("a")
    engine.step(1.0, new="a")
    engine.step(2.0, preempted="a", resumed="a")
    assert engine.stages.ended("a", 4.0) == StageTimes(0.0, 3.0, 0.0, 0.0)


def test_what_a_step_in_flight_changes_is_nothing_to_who_has_ended() -> None:
    """The last token of a and b comes at the end of the step before, when the next is scheduled already."""
    engine = Engine("abc")
    engine.step(1.0, new="abc")
    engine.step(2.0, paused="a", preempted="b")
    assert engine.stages.ended("a", 2.0) == engine.stages.ended("b", 2.0) == StageTimes(0.0, 1.0, 0.0, 0.0)
    engine.step(3.0, paused="c")
    assert engine.stages.ended("c", 5.0).paused_s == 2.0


class PauseLeader(Policy):
    """Pauses whoever is ahead of the others, while there are others."""

    needs = frozenset({"output_tokens"})

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        done = snapshot.rows.output_tokens[snapshot.running]
        if done.size < 2:
            return Plan()
        return Plan(pause=snapshot.running[[np.argmax(done)]])


class Account:
    """Notes at each step, from the state of vLLM's requests alone, in which stage each is from its start on."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._dispatch = engine, engine._dispatch
        self._start_s = 0.0
        self._noted: list[tuple[float, dict[str, str]]] = []
        engine._dispatch, engine.on_step = self._begin, self._note

    def _begin(self, now_s: float, worker_free_s: float) -> Any:
        self._start_s = max(now_s, worker_free_s)  # these runs charge no planning
        return self._dispatch(now_s, worker_free_s)

    def _note(self, output: Any) -> None:
        scheduler = self._engine.scheduler
        self._noted.append((self._start_s, {r.request_id: self._stage(r) for r in scheduler.requests.values()}))

    def _stage(self, request: Any) -> str:
        if request.status.name == "RUNNING":
            # How vLLM itself knows whom to pass over.
            passed_over = request.next_decode_eligible_step > self._engine.scheduler.current_step
            return "paused_s" if passed_over else "running_s"
        return "preempted_s" if request.num_preemptions else "waiting_s"

    def of(self, request_id: str, arrival_s: float, finish_s: float) -> dict[str, float]:
        spent = dict.fromkeys(StageTimes.__slots__, 0.0)
        at_s, stage = arrival_s, "waiting_s"
        for start_s, stages in self._noted:
            if request_id in stages:
                spent[stage] += min(start_s, finish_s) - at_s
                at_s, stage = min(start_s, finish_s), stages[request_id]
        spent[stage] += finish_s - at_s
        return spent


@pytest.mark.vllm
@pytest.mark.parametrize("policy", [None, "chaos", PauseLeader()])
def test_stages_add_up_to_the_latency_and_are_those_of_every_step(
    build: Build, request_of: RequestOf, policy: Policy | str | None
) -> None:
    engine = build(policy, kv_blocks=18)
    account = Account(engine)
    log = engine.run([request_of(f"r{i}", 0.03 * i, 20 + 7 * i, 70 - 4 * i) for i in range(9)])
    seen = dict.fromkeys(StageTimes.__slots__, 0.0)
    for request in log.requests:
        assert request.stages is not None and request.finish_s is not None
        arrival_s = request.request.arrival_s
        assert sum(astuple(request.stages)) == pytest.approx(request.finish_s - arrival_s, abs=1e-9)
        expected = account.of(request.request.request_id, arrival_s, request.finish_s)
        for stage in seen:
            assert getattr(request.stages, stage) == pytest.approx(expected[stage], abs=1e-9), stage
            seen[stage] += expected[stage]
    assert seen["waiting_s"] > 0.0 and seen["running_s"] > 0.0
    assert (seen["preempted_s"] > 0.0) == any(r.num_preemptions for r in log.requests)
    assert (seen["paused_s"] > 0.0) == (policy is not None)


@pytest.mark.vllm
def test_who_does_not_come_in_has_no_stages(build: Build, request_of: RequestOf) -> None:
    log = build("edf").run([request_of("long", 0.0, 300), request_of("a")])
    assert [request.stages is None for request in log.requests] == [True, False]
    assert log.token_budget == 64
