"""Detects whether an engine still computes while it serves: its health says only that its API process is there.

The core is asked what it has done, which it reports between two steps. It has stopped if it does not respond, or if it
has requests running and no token is computed, for longer than its steps may take.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import EngineError
from sloserve.fleet.agent.engine import Engine

_AGAIN_S: Final = 5.0
"""Seconds for a second question: an agent that was stopped itself finds the time over before it reads the response."""


class Pulse:
    """Detects whether the engine of one instance still computes; it watches an instance's engines in succession."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.service_s: Mapping[str, float] | None = None
        """Recent service of tenants over all ranks at the last response; ``None`` if they have no shares."""
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: another engine serves, or this one did something else, as sleep or read weights."""
        self._silent_s, self.service_s = 0.0, None
        """Seconds for which it did not respond. An engine that refuses at once is not silent: it serves as before."""
        self._moved: dict[int, tuple[float, float]] = {}
        """Tokens computed until now, and when they were last seen to be more, by rank."""

    async def stopped(self, engine: Engine) -> str | None:
        """Return why the engine has stopped; ``None`` while it computes. This takes as long as it may be silent."""
        limit_s, asked_s, self.service_s = engine.hung_s, self._clock.monotonic_s(), None
        try:
            ranks = await engine.status(limit_s)
        except EngineError:
            self._silent_s += self._clock.monotonic_s() - asked_s
            if self._silent_s < limit_s:
                return None
            try:
                ranks = await engine.status(min(_AGAIN_S, limit_s))
            except EngineError as error:
                return f"its core does not respond: {error}"
        now_s, self._silent_s = self._clock.monotonic_s(), 0.0
        if ranks and all(rank.service_s is not None for rank in ranks):
            found = Counter[str]()
            for rank in ranks:
                found.update(rank.service_s)
            self.service_s = found
        for number, (running, tokens, _) in enumerate(ranks):
            known, since_s = self._moved.get(number, (-1.0, now_s))
            if not running or tokens != known:
                self._moved[number] = tokens, now_s
            elif now_s - since_s >= limit_s:
                return f"it has {running:.0f} requests running, and has computed nothing for {now_s - since_s:.0f} s"
        return None
