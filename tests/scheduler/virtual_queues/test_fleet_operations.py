"""What follows for an instance from the order of its virtual queue."""

import math
from typing import Any

from sloserve.scheduler.virtual_queues.fleet_operations import FleetOperations, Queued, fleet_operations

SIZES = {"chat": 16, "code": 16, "tail": 16, "huge": 140}


def asked(queue: list[Queued], **change: Any) -> FleetOperations:
    given: dict[str, Any] = {"active": "chat", "last_head": None, "running": [], "warm": (), "host_bytes": 32}
    return fleet_operations(queue, weights_bytes=SIZES, **{**given, **change})


CHAT, MORE_CHAT = Queued(1, "chat", 10.0), Queued(2, "chat", 90.0)
CODE, TAIL = Queued(3, "code", 50.0), Queued(4, "tail", math.inf)


def test_pulls_from_the_head_up_to_the_first_group_of_another_model() -> None:
    found = asked([CHAT, MORE_CHAT, CODE, Queued(5, "chat", 99.0)])
    assert (found.pull, found.switch_to, found.park) == ((1, 2), None, ())
    assert asked([]) == FleetOperations()


def test_a_head_of_another_model_ends_pulling_and_parks_what_runs() -> None:
    found = asked([CODE, CHAT], running=[CHAT, MORE_CHAT])
    assert (found.pull, found.preempt, found.park, found.switch_to) == ((), (), (1, 2), "code")
    assert asked([CODE], active=None).switch_to == "code"


def test_a_new_head_makes_later_ones_give_way_the_latest_first_and_once() -> None:
    running = [MORE_CHAT, Queued(7, "chat", 5.0), Queued(8, "chat", math.inf), Queued(9, "chat", 200.0)]
    assert asked([CHAT], running=running, last_head=2).preempt == (8, 9, 2)
    assert asked([CHAT], running=running, last_head=1).preempt == ()
    assert asked([CHAT], running=[CHAT]).preempt == ()


def test_models_further_back_are_warm_in_the_order_of_the_queue() -> None:
    queue = [CHAT, TAIL, CODE, Queued(5, "huge", math.inf)]
    found = asked(queue, warm=("huge",))
    assert (found.warm, found.drop) == (("tail", "code"), ("huge",))
    # A model that leaves stays warm, before those that nothing asks for.
    left = asked([CODE], warm=("code", "tail"))
    assert (left.switch_to, left.warm, left.drop) == ("code", ("chat", "tail"), ())
    assert asked([CODE], warm=("code", "tail"), host_bytes=16).drop == ("tail",)
    assert asked([CHAT], warm=("tail",), host_bytes=0).drop == ("tail",)
