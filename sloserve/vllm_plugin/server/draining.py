"""Stop under load: refuse new work, let running requests finish within vLLM's ``--shutdown-timeout``, end the rest.

vLLM alone stops its engines first. The outputs that they still owe then never come, their readers wait for them, and
the server waits for its readers. So before an engine client shuts down its requests end here, while everything still
runs, and their clients get an error.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sloserve.core.errors import ShuttingDown
from sloserve.scheduler.admission.retry_after import retry_after_s

logger = logging.getLogger(__name__)

SHARE = 0.9
"""Share of the time to finish after which running requests are given up: the rest is for notifying their clients."""

POLL_S = 0.02
OVERDUE_S = 5.0
"""Further seconds after which an event loop that does not come round is no longer waited for."""


class Drain:
    """The shutdown of one engine client in this process.

    Args:
        in_flight: Requests that were accepted and are not over.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self._until_s: float | None = None
        self._given_up = False
        self._on_begin: list[Callable[[], None]] = []

    def on_begin(self, call: Callable[[], None]) -> None:
        """Have ``call`` called in the event loop once no more work is accepted, or now if that is so."""
        self._on_begin.append(call)
        if self.begun:
            call()

    def begins(self) -> None:
        """Make the calls that :meth:`on_begin` collected."""
        for call in self._on_begin:
            try:
                call()
            except Exception:
                logger.exception("sloserve could not notify clients that the server is stopping")

    @property
    def begun(self) -> bool:
        """Whether no more work is accepted."""
        return self._until_s is not None

    def check_open(self) -> None:
        """Raise ShuttingDown if no more work is accepted."""
        if self.begun:
            raise self.error("accepts no more requests")

    def check_running(self) -> None:
        """Check accepted work that reaches the engine only now. Raises: ShuttingDown once all was given up."""
        if self._given_up:
            raise self.error("stopped before the request began")

    def error(self, what: str) -> ShuttingDown:
        """Return an error that states that the server is stopping and when it will be gone.

        It must be made in the event loop.
        """
        left_s = (self._until_s or 0.0) - asyncio.get_running_loop().time()
        again_s = retry_after_s(left_s)
        return ShuttingDown(f"the server is shutting down and {what}; retry in {again_s} s", again_s)

    def run(self, engine: Any, timeout_s: float | None) -> float | None:
        """End the requests of ``engine``, vLLM's ``AsyncLLM``; return what is left of the time to stop it.

        A second call does nothing, and neither does a call in the event loop's own thread, where waiting would never
        end.
        """
        handler = getattr(engine, "output_handler", None)
        if self.begun or handler is None or not handler.get_loop().is_running() or _in_event_loop():
            return timeout_s
        limit_s = timeout_s or 0.0
        draining = asyncio.run_coroutine_threadsafe(self._drain(engine, limit_s), handler.get_loop())
        try:
            spent_s = draining.result(limit_s + OVERDUE_S)
        except Exception:
            logger.exception("sloserve could not end the running requests")
            return timeout_s
        return None if timeout_s is None else max(timeout_s - spent_s, 0.0)

    async def _drain(self, engine: Any, limit_s: float) -> float:
        from sloserve.vllm_plugin.server.stopped import stopped

        loop, states = asyncio.get_running_loop(), engine.output_processor.request_states
        begun_s = loop.time()
        self._until_s = begun_s + limit_s
        self.begins()
        if states or self.in_flight:
            logger.info("sloserve is stopping: %d requests may finish within %g s", self.in_flight, limit_s)
        while (states or self.in_flight) and loop.time() < begun_s + SHARE * limit_s:
            await asyncio.sleep(POLL_S)
        self._given_up = True
        if states:
            logger.warning(
                "sloserve is stopping: %d requests did not finish within %g s and are given up; --shutdown-timeout "
                "sets how long they may take",
                len(states),
                SHARE * limit_s,
            )
            engine.output_processor.propagate_error(stopped(self.error("gave the request up")))
            await engine.abort(list(states), internal=True)
        return loop.time() - begun_s


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
