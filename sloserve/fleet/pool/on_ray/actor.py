"""The actor that keeps a fleet's agent on a node of a Ray cluster.

It is named and detached: it belongs to no process, and a pool finds it by its name. Ray starts it again when its
process dies; its constructor has all that it needs then. Its methods run in threads of their own.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import ray
from ray.util.metrics import Counter

from sloserve.core.user_folders import user_folder
from sloserve.fleet.pool.kept_agent import AgentFolder, KeptAgent, start_digest
from sloserve.fleet.pool.on_ray import placement
from sloserve.fleet.pool.on_ray.cluster import RAY_ERRORS

FOLDER: Final = "{folder}"
"""Placeholder in an agent's command for the folder of its state on its node."""
AT_A_TIME: Final = 8
"""Number of concurrent calls of an actor: pools look after the agent, others end it or read its log."""
_LAST_CALLS_S: Final = 1.0
"""Seconds between the end of the agent and the end of its actor, in which the pool that ended it hears of it."""

logger = logging.getLogger(__name__)


class SloserveAgent:
    """Keeps the process of one agent on a node.

    Args:
        name: Name of the actor.
        group: Name of its placement group.
        fleet: Name of the fleet.
        host: Name of the host.
        files: Text by file name, to be written into the agent's folder; an actor that Ray starts again leaves the files
            there, which may be newer.
        release: Release of sloserve of the pool that has made the actor.
        command: Module and arguments of the agent.
        environment: Environment variables of the agent.
        unattended_s: Seconds for which the agent goes on without a pool.
        drain_s: Seconds for the agent to end in order.
    """

    def __init__(
        self,
        name: str,
        *,
        group: str,
        fleet: str,
        host: str,
        files: Mapping[str, str],
        release: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        unattended_s: float,
        drain_s: float,
    ) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        self._name, self._group, self._fleet, self._host = name, group, fleet, host
        folder = AgentFolder(user_folder("XDG_STATE_HOME", ".local/state") / "nodes" / fleet / host)
        was_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        if not was_restarted or folder.digest is None:
            folder.write(files, release)
        self._known = {"incarnation": secrets.token_hex(8), "start": start_digest(command, environment), "group": group}
        arguments = [part.replace(FOLDER, str(folder.path)) for part in command]
        self._starts = Counter("sloserve_agent_starts", "Starts of the agent.", tag_keys=("fleet", "host"))
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._kept = KeptAgent(folder, arguments, environment, unattended_s, drain_s=drain_s, started=self._note_start)
        logger.info("%s: %s", self, "started again by Ray" if was_restarted else "started")
        # The agent is the child of a thread that lives as long as it does: with the thread it would die.
        threading.Thread(target=self._run, daemon=True).start()

    def __repr__(self) -> str:
        return f"SloserveAgent({self._fleet}, {self._host})"

    def look_after(self, seen: int, unattended_s: float) -> dict[str, Any]:
        """See :meth:`~sloserve.fleet.pool.kept_agent.KeptAgent.looked_after`."""
        report: dict[str, Any] = self._call(self._kept.looked_after(seen, unattended_s))
        return {**self._known, **report}

    def status(self) -> dict[str, Any]:
        """Return what is known of the agent: its process, its ends, the seconds since a pool looked after it."""
        return {"fleet": self._fleet, "host": self._host, **self._call(self._now())}

    def change(self, files: Mapping[str, str], release: str) -> None:
        """Have the agent read other files."""

        async def change() -> None:
            self._kept.change(files, release)

        self._call(change())

    def stop(self, within_s: float) -> None:
        """End the agent for good; what it runs goes back into the queue."""
        logger.info("%s: ends within %.0f s", self, within_s)
        self._call(self._kept.stop(within_s))

    def end_of_log(self) -> str:
        """Return the last lines of the agent's log."""
        return self._kept.end_of_log()

    async def _now(self) -> dict[str, Any]:
        return self._kept.report()

    def _note_start(self) -> None:
        self._starts.inc(tags={"fleet": self._fleet, "host": self._host})

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._kept.run())
        except Exception:
            logger.exception("%s: the agent is no longer kept", self)
        self._loop.call_later(_LAST_CALLS_S, self._leave)
        self._loop.run_forever()

    def _leave(self) -> None:
        """End this actor and free what its node held for it: no pool may be there to do it."""
        if self._kept.was_unattended:
            with suppress(*RAY_ERRORS):
                placement.withdraw_waiting(self._fleet)
        with suppress(*RAY_ERRORS):
            ray.kill(ray.get_actor(self._name), no_restart=True)
        with suppress(*RAY_ERRORS):
            placement.free(self._group)
