"""How many lines an instance takes and claims, and when those of a model that leaves are aborted."""

import pytest

from sloserve.core.spans import Phase
from sloserve.fleet.agent.claims import lines_to_claim, may_leave, places_for_lines
from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.contract.reports import InstanceReport


def test_lines_leave_places_to_streams() -> None:
    places = EnginePlaces(8)
    assert (places.all, places.for_streams) == (12, 2)
    assert (places.left(10), places.left(10, durable=True), places.left(13)) == (2, 0, 0)
    report = InstanceReport("a/0", "h100", Phase.SERVING, {}, room=places.left(3), room_for_streams=places.for_streams)
    assert places_for_lines(report, on_their_way=4) == places.left(3 + 4, durable=True)


@pytest.mark.parametrize(
    ("places", "at_hand", "claimed"),
    [(0, 0, 0), (-3, 0, 0), (3, 0, 16), (3, 18, 16), (3, 19, 0), (40, 0, 40), (400, 0, 64)],
)
def test_some_more_lines_are_claimed_than_are_sent_now(places: int, at_hand: int, claimed: int) -> None:
    assert lines_to_claim(places, at_hand) == claimed


def test_lines_are_aborted_at_once_unless_something_else_is_awaited() -> None:
    assert may_leave(True, True, 0) and may_leave(True, False, 5)
    assert not may_leave(True, True, 1) and not may_leave(False, True, 0)
