"""Prefix caches in a fleet: dispatchers send a conversation back to where it was, and models that sleep forget."""

from collections.abc import Sequence

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.fleet.simulated.log import FleetLog
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
