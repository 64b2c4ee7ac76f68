"""The process, or the task, of a planner."""

import asyncio
import logging
import secrets
from concurrent.futures import Executor

from sloserve.core.clock import SystemClock
from sloserve.fleet.file import Fleet
from sloserve.fleet.planning.planner import Planning
from sloserve.fleet.store.store import Store

logger = logging.getLogger(__name__)


async def run_planner(fleet: Fleet, store: Store, executor: Executor, *, lease_s: float | None = None) -> None:
    """Plans, whenever it leads, until it is cancelled."""
    options = {} if lease_s is None else {"lease_s": lease_s}
    planning = Planning(fleet, store, f"planner:{secrets.token_hex(8)}", SystemClock(), **options)
    await planning.run(executor)


async def planner_until(fleet: Fleet, store: Store, executor: Executor, until: asyncio.Future[None]) -> None:
    """Plans until the future is done."""
    task = asyncio.create_task(run_planner(fleet, store, executor))
    try:
        await until
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
