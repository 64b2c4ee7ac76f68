"""Lines that give way to the first group of the queue: which ones, and what becomes of them."""

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sloserve.core.clock import SystemClock
from sloserve.fleet.agent.claims import ClaimedLine, HeldClaim, InstanceWork, LineClaims, Pull
from sloserve.fleet.agent.giving_way import (
    MARGIN_S,
    MOST_TIMES,
    GivingWay,
    LineInEngine,
    lines_to_preempt,
    running_groups,
)
from sloserve.fleet.agent.line_output import LineOutput
from sloserve.fleet.agent.making_room import make_room_for_head
from sloserve.fleet.agent.orders import Orders
from sloserve.fleet.planner_rule import RULES, preempts_lines
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import Claim, Claimed
from sloserve.scheduler.virtual_queues.fleet_operations import Queued
from tests import bounded
from tests.fleet.agent.fake_endpoint import FakeEndpoint
from tests.fleet.agent.test_pulling import COMPLETIONS, host, run
from tests.fleet.stand_in.engine import reply

LATER = LineInEngine("a", 1, 1_000.0, 0.0, 0, True)
FOR_2 = GivingWay(2, 100.0, frozenset({1}))


def test_groups_give_way_from_when_another_group_is_first() -> None:
    before = GivingWay().after(Orders(head=2, head_due_s=9.0, preempt=(1, 3)), {None}, preempts=True)
    assert before == GivingWay(2, 9.0, frozenset({1, 3}))
    assert before.after(Orders(head=2, preempt=(7,)), preempts=True) == before
    held = before.after(Orders(head=1), {2}, preempts=True)
    assert held == before, "its last lines are claimed, and no plan names it any more"
    assert before.after(Orders(head=1, head_due_s=8.0), {2}, preempts=True).head == 1
    assert before.after(Orders(), preempts=True) == GivingWay()
    assert [one for one in ("search", "kept", *RULES) if preempts_lines(one)] == ["search", "kept"]


def test_no_group_gives_way_any_more_once_the_plan_evicts_no_lines() -> None:
    """The planner dies, or another one takes over, while the first group stays the same."""
    stopped = FOR_2.after(Orders(head=2), preempts=False)
    assert stopped == GivingWay(2, 100.0)
    assert FOR_2.after(Orders(head=1), {2}, preempts=False) == GivingWay(2, 100.0)
    assert stopped.after(Orders(head=2, preempt=(1,)), preempts=True) == stopped, "it was the first before"


def test_groups_that_run_are_due_with_their_last_line() -> None:
    lines = [LATER, LATER._replace(id="b", due_s=2_000.0), LATER._replace(id="c", group=None)]
    assert running_groups(lines, "m") == [Queued(1, "m", 2_000.0)]


@pytest.mark.parametrize(
    "stays",
    [
        LATER._replace(group=3),
        LATER._replace(group=None),
        LATER._replace(due_s=100.0 + MARGIN_S - 0.1),
        LATER._replace(times=MOST_TIMES),
        LATER._replace(can_leave=False),
    ],
)
def test_a_line_stays_if_its_group_is_not_later_or_it_would_lose_something(stays: LineInEngine) -> None:
    assert lines_to_preempt(FOR_2, [stays], 1) == []


def test_the_latest_lines_leave_first_and_only_if_a_place_becomes_free() -> None:
    lines = [LATER, LATER._replace(id="b", arrival=1.0), LATER._replace(id="c", due_s=math.inf)]
    assert lines_to_preempt(FOR_2, lines, 2) == ["c", "b"]
    assert lines_to_preempt(FOR_2, lines, 1, over=1) == ["c", "b"], "streams have one place of lines"
    assert lines_to_preempt(FOR_2, lines, 1, over=3) == []


def test_a_complete_output_stays_until_its_result_is_there() -> None:
    """It left with all its tokens, and the next engine was asked for one more."""
    claimed = Claimed("x", 1, b'{"model": "m", "prompt": "p", "max_tokens": 2}', COMPLETIONS, "batch", None)
    line = ClaimedLine(claimed, "m", math.inf, LineOutput.of(claimed), is_sent=True)
    assert line.output is not None
    line.output.add(b'data: {"choices": [{"text": "a", "token_ids": [97], "prompt_token_ids": [112]}]}\n')
    assert line.leaves_well
    line.output.add(b'data: {"choices": [{"text": "b", "token_ids": [98]}]}\n')
    assert not line.leaves_well, "it has all its tokens, although the event that says so has not come"
    line.output.add(b'data: {"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]}\n')
    assert not line.leaves_well


def _claim(id: int, *lines: str) -> Claim:
    return Claim(id, tuple(Claimed(line, 1, b"{}", COMPLETIONS, "batch", None) for line in lines))


def _claims(requests: Any, executor: ThreadPoolExecutor) -> LineClaims:
    return LineClaims(requests, "a", SystemClock(), executor, 30.0)


def _work(claims: LineClaims, *lines: str) -> InstanceWork:
    """Return work of an instance with these lines of group 1 in its engine, in claim 1."""
    work = InstanceWork(is_open=True, order=[Pull(2, "m"), Pull(1, "m")], giving_way=FOR_2)
    held = work.claims[1] = HeldClaim.of(_claim(1, *lines), Lease(SystemClock(), 30.0), "m", 0.0, 1)
    for line in held.lines.values():
        line.task = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
    return work


