"""Claims of lines: requested if an instance takes more, and given back with what its lines have by then."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from sloserve.core.clock import Clock
from sloserve.core.errors import StoreError
from sloserve.fleet.agent.claims import HeldClaim, InstanceWork
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.requests import Requests

logger = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S: Final = 1.0
COMMIT_S: Final = 1.0
"""Seconds for results that are about to be committed, before their claims are given back."""


class LineClaims:
    """Claims lines from the store for the instances of an agent, and gives them back.

    Args:
        requests: Requests of the store.
        holder, executor, lease_s: see :class:`~sloserve.fleet.agent.pulling.Pulling`.
        clock: Clock of this process.
    """

    def __init__(self, requests: Requests, holder: str, clock: Clock, executor: Executor, lease_s: float) -> None:
        self.requests, self.holder, self.lease_s = requests, holder, lease_s
        self._clock, self._executor = clock, executor
        self.ending: set[int] = set()
        """Claims of which the end is being reported to the store: no instance has them any more."""
        self.begun = self.ended = 0
        """Numbers of claims that were requested from the store, and that it has responded to."""

    async def claim(self, work: InstanceWork, model: str, most: int) -> bool:
        """Claim up to ``most`` lines of the first group that has some, and return whether the instance has them."""
        empty = work.empty  # of this plan: another may come while the store is asked
        for pull in work.order:
            if pull.model == model and pull.group not in empty:
                if await self._claimed(work, model, self.requests.claim, self.holder, pull.group, most):
                    return True
                empty.add(pull.group)
        return False

    async def claim_suspects(self, work: InstanceWork, model: str) -> None:
        """Claim lines that may have killed an engine, if there are some."""
        work.has_suspects = await self._claimed(work, model, self.requests.claim_suspects, self.holder, model)

    async def _claimed(self, work: InstanceWork, model: str, claim: Callable[..., Any], *args: Any) -> bool:
        lease, asked_s = Lease(self._clock, self.lease_s), self._clock.monotonic_s()
        lease.ask()
        self.begun += 1
        try:
            found = await self.in_thread(claim, *args, self.lease_s)
            if found is None:
                return False
            lease.granted()
            work.claims[found.id] = HeldClaim.of(found, lease, model, asked_s)
            if not work.is_open:
                await self.give_back(work)  # the model has left, or the engine died, meanwhile
            return work.is_open
        finally:
            self.ended += 1

    async def give_back(self, work: InstanceWork) -> None:
        """Give back all lines that have no result, with what they have."""
        claims, work.claims = list(work.claims.values()), {}
        self.ending |= {claim.id for claim in claims}
        try:
            await self.abort(claims)
            for claim in claims:
                if claim.lines:
                    await self.tell(self.requests.give_back, claim.id, claim.progress())
        finally:
            self.ending -= {claim.id for claim in claims}  # renewing gives back what could not be reported

    async def abort(self, claims: Iterable[HeldClaim]) -> None:
        """End the claims' lines in the engine; results that are already there have a moment to be committed."""
        lines = [line for claim in claims for line in claim.lines.values()]
        committing = [line.task for line in lines if line.has_ended and line.task is not None]
        await cancelled(line.task for line in lines if not line.has_ended)
        if committing:
            await asyncio.wait(committing, timeout=COMMIT_S)

    async def tell(self, call: Callable[..., T], *args: Any) -> T | None:
        """Call the store, again and again for as long as a lease runs; then the claims lapse by themselves."""
        ends_s = self._clock.monotonic_s() + self.lease_s
        while True:
            try:
                return await self.in_thread(call, *args)
            except StoreError as error:
                if self._clock.monotonic_s() >= ends_s:
                    logger.warning("claims cannot be given back and will expire: %s", error)
                    return None
                await asyncio.sleep(RETRY_S)

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call the store in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)


async def cancelled(tasks: "Iterable[asyncio.Future[Any] | None]") -> None:
    """Cancel the tasks, and wait for their ends; ``None`` among them is skipped."""
    ended = [task for task in tasks if task is not None]
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
