"""What of a fleet in virtual time can be left out, or is other than in a live one, to see what it is worth."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sloserve.fleet.agent.agent import BEAT_S
from sloserve.fleet.agent.engine_places import EnginePlaces
from sloserve.fleet.agent.following import LOOK_S
from sloserve.fleet.gateway.watch import ASK_S, ASK_SOON_S, STORE_S
from sloserve.fleet.planning.planning_task import REPLAN_S

_AT_ONCE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds between two rounds of each loop of a live fleet. ask_soon_s: while requests wait for an instance."""

    beat_s: float = BEAT_S
    tell_s: float = STORE_S
    plan_s: float = REPLAN_S
    look_s: float = LOOK_S
    ask_s: float = ASK_S
    ask_soon_s: float = ASK_SOON_S


LIVE: Final = Periods()
AT_ONCE: Final = Periods(*(_AT_ONCE_S,) * 6)
"""Periods of a rival without a gateway, a store and processes that look at it."""


class Balance(StrEnum):
    """Who assigns request groups to instances. Each instance orders its own as the planner does, in any case."""

    PLANNED = "true"
    """The planner, by when they would be complete."""
    IN_TURN = "false"
    """No rule: one after another to the next instance that can serve it (round robin)."""
    RANDOM = "random"
    """Chance, drawn from the seed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Args:
    pull: instances take no more than they have places; else all that their queue has of the active model.
    preempt: lines that run give way to a new first group that is due earlier.
    swap: engines have swap space, and KV of requests that leave with their model, or give way, is kept there; that of
        lines never is.
    warm: weights are kept in host memory.
    balance: who assigns groups to instances.
    prefixes: streams go where their prefix should be cached, as far as that pays.
    one_queue: no request goes past the queue of lines; else those of the most urgent class do, as streams.
    park: under one_queue, requests leave at once when their model does; else they are given time to end.
    periods: of the loops.
    """

    pull: bool = True
    preempt: bool = False
    swap: bool = True
    warm: bool = True
    balance: Balance = Balance.PLANNED
    prefixes: bool = True
    one_queue: bool = False
    park: bool = False
    periods: Periods = LIVE

    def places(self, max_num_seqs: int) -> EnginePlaces:
        """What an engine takes that runs so many requests at once. In one queue no more wait in it: what comes later
        may be more urgent, and it is not the engine that knows.
        """
        if not self.pull:
            return EnginePlaces(max_num_seqs, queued=math.inf)
        return EnginePlaces(max_num_seqs, queued=1.0, streams=0.0) if self.one_queue else EnginePlaces(max_num_seqs)
