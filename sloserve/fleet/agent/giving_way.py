"""Choice of the running lines of an instance that give way to the first group of its queue (request eviction).

When another group becomes the first of the queue, lines of groups that are due later may leave the engine for it. They
go back into the store with their tokens. This module is synchronous, without store and clock: agents use it, and a
fleet in virtual time does the same.

Source: QLM, Sec. 5. Differs: a line gives way only to a group that is due earlier by a margin, and only a few times.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sloserve.fleet.agent.orders import Orders
from sloserve.scheduler.virtual_queues.fleet_operations import Queued

MARGIN_S: Final = 30.0
"""Seconds by which a line that gives way is due later, as under policy ``edf``."""
MOST_TIMES: Final = 3
"""Most times that one line gives way, as under policy ``edf``."""


@dataclass(frozen=True, slots=True)
class GivingWay:
    """Groups with running lines that give way.

    Args:
        head: First group of the queue, to which they give way; ``None`` if the queue is empty.
        due_s: Deadline of that group, in seconds.
        groups: References of the groups that had running lines, and were due later, when ``head`` became the first.
    """

    head: int | None = None
    due_s: float = math.inf
    groups: frozenset[int] = frozenset()

    def after(self, orders: Orders, at_hand: Collection[int | None] = (), *, preempts: bool) -> "GivingWay":
        """Return what holds after these orders: groups are added only if another group has become the first.

        Args:
            orders: Orders of the instance.
            at_hand: Groups of lines that the instance has claimed and not sent. The last first group stays the first
                while it is one of them and due no later: plans do not name a group of which every line is claimed.
            preempts: Whether running lines give way under the plan in force. If not, no group gives way.
        """
        stays = self.head is not None and self.head in at_hand and self.due_s <= orders.head_due_s
        if orders.head == self.head or stays:
            return self if preempts else replace(self, groups=frozenset())
        return GivingWay(orders.head, orders.head_due_s, frozenset(orders.preempt))


class LineInEngine(NamedTuple):
    """A line in an engine.

    Args:
        id: Id of its request.
        group: Group from which it was pulled; ``None`` if it was pulled from none.
        due_s: Deadline in seconds, by the clock of the queue's deadlines.
        arrival: Sort key, larger for a line that came later.
        times: Number of earlier claims in which it was sent to an engine, or that lapsed: at least the number of times
            that it has left an engine before its end.
        can_leave: Whether nothing of it is lost if it leaves now.
    """

    id: str
    group: int | None
    due_s: float
    arrival: float
    times: int
    can_leave: bool


def running_groups(lines: Iterable[LineInEngine], model: str) -> list[Queued]:
    """Return the groups that have running lines, each with the latest deadline of its lines."""
    dues: dict[int, float] = {}
    for line in lines:
        if line.group is not None:
            dues[line.group] = max(dues.get(line.group, line.due_s), line.due_s)
    return [Queued(group, model, due_s) for group, due_s in dues.items()]


def lines_to_preempt(giving_way: GivingWay, lines: Iterable[LineInEngine], most: int, *, over: int = 0) -> list[str]:
    """Return the ids of the lines that leave for the first group, the one that is due latest first.

    Args:
        giving_way: Groups of which lines may leave.
        lines: Lines in the engine.
        most: Number of lines of the first group that wait for a place.
        over: Number of requests that the engine has beyond the places of lines. As many more lines have to leave
            before the first place is free; if there are not enough, none leaves.
    """
    able = sorted(
        (
            (line.due_s, line.arrival, line.id)
            for line in lines
            if line.group in giving_way.groups
            and line.can_leave
            and line.due_s >= giving_way.due_s + MARGIN_S
            and line.times < MOST_TIMES
        ),
        reverse=True,
    )
    return [id for _, _, id in able[: most + over]] if len(able) > over else []
