"""What an instance does for its queue."""

import math
from dataclasses import replace

from sloserve.core.spans import Phase
from sloserve.fleet.agent.orders import Agenda, Orders
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.scheduler.virtual_queues.fleet_operations import Queued

SERVING = InstanceReport(
    "a/0", "h100", Phase.SERVING, {"m": ModelState.ACTIVE, "n": ModelState.WARM}, active_for_s=60.0
)
AGENDA = Agenda("m", 10.0, {"m": 15, "n": 15}, 15)


def test_an_empty_instance_begins_with_the_model_of_its_file() -> None:
    empty = InstanceReport("a/0", "h100", Phase.EMPTY, {"m": ModelState.COLD, "n": ModelState.COLD})
    assert AGENDA.orders(empty, []) == Orders(warm=("m",), switch_to="m")
    assert replace(AGENDA, first=None).orders(empty, []) == Orders()


def test_a_model_that_just_came_stays_and_is_pulled_for_until_the_next_may_come() -> None:
    queue = [Queued(7, "n", 1.0), Queued(-3, "m", 2.0), Queued(8, "m", 3.0), Queued(9, "gone", 4.0)]
    assert AGENDA.orders(SERVING, queue).switch_to == "n"
    early = AGENDA.orders(replace(SERVING, active_for_s=9.0), queue, [Queued(5, "m", 9.0), *queue])
    assert (early.switch_to, early.head) == (None, 7)
    assert [one.ref for one in early.pull] == [8, 5], "it helps the others of its model"


def test_the_model_of_parked_streams_comes_back_once_nothing_else_waits() -> None:
    """Without a request that asked for it, no plan ever named it, and its streams waited for ever."""
    parked = replace(SERVING, parked={"n": 2})
    assert AGENDA.orders(parked, [Queued(8, "m", math.inf)]).switch_to is None
    assert AGENDA.orders(parked, []) == Orders(warm=("n", "m"), switch_to="n")
