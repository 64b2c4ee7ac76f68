"""Calls of Ray, and of what waits for them."""

import asyncio
import logging
import os
from collections.abc import Iterable
from typing import Any

import ray

from sloserve.fleet.pool.on_ray import placement

logger = logging.getLogger(__name__)


def found(name: str) -> Any:
    """Return the actor of this name; ``None`` if there is none."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def kill(name: str, group: str) -> None:
    """Kill the actor of this name for good, if there is one, and free its placement group."""
    actor = found(name)
    if actor is not None:
        ray.kill(actor, no_restart=True)
    placement.free(group)


def exit_at_once(reason: str) -> None:
    """End this process, which is started again; agents go on meanwhile.

    It ends at once, since Ray's own shutdown waits for its node.
    """
    logger.error("%s: the pool stops, and must be started again", reason)
    logging.shutdown()
    os._exit(1)


def first_line(error: BaseException) -> str:
    """Return what an error says, without the pages that Ray adds."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


async def cancelled(tasks: Iterable["asyncio.Task[None] | None"]) -> None:
    """Cancel tasks, and wait until they have ended."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


async def result(reference: Any) -> Any:
    """Return the result of a remote call. Raises: RayError, also in place of what the actor raised."""
    return await asyncio.wrap_future(reference.future())
