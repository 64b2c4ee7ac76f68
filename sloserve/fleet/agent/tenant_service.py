"""Recent service of tenants in the engines of a fleet, as one agent knows it: shares hold over all instances.

Each engine reports what its tenants have had there, and is given what they have had in all others: in the other engines
of this agent, and in the instances of other agents, which report to the store. Old figures count for half with every
half-life. So an engine that sleeps or has died, and a host that is silent, matter less and less, and a store that is
away leaves each host with its own figures.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import EngineError
from sloserve.core.tenants import MOST_REPORTED, MOST_TENANTS, with_most_service
from sloserve.fleet.agent.engine import Engine
from sloserve.fleet.contract.reports import AgentReport

logger = logging.getLogger(__name__)

SHARE_EVERY_S: Final = 1.0
"""Seconds between two exchanges of figures with an engine."""
LEAST_CHANGE_S: Final = 0.01
"""Seconds by which no figure must differ from what the engine has for it to be left with that."""
_LIMIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Known:
    """Service by name in seconds, and the monotonic time at which it was known."""

    service_s: Mapping[str, float]
    at_s: float


class TenantService:
    """Recent service of tenants, by engine of this agent and by instance of the others.

    Args:
        half_life_s: Seconds in which service halves.
        clock: Clock of this process.
    """

    def __init__(self, half_life_s: float, clock: Clock) -> None:
        self._half_life_s, self._clock = half_life_s, clock
        self._here: dict[tuple[str, str], _Known] = {}  # by instance and model of the engine
        self._others: list[_Known] = []

    def reported(self, instance: str, model: str, service_s: Mapping[str, float]) -> None:
        """Take in what an engine of this agent reports now."""
        self._here[instance, model] = _Known(service_s, self._clock.monotonic_s())

    def read_others(self, reports: Iterable[tuple[AgentReport, float]]) -> None:
        """Take in the reports of all other agents, each with its age in seconds."""
        now_s = self._clock.monotonic_s()
        self._others = [
            _Known(one.service_s, now_s - age_s)
            for report, age_s in reports
            for one in report.instances
            if one.service_s
        ]

    def of_instance(self, instance: str) -> dict[str, float]:
        """Return what tenants have had in all engines of an instance, for its report, in seconds by name."""
        known = [one for (name, _), one in self._here.items() if name == instance]
        return self._summed(known, MOST_REPORTED)

    def elsewhere(self, instance: str, model: str) -> dict[str, float]:
        """Return what tenants have had in all engines of the fleet but one, in seconds by name."""
        known = [one for key, one in self._here.items() if key != (instance, model)]
        return self._summed([*known, *self._others], MOST_TENANTS)

    def decayed(self, service_s: Mapping[str, float], since_s: float) -> dict[str, float]:
        """Return service as it is ``since_s`` seconds later, in milliseconds that are whole; none where it is less."""
        kept = 0.5 ** (max(since_s, 0.0) / self._half_life_s)
        rounded = ((name, round(had_s * kept, 3)) for name, had_s in service_s.items())
        return {name: had_s for name, had_s in rounded if had_s > 0.0}

    def _summed(self, known: Iterable[_Known], most: int) -> dict[str, float]:
        found, now_s = Counter[str](), self._clock.monotonic_s()
        for one in known:
            found.update(self.decayed(one.service_s, now_s - one.at_s))
        return with_most_service(found, most)


class InstanceSharing:
    """Exchanges figures with the engines of one instance, of which one serves at a time.

    Args:
        instance: Name of the instance.
        service: Service in the fleet.
        clock: Clock of this process.
    """

    def __init__(self, instance: str, service: TenantService, clock: Clock) -> None:
        self._instance, self._service, self._clock = instance, service, clock
        self._has: tuple[Engine, _Known] | None = None
        """The engine that last got figures, and these."""
        self._is_failing = False

    async def exchange(self, engine: Engine, service_s: Mapping[str, float] | None) -> None:
        """Take in what the engine reports, and give it what tenants had elsewhere if that has changed. Never raises.

        Args:
            engine: Engine that serves.
            service_s: What it reports; ``None`` for an engine without shares, or of an older version.
        """
        if service_s is None:
            return
        self._service.reported(self._instance, engine.model.name, service_s)
        elsewhere = self._service.elsewhere(self._instance, engine.model.name)
        if not self._is_news(engine, elsewhere):
            return
        known = _Known(elsewhere, self._clock.monotonic_s())
        try:
            await engine.set_elsewhere(elsewhere, _LIMIT_S)
        except EngineError as error:
            if not self._is_failing:
                logger.warning("%s: tenants' shares hold in this engine alone for now: %s", self._instance, error)
            self._is_failing = True
            return
        self._has, self._is_failing = (engine, known), False

    def _is_news(self, engine: Engine, elsewhere: Mapping[str, float]) -> bool:
        """Return whether the figures differ from what the engine has, which has decayed since it got them."""
        has: Mapping[str, float] = {}
        if self._has is not None and self._has[0] is engine:
            known = self._has[1]
            has = self._service.decayed(known.service_s, self._clock.monotonic_s() - known.at_s)
        return any(abs(elsewhere.get(name, 0.0) - has.get(name, 0.0)) > LEAST_CHANGE_S for name in {*elsewhere, *has})