def test_no_line_leaves_if_places_become_free_while_lines_of_the_first_group_are_claimed() -> None:
    """Both lines of the first group had a place, and both running lines left."""

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            requests = Mock()
            requests.claim.return_value = _claim(2, "first", "second")
            claims = _claims(requests, executor)
            work = _work(claims, "x", "y")
            assert await make_room_for_head(claims, work, "m", 0), "the report is read again"
            assert sorted(line.claimed.id for line in work.lines) == ["first", "second", "x", "y"]
            assert not requests.give_back_some.called
            assert not await make_room_for_head(claims, work, "m", 2)
            assert await make_room_for_head(claims, work, "m", 0), "no place has become free"
            assert sorted(line.claimed.id for line in work.lines) == ["first", "second"]

    run(scenario())


def test_lines_that_were_never_sent_go_back_as_if_they_had_not_been_claimed() -> None:
    """After three rounds a line that no engine ever had could not be evicted any more."""

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            requests = Mock()
            claims = _claims(requests, executor)
            work = _work(claims, "runs", "waits", "was refused by a busy engine")
            first, *others = work.lines
            first.is_sent, others[1].is_sent = True, True
            for line in others:
                line.task = None
            await claims.give_back_lines(work, [(work.claims[1], line) for line in work.lines])
            await bounded.until(lambda: not claims.ending)
            requests.give_back_some.assert_called_once_with(
                1, dict.fromkeys([first.claimed.id, *(line.claimed.id for line in others)]), ["waits"]
            )
            work = _work(claims, "runs", "waits")
            work.lines[1].task = None
            await claims.give_back(work)
            requests.give_back.assert_called_once_with(1, {}, ["waits"])

    run(scenario())


def test_free_places_do_not_wait_until_the_store_knows_which_lines_have_left() -> None:
    """While the store was away, the places of lines that had left stayed empty for up to 30 s."""

    async def scenario() -> None:
        is_back = {"x": threading.Event(), "y": threading.Event()}
        with ThreadPoolExecutor(2) as executor:
            requests = Mock()
            requests.give_back_some.side_effect = lambda _, progress, *__: is_back[min(progress)].wait(30.0)
            claims = _claims(requests, executor)
            work = _work(claims, "x", "y")
            try:
                for line in work.lines:
                    await claims.give_back_lines(work, [(work.claims[1], line)])
                assert len(claims.reporting) == 2
                is_back["x"].set()
                await bounded.until(lambda: len(claims.reporting) == 1)
                assert 1 in claims.ending, "until the last report is over"
                is_back["y"].set()
                await bounded.until(lambda: not claims.reporting and not claims.ending)
                assert requests.give_back_some.call_count == 2
            finally:
                for event in is_back.values():
                    event.set()

    run(scenario())


def test_a_claim_of_which_lines_leave_is_not_given_back_by_a_renewal_meanwhile() -> None:
    """The renewal found a claim that no instance had any more, and gave its lines back without their tokens."""

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            claims = _claims(Mock(), executor)
            work = _work(claims, "x")
            (line,), may_end = work.lines, asyncio.Event()

            async def ends_slowly() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    await may_end.wait()

            line.task = asyncio.create_task(ends_slowly())
            await asyncio.sleep(0)
            leaving = asyncio.create_task(claims.give_back_lines(work, [(work.claims[1], line)]))
            await asyncio.sleep(0)
            assert not work.claims and 1 in claims.ending
            may_end.set()
            await leaving
            await bounded.until(lambda: not claims.ending)

    run(scenario())


@pytest.mark.slow
def test_lines_of_a_later_group_leave_for_the_first_and_continue_with_their_tokens(tmp_path: Path) -> None:
    """All places are taken by lines that do not end before lines of the first group have."""

    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=4)
        engine, short = door.engine, asyncio.Event()
        step = engine._step

        async def step_or_wait() -> None:
            if engine.computed >= 4 * 6:  # about six of each line
                await short.wait()
            await step()

        engine._step = step_or_wait  # type: ignore[method-assign]
        async with host(tmp_path, door) as a:
            a.accept(6, group=1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: engine.computed >= 4 * 6)
            a.accept(2, group=2, body={"max_tokens": 3})
            assert [line.group for line in a.pulling.running("a/0")] == [1] * 4
            a.pulling.follow("a/0", [Pull(2, "m"), Pull(1, "m")], FOR_2)
            await bounded.until(lambda: sum(h["x-request-id"].startswith("2.") for _, _, h in door.asked) == 2)
            assert engine.aborted == 2 and len(engine.running) == 4
            short.set()
            results = await a.until_ended(8)
            assert results == {
                **{f"1.{i:03}": reply("m", f"p{i} ", 20) for i in range(6)},
                **{f"2.{i:03}": reply("m", f"p{i} ", 3) for i in range(2)},
            }
            continued = [body["max_tokens"] for _, body, h in door.asked if h["x-request-id"] in ("1.002", "1.003")]
            first, second, *whole = sorted(continued)
            assert whole == [20, 20] and 0 < first <= second < 20, "from the tokens that they had"

    run(scenario())


@pytest.mark.slow
def test_no_line_leaves_for_a_group_in_which_nothing_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        door = FakeEndpoint("a/0", "m", room=2, step_s=10.0)
        async with host(tmp_path, door) as a:
            a.accept(2, group=1)
            a.pulling.follow("a/0", [Pull(1, "m")])
            await bounded.until(lambda: len(door.asked) == 2)
            work = a.pulling._work["a/0"]
            a.pulling.follow("a/0", [Pull(2, "m"), Pull(1, "m")], FOR_2)
            await bounded.until(lambda: not work.wake.is_set())
            assert len(door.engine.running) == 2 and door.engine.aborted == 0

    run(scenario())
