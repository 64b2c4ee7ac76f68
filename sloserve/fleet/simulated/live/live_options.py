"""Parts of a fleet in virtual time that can be left out, or changed from the live one, to measure their value."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sloserve.fleet.agent.agent import BEAT_S
from sloserve.fleet.agent.following import LOOK_S
from sloserve.fleet.agent.tenant_service import SHARE_EVERY_S
from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.gateway.instances import COMPARED
from sloserve.fleet.gateway.watch import ASK_S, ASK_SOON_S, STORE_S
from sloserve.fleet.planning.planning_task import REPLAN_S

_AT_ONCE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds between two rounds of each loop of a live fleet.

    Args:
        ask_soon_s: Seconds between two rounds while requests wait for an instance.
        share_s: Seconds between two exchanges of tenants' service with an engine.
    """

    beat_s: float = BEAT_S
    report_s: float = STORE_S
    plan_s: float = REPLAN_S
    look_s: float = LOOK_S
    ask_s: float = ASK_S
    ask_soon_s: float = ASK_SOON_S
    share_s: float = SHARE_EVERY_S


LIVE: Final = Periods()
AT_ONCE: Final = Periods(*(_AT_ONCE_S,) * 7)
"""Periods of a rival without a gateway, a store and processes that look at it."""


class Balance(StrEnum):
    """Ways to assign request groups to instances. In any case the planner orders the groups of each instance."""

    PLANNED = "true"
    """The planner assigns groups, by when they would be complete."""
    IN_TURN = "false"
    """Each group goes to the next instance that can serve it (round robin)."""
    RANDOM = "random"
    """Each group goes to a random instance, drawn from the seed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Parts of a fleet that can be left out or changed.

    Args:
        pull: Whether instances take no more requests than they have places; else they take their whole queue of the
            active model.
        preempt: Whether running lines give way to a new first group that is due earlier, under planners for which
            they do.
        swap: Whether engines have swap space. It keeps KV of requests that leave with their model, or give way; KV of
            lines is never kept.
        warm: Whether weights are kept in host memory.
        balance: The way in which groups are assigned to instances.
        prefixes: Whether streams go where their prefix should be cached, as far as that pays.
        gateways: Number of gateways; each stream comes through one of them, drawn from the seed.
        reported_prefixes: Whether gateways learn from agents which prompts came through other gateways.
        compared: Most instances that a gateway compares for one stream, see
            :class:`~sloserve.fleet.gateway.instances.Instances`; inf for all.
        one_queue: Whether all requests wait in the queue of lines; else requests of the most urgent class pass it as
            streams.
        park: Whether, under ``one_queue``, requests leave at once when their model does; else they get time to end.
        share: Whether shares of tenants, if the settings have any, hold over all instances and in the gateway; else
            each engine keeps them alone.
        periods: Seconds between the rounds of the loops.
    """

    pull: bool = True
    preempt: bool = True
    swap: bool = True
    warm: bool = True
    balance: Balance = Balance.PLANNED
    prefixes: bool = True
    gateways: int = 1
    reported_prefixes: bool = True
    compared: float = COMPARED
    one_queue: bool = False
    park: bool = False
    share: bool = True
    periods: Periods = LIVE

    def places(self, max_num_seqs: int) -> EnginePlaces:
        """Return the places of an engine that runs ``max_num_seqs`` requests at once.

        With one queue no more wait in the engine: a later request may be more urgent, and the engine would not know.
        """
        if not self.pull:
            return EnginePlaces(max_num_seqs, queued=math.inf)
        return EnginePlaces(max_num_seqs, queued=1.0, streams=0.0) if self.one_queue else EnginePlaces(max_num_seqs)
