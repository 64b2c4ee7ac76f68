"""Detects whether an engine still computes while it serves: its health says only that its API process is there.

The core is asked what it has done, which it reports between two steps. It has stopped if it does not respond, or if it
has requests running and no token is computed, for longer than its steps may take.
"""

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
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: another engine serves, or this one did something else, as sleep or read weights."""
        self._silent_s = 0.0
        """Seconds for which it did not respond. An engine that refuses at once is not silent: it serves as before."""
        self._moved: dict[int, tuple[float, float]] = {}
        """Tokens computed until now, and when they were last seen to be more, by rank."""

    async def stopped(self, engine: Engine) -> str | None:
        """Return why the engine has stopped; ``None`` while it computes. This takes as long as it may be silent."""
        limit_s, asked_s = engine.hung_s, self._clock.monotonic_s()
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
        for rank, (running, tokens) in enumerate(ranks):
            known, since_s = self._moved.get(rank, (-1.0, now_s))
            if not running or tokens != known:
                self._moved[rank] = tokens, now_s
            elif now_s - since_s >= limit_s:
                return f"it has {running:.0f} requests running, and has computed nothing for {now_s - since_s:.0f} s"
        return None
