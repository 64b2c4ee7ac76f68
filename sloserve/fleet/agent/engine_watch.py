"""The watch over the engine of one instance: one that is dead or hangs while it serves is killed, and replaced."""

import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sloserve.core.spans import Phase
from sloserve.fleet.agent.engine import Engine
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.fleet.agent.pulse import Pulse
from sloserve.fleet.agent.tenant_service import SHARE_EVERY_S, InstanceSharing
from sloserve.fleet.supervised import supervised

logger = logging.getLogger(__name__)

HEALTH_EVERY_S: Final = 1.0
PULSE_EVERY_S: Final = 5.0
_PULSES: Final = 4
"""Number of times that an engine's progress is checked within the time for which it may stop."""
_SERVES: Final = (Phase.SERVING, Phase.DRAINING)


class EngineWatch:
    """The watch over the engines of one instance, one after the other.

    Where tenants have shares, the service that an engine reports with its progress is exchanged with other instances.

    Args:
        name: Name of the instance.
        host: State that the instances of the host share.
        present: Function that returns the active engine, ``None`` for none, and the phase of the instance.
    """

    def __init__(self, name: str, host: HostParts, present: Callable[[], tuple[Engine | None, Phase]]) -> None:
        self._name, self._present = name, present
        self._pulse = Pulse(host.clock)
        self._sharing = None if host.service is None else InstanceSharing(name, host.service, host.clock)
        self._every_s = min(host.limits.hung_s / _PULSES, PULSE_EVERY_S if host.service is None else SHARE_EVERY_S)
        self._switches = 0
        """Number of begins and ends of switches of engines."""

    def loops(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the loops that watch; the caller runs them until the instance ends."""
        yield supervised(f"{self._name}: health is not checked", self.check_active, HEALTH_EVERY_S)
        yield supervised(f"{self._name}: progress is not checked", self.check_progress, self._every_s)

    @contextmanager
    def switching(self) -> Iterator[None]:
        """Judge no progress while engines are switched, and forget what was seen of the one before."""
        self._switches += 1
        try:
            yield
        finally:
            self._switches += 1
            self._pulse.reset()

    async def check_active(self) -> None:
        """Check the health of the engine that serves."""
        engine, phase = self._present()
        if engine is not None and phase is Phase.SERVING:
            await self.check_health(engine)

    async def check_health(self, engine: Engine) -> None:
        """Kill an engine that is not healthy: if its core is dead, its API process may still be there to say so."""
        if await engine.is_healthy():
            engine.requests.settle()
            return
        active, phase = self._present()
        if engine is active and phase in _SERVES:
            engine.kill()

    async def check_progress(self) -> None:
        """Kill the engine that serves if it computes nothing."""
        (engine, phase), switches = self._present(), self._switches
        if engine is None or switches % 2 or phase not in _SERVES:
            return
        why = await self._pulse.stopped(engine)
        if switches != self._switches or engine is not self._present()[0]:
            return
        if why is not None:
            logger.error("%s: the engine of model %s hangs, and is killed: %s", self._name, engine.model.name, why)
            engine.kill()
        elif self._sharing is not None:
            await self._sharing.exchange(engine, self._pulse.service_s)
