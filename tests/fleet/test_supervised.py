"""What goes wrong in the rounds of a loop: it is logged once, counted, and never ends the loop."""

import asyncio
import logging
from itertools import pairwise

import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.supervised import MOST_PAUSE_S, Faults, supervised
from tests.client.virtual_time import run


def rounds(errors: list[Exception | None], every_s: float) -> list[float]:
    """Seconds between the rounds of a loop of which the first end with these errors, and some more with none."""
    begun_s: list[float] = []

    async def turn() -> None:
        begun_s.append(asyncio.get_running_loop().time())
        error = errors[len(begun_s) - 1] if len(begun_s) <= len(errors) else None
        if error is not None:
            raise error

    async def loop() -> None:
        looping = asyncio.create_task(supervised("nothing is planned", turn, every_s))
        while len(begun_s) < len(errors) + 3:
            await asyncio.sleep(every_s)
        looping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looping

    run(loop())
    return [round(after - before, 3) for before, after in pairwise(begun_s)]


def test_faults_in_a_row_are_tried_again_ever_later_and_logged_with_their_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert rounds([KeyError("a")] * 5, 1.0) == [1.0, 2.0, 4.0, MOST_PAUSE_S, MOST_PAUSE_S, 1.0, 1.0]
    assert [bool(one.exc_info) for one in caplog.records] == [True, False, False], "at the first, second and fourth"
    assert all("nothing is planned" in one.message for one in caplog.records)


def test_no_pause_is_longer_than_the_loops_own_where_that_is_long() -> None:
    assert rounds([KeyError("a")] * 3, 10.0) == [10.0] * 5


def test_a_store_that_is_away_is_asked_as_often_as_ever_and_logged_as_it_goes_and_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert rounds([StoreAway("gone"), StoreAway("gone"), StoreAway("gone")], 1.0) == [1.0] * 5
    said = [(one.levelname, bool(one.exc_info)) for one in caplog.records]
    assert said == [("WARNING", False), ("INFO", False)]


def test_faults_before_a_store_went_away_do_not_keep_it_from_being_asked() -> None:
    assert rounds([KeyError("a")] * 3 + [StoreAway("gone")] * 3, 1.0) == [1.0, 2.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_faults_are_told_apart_by_the_place_that_raises_them(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults("nothing is planned")
    for _ in range(3):
        with faults:
            raise KeyError("one")
        with faults:
            raise KeyError("other")
    assert faults.count == 6
    assert [one.message.count("'one'") for one in caplog.records if one.exc_info] == [1, 0]


def test_a_round_that_is_cancelled_ends_its_loop() -> None:
    faults = Faults("nothing is planned")
    with pytest.raises(asyncio.CancelledError), faults:
        raise asyncio.CancelledError
    assert faults.count == 0
