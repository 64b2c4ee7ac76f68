"""Counts of running rows that are followed from step to step, beside those that an engine keeps itself."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.engine.step_counts import StepCounts

COUNTS = ("computed_tokens", "in_flight_tokens", "output_tokens")


class Engine:
    """Requests by id, each a dict of its counts and its slot, and steps that may be in flight."""

    def __init__(self, running: int) -> None:
        self.rows = Rows(frozenset(COLUMNS))
        self.counts = StepCounts(self.rows)
        self.requests: dict[str, dict[str, int]] = {}
        self.sampled: dict[int, dict[str, list[int]]] = {}
        self.read: list[int] = []
        for i in range(running):
            self.add(f"r{i}")

    def add(self, name: str) -> int:
        slot = self.rows.add(prompt_tokens=10)
        self.rows.state[slot] = State.RUNNING
        self.requests[name] = dict.fromkeys(COUNTS, 0) | {"slot": slot, "computed_tokens": 10, "output_tokens": 1}
        return slot

    def schedule(self, tokens_of: dict[str, int], prompts: tuple[str, ...] = ()) -> Any:
        step = SimpleNamespace(tokens_of=tokens_of)
        for name, tokens in tokens_of.items():
            self.requests[name]["computed_tokens"] += tokens
            self.requests[name]["in_flight_tokens"] += tokens
        slots = {name: self.requests[name]["slot"] for name in prompts}
        self.counts.scheduled(step, tokens_of, sum(tokens_of.values()), slots)
        return step

    def finish(self, step: Any, without: tuple[str, ...] = ()) -> None:
        sampled = [[] if name in without else [7] for name in step.tokens_of]
        for name, tokens in zip(step.tokens_of, sampled, strict=True):
            if name in self.requests:
                self.requests[name]["in_flight_tokens"] -= step.tokens_of[name]
                self.requests[name]["output_tokens"] += len(tokens)
        index_of = {name: i for i, name in enumerate(step.tokens_of)}
        self.counts.produced(step, sampled, index_of)

    def end(self, name: str) -> None:
        self.counts.left(name, None)
        self.rows.free(self.requests.pop(name)["slot"])

    def preempt(self, name: str) -> None:
        slot = self.requests[name]["slot"]
        self.counts.left(name, slot)
        self.rows.state[slot] = State.PREEMPTED
        self.requests[name]["computed_tokens"] = 0

    def look(self) -> int:
        """How many rows had to be read so that all are right."""
        running = self.rows.slots_in(State.RUNNING)
        slots = self.counts.to_read(running)
        by_slot = {request["slot"]: request for request in self.requests.values()}
        for slot in slots.tolist():
            for name in COUNTS:
                getattr(self.rows, name)[slot] = by_slot[slot][name]
        for name in COUNTS:
            expected = [by_slot[slot][name] for slot in running.tolist()]
            np.testing.assert_array_equal(getattr(self.rows, name)[running], expected, name)
        return int(slots.size)


@pytest.fixture
def engine() -> Engine:
    """Three requests that decode, and one step behind them after which all was read."""
    found = Engine(3)
    found.finish(found.schedule(ones("r0", "r1", "r2")))
    assert found.look() == 3
    return found


def ones(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


def test_nothing_is_taken_for_known_before_the_first_step() -> None:
    engine = Engine(2)
    assert [engine.look(), engine.look()] == [2, 2]


def test_steps_of_decodes_are_followed_with_two_in_flight(engine: Engine) -> None:
    first = engine.schedule(ones("r0", "r1", "r2"))
    second = engine.schedule(ones("r2", "r1", "r0"))
    assert engine.look() == 0
    engine.finish(first)
    assert engine.look() == 0
    engine.finish(second)
    assert engine.look() == 0


def test_only_the_prompts_of_a_step_are_read(engine: Engine) -> None:
    engine.add("new")
    step = engine.schedule(ones("r0", "r1", "r2") | {"new": 5}, prompts=("new",))
    assert engine.look() == 1
    after = engine.schedule(ones("r0", "r1", "r2", "new"))
    engine.finish(step, without=("new",))
    assert engine.look() == 1
    engine.finish(after)
    assert engine.look() == 0


def test_a_prompt_that_a_step_leaves_out_stops_nothing(engine: Engine) -> None:
    engine.add("new")
    engine.finish(engine.schedule(ones("r0", "r1", "r2"), prompts=("new",)))
    assert engine.look() == 1


@pytest.mark.parametrize("tokens_of", [ones("r0", "r1"), {"r0": 2, "r1": 1, "r2": 1}])
def test_a_step_without_one_token_for_each_decode_has_all_read(engine: Engine, tokens_of: dict[str, int]) -> None:
    step = engine.schedule(tokens_of)
    assert engine.look() == 3
    engine.finish(step)
    assert engine.look() == 3


def test_a_decode_without_a_token_has_all_read(engine: Engine) -> None:
    engine.finish(engine.schedule(ones("r0", "r1", "r2")), without=("r1",))
    assert engine.look() == 3


@pytest.mark.parametrize("brings_one", [True, False])
def test_a_request_that_ended_in_flight_may_bring_a_token(engine: Engine, brings_one: bool) -> None:
    step = engine.schedule(ones("r0", "r1", "r2"))
    taken = engine.requests["r1"]["slot"]
    engine.end("r1")
    assert engine.add("next") == taken
    engine.finish(step, without=() if brings_one else ("r1",))
    rows = engine.rows
    assert (rows.in_flight_tokens[taken], rows.output_tokens[taken]) == (0, 0)  # its row is another's
    engine.finish(engine.schedule(ones("r0", "r2") | {"next": 4}, prompts=("next",)))
    assert engine.look() == 1


def test_a_preempted_request_is_read_again_and_no_other(engine: Engine) -> None:
    step = engine.schedule(ones("r0", "r1", "r2"))
    engine.preempt("r1")
    after = engine.schedule(ones("r0", "r2"))
    assert engine.look() == 0
    engine.finish(step)
    engine.rows.state[engine.requests["r1"]["slot"]] = State.RUNNING
    again = engine.schedule(ones("r0", "r2") | {"r1": 12}, prompts=("r1",))
    assert engine.look() == 1
    engine.finish(after)
    engine.finish(again)
    assert engine.look() == 1


def test_results_of_a_step_that_nobody_knows_have_all_read(engine: Engine) -> None:
    step = engine.schedule(ones("r0", "r1", "r2"))
    engine.counts.lost()
    assert [engine.look(), engine.look()] == [3, 3]
    after = engine.schedule(ones("r0", "r1", "r2"))
    assert [engine.look(), engine.look()] == [3, 0]
    engine.finish(step)
    assert engine.look() == 3
    engine.finish(after)
    assert engine.look() == 0


def test_what_nobody_asks_for_is_not_kept_for_ever(engine: Engine) -> None:
    engine.add("new")
    for _ in range(engine.rows.capacity + 2):
        engine.finish(engine.schedule(ones("r0", "r1", "r2") | {"new": 5}, prompts=("new",)), without=("new",))
    assert [engine.look(), engine.look()] == [4, 0]
