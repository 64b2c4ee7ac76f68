"""A function that is called again and again in an event loop, as long as it asks for it."""

import asyncio
import logging

import pytest

from sloserve.vllm_plugin.server.recurring import Recurring
from tests import bounded


async def calls_of(outcomes: list[bool | Exception]) -> int:
    """Return how often a function with these outcomes was called when no further call is set."""
    made, ended = 0, asyncio.Event()

    def look() -> bool:
        nonlocal made
        outcome, made = outcomes[made], made + 1
        if made == len(outcomes):
            ended.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    recurring = Recurring(look, 0.0, after_fault_s=0.01)
    recurring.begin()
    recurring.begin()  # one call is set already
    await ended.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    return made


def test_a_function_is_called_until_it_asks_for_no_more() -> None:
    assert bounded.run(calls_of([True, True, False])) == 3


def test_a_call_that_raises_is_logged_and_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert bounded.run(calls_of([True, ValueError("at fault"), False])) == 3
    assert "at fault" in caplog.text


def test_outside_of_a_loop_nothing_is_called_and_a_later_begin_counts() -> None:
    made: list[int] = []

    def look() -> bool:
        made.append(1)
        return False

    recurring = Recurring(look, 0.0)
    recurring.begin()

    async def serve() -> None:
        recurring.begin()
        while not made:
            await asyncio.sleep(0)

    bounded.run(serve())
    assert made == [1]
