"""Prefix caches in a fleet: dispatchers send a conversation back to where it was, and models that sleep forget."""

from collections.abc import Sequence

import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.log import FleetLog
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.closed_loop import Source
from sloserve.sim.model.engine import ModelEngine
from tests.fleet.simulated.fleets import fleet_of, request, run

pytestmark = pytest.mark.slow  # each runs whole fleets


def turn(name: str, arrival_s: float, conversation: int, prompt_tokens: int, model: str = "a") -> WorkloadRequest:
    ids = tuple(range(100 * conversation, 100 * conversation + -(-prompt_tokens // 512)))
    return request(name, model, arrival_s, prompt_tokens=prompt_tokens, prefix_ids=ids)


def cached(log: FleetLog, requests: Sequence[WorkloadRequest]) -> int:
    """Tokens of prompts that were not computed."""
    return sum(r.prompt_tokens + r.output_tokens for r in requests) - int(log.run.steps.scheduled_tokens.sum())


TURNS = [turn("x", 0.0, 1, 3000), turn("y", 0.01, 2, 3000), turn("y2", 5.0, 2, 3400), turn("x2", 5.01, 1, 3400)]
"""x goes to the first instance, y to the second; when they go on, the first to ask finds both idle."""


@pytest.mark.parametrize("name", ["edf{}/stock", "on-demand{}"])
def test_a_conversation_goes_back_to_where_it_was(name: str) -> None:
    fleet = fleet_of("a", devices=2)
    assert cached(run(fleet, name.format(""), TURNS), TURNS) == 2 * 2992  # whole blocks of 16
    assert cached(run(fleet, name.format(":prefixes=false"), TURNS), TURNS) < 2992


def test_a_model_that_sleeps_forgets_its_prefixes() -> None:
    stays = [turn("x", 0.0, 1, 3000), turn("x2", 5.0, 1, 3400)]
    sleeps = [stays[0], request("b", "b", 1.0), turn("x2", 30.0, 1, 3400)]
    fleet = fleet_of("ab", devices=1)
    assert cached(run(fleet, "collate/stock", stays), stays) == 2992
    assert cached(run(fleet, "collate/stock", sleeps), sleeps) == 0


class Conversations(Source):
    """Four conversations of six turns: each comes two seconds after the one before, and repeats its prompt."""

    def __init__(self) -> None:
        self.times_s: dict[str, float] = {}

    def first(self) -> list[WorkloadRequest]:
        return [self._turn(conversation, 0, 0.01 * conversation) for conversation in range(4)]

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> list[WorkloadRequest]:
        assert outcome is Outcome.COMPLETED and now_s >= request.arrival_s
        self.times_s[request.request_id] = now_s
        conversation, number = map(int, request.request_id.split("."))
        return [self._turn(conversation, number + 1, now_s + 2.0)] if number < 5 else []

    def _turn(self, conversation: int, number: int, arrival_s: float) -> WorkloadRequest:
        return turn(f"{conversation}.{number}", arrival_s, conversation, 2048 + 1024 * number)


def test_calls_that_follow_others_go_where_those_were_through_whichever_gateway_they_come() -> None:
    hits = {}
    for reported in (True, False):
        source = Conversations()
        dispatcher = LiveFleet("edf", Options(gateways=3, reported_prefixes=reported))
        run = FleetRun(fleet_of("a", devices=4), dispatcher, ModelEngine, policy=None, prefix_caching=True)
        log = run.run_source(source).run.requests
        assert len(log) == 24 and len(source.times_s) == 24
        assert [one.request.arrival_s for one in log] == sorted(one.request.arrival_s for one in log)
        for one in log[4:]:
            before = f"{one.request.request_id[0]}.{int(one.request.request_id[2:]) - 1}"
            assert one.request.arrival_s == source.times_s[before] + 2.0
        hits[reported] = sum(one.cached_tokens for one in log)
    # A call goes elsewhere now and then, where that costs less than to wait.
    assert hits[True] > 0.9 * 4 * sum(2048 + 1024 * number for number in range(5))
    assert hits[True] > 1.2 * hits[False]
