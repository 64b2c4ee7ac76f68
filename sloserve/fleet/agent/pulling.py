"""Pulls durable requests from the store for the instances of an agent, and commits their results.

A line is claimed while its engine has room, in the order that the plan gives, and sent to the instance like any other
request. Results are committed in groups. A line that has to leave with its model goes back with what it has, for
another engine to go on from. When an engine dies, the lines that it had are suspects: they run by halves with no other
line beside them, until the one that kills engines is alone.

A lease ends for its holder before it ends for the store. After that nothing of its claim is sent to an engine; what
runs goes on and is committed late, which the store takes only if no other has claimed it since.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.spans import Phase
from sloserve.fleet.agent.claims import (
    COMMIT_S,
    ClaimedLine,
    HeldClaim,
    InstanceWork,
    LineClaims,
    Pull,
    cancelled,
    lines_to_claim,
    may_leave,
    places_for_lines,
)
from sloserve.fleet.agent.crashes import Crashes
from sloserve.fleet.agent.giving_way import GivingWay, LineInEngine
from sloserve.fleet.agent.line_service import LineService, result_of
from sloserve.fleet.agent.making_room import make_room_for_head, running_lines
from sloserve.fleet.contract.endpoint import InstanceEndpoint
from sloserve.fleet.store.records import RequestState
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.supervised import Faults, supervised


class Leases:
    """Renews the claims of an agent's instances, and ends what others have by now or clients have cancelled.

    Args:
        claims: Claims of lines.
        service: Service that commits results.
        work: Work of each instance, by name.
    """

    def __init__(self, claims: LineClaims, service: LineService, work: Mapping[str, InstanceWork]) -> None:
        self._claims, self._service, self._work = claims, service, work

    async def renew(self) -> None:
        """Renew all leases at once. Raises: StoreError."""
        claims, requests = self._claims, self._claims.requests
        held = {claim.id: (work, claim) for work in self._work.values() for claim in work.claims.values()}
        begun, ended = claims.begun, claims.ended
        for _, claim in held.values():
            claim.lease.ask()
        renewed = await claims.in_thread(requests.renew, claims.holder, claims.lease_s)
        slow: list[str] = []
        for id, (work, claim) in held.items():
            if id in renewed.claims:
                claim.lease.granted()
            elif work.claims.pop(id, None) is not None:
                slow += claim.lines
                await claims.abort([claim])  # others have them by now
                work.wake.set()
        await self._cancel(renewed.cancelled)
        if begun == ended == claims.begun:
            for id in renewed.claims - held.keys() - claims.ending.keys():
                await claims.in_thread(requests.give_back, id, {})  # the claim's response was lost
        await claims.in_thread(requests.take_back)
        if slow:
            await claims.in_thread(requests.excuse, slow)
        for work in self._work.values():
            if not work.lines:
                work.has_suspects = True

    async def _cancel(self, ids: Iterable[str]) -> None:
        """End lines that their clients have cancelled: all at once, so that none is sent while others are committed."""
        wanted, held = set(ids), [(work, claim) for work in self._work.values() for claim in work.claims.values()]
        lines = [
            (work, claim, line)
            for work, claim in held
            for id, line in claim.lines.items()
            if id in wanted and not line.has_ended
        ]
        for _, _, line in lines:
            line.has_ended = True
        await cancelled(line.task for _, _, line in lines)
        await asyncio.gather(*(self._end(*found) for found in lines))
        for work in self._work.values():
            work.wake.set()

    async def _end(self, work: InstanceWork, claim: HeldClaim, line: ClaimedLine) -> None:
        await self._service.commit(result_of(line, RequestState.CANCELLED, 0, b""))
        work.ended(claim, line)


LEASE_S: Final = 30.0
_IDLE_S: Final = 0.5
"""Pause in seconds after a look that found nothing to pull."""
_LEAVING_S: Final = 0.2
"""Seconds between looks whether lines still run while a model leaves."""


class Pulling:
    """Says when each instance pulls, and when its lines leave.

    It is a :class:`~sloserve.fleet.contract.endpoint.DurableWork`, and is used in one event loop.

    Args:
        requests: Requests of the store.
        holder: Holder of the claims; unique, and new in each process.
        clock: Clock of this process, for durations alone.
        executor: Executor with threads that wait for the store.
        lease_s: Seconds for which a claim is leased.
    """

    def __init__(
        self, requests: Requests, holder: str, clock: Clock, executor: Executor, *, lease_s: float = LEASE_S
    ) -> None:
        self._clock, self._lease_s = clock, lease_s
        self._endpoints: dict[str, InstanceEndpoint] = {}
        self._work: dict[str, InstanceWork] = {}
        self._claims = LineClaims(requests, holder, clock, executor, lease_s)
        self._service = LineService(requests, clock, executor)
        self._leases = Leases(self._claims, self._service, self._work)
        self._crashes = Crashes(self._claims)
        self._pulls: list[asyncio.Task[None]] = []
        self._renewing: asyncio.Task[None] | None = None
        self._stops = False

    # The composition root and following call these methods.

    def start(self, endpoints: Iterable[InstanceEndpoint]) -> None:
        """Begin with these instances. Pull at once for serving ones, and for others once they :meth:`serves`."""
        for endpoint in endpoints:
            self._endpoints[endpoint.name] = endpoint
            work = self._work[endpoint.name] = InstanceWork(is_open=endpoint.report().phase is Phase.SERVING)
            self._pulls.append(asyncio.create_task(self._pull(endpoint, work)))
        every_s = self._lease_s / 3.0
        renewing = supervised("claims are not renewed", self._leases.renew, every_s, first_s=every_s)
        self._renewing = asyncio.create_task(renewing)

    async def stop(self, limit_s: float) -> None:
        """Give back within ``limit_s`` seconds what is not finished by then, and end."""
        self._stops = True
        await asyncio.gather(*(self.leave(name, limit_s) for name in self._work), *self._crashes.requeuing)
        for work in self._work.values():
            work.wake.set()
        if self._pulls:  # a claim that is on its way is given back as it comes
            await asyncio.wait(self._pulls, timeout=max(limit_s, COMMIT_S))
        await asyncio.gather(*self._claims.reporting)
        await cancelled([*self._pulls, self._renewing])

    def running(self, instance: str) -> Sequence[LineInEngine]:
        """Return the lines that the engine of the instance has; deadlines are by this process' monotonic clock."""
        return running_lines(self._work[instance])

    def at_hand(self, instance: str) -> set[int | None]:
        """Return the groups of lines that the instance has claimed and not sent."""
        claims = self._work[instance].claims.values()
        return {claim.group for claim in claims if any(line.waits for line in claim.lines.values())}

    def follow(self, instance: str, order: Sequence[Pull], giving_way: GivingWay | None = None) -> None:
        """Let the instance pull from these groups, in this order, and preempt lines for the first one."""
        work = self._work[instance]
        work.order, work.giving_way = order, giving_way or GivingWay()
        work.empty = set()
        work.wake.set()

    # DurableWork.

    async def leave(self, instance: str, limit_s: float) -> None:
        work, endpoint = self._work[instance], self._endpoints[instance]
        work.is_open = False
        ends_s = self._clock.monotonic_s() + max(limit_s - COMMIT_S, 0.0)
        while (left_s := ends_s - self._clock.monotonic_s()) > 0.0:
            running = [line for line in work.lines if line.task is not None]
            if may_leave(all(line.leaves_well for line in running), bool(running), endpoint.report().streams):
                break
            work.wake.clear()
            await _woken(work, min(_LEAVING_S, left_s))
        await self._claims.give_back(work)

    def serves(self, instance: str) -> None:
        work = self._work[instance]
        work.is_open = True
        work.look_again()

    def ended(self, instance: str) -> None:
        self._work[instance].wake.set()

    def died(self, instance: str) -> None:
        work = self._work[instance]
        work.is_open = False
        self._crashes.died(work, self._endpoints[instance].report().streams)

    # Pulling.

    async def _pull(self, endpoint: InstanceEndpoint, work: InstanceWork) -> None:
        faults = Faults(f"{endpoint.name} pulls no lines")
        while not self._stops:
            work.wake.clear()
            busy = False
            with faults:
                busy = await self._pull_once(endpoint, work)
            if not busy and not self._stops:
                await _woken(work, faults.pause_s(_IDLE_S))

    async def _pull_once(self, endpoint: InstanceEndpoint, work: InstanceWork) -> bool:
        """Pull once, and return whether there may be more to do at once."""
        report = endpoint.report()
        if not work.is_open or work.pending_crashes or report.phase is not Phase.SERVING or report.active is None:
            return False
        lines = work.lines
        alone = any(claim.alone for claim in work.claims.values())
        if work.has_suspects and not alone:
            if any(line.task is not None for line in lines):
                return False  # what runs ends first
            await self._claims.give_back(work)
            await self._claims.claim_suspects(work, report.active)
            return True
        at_hand = sum(line.waits for line in lines)
        on_their_way = sum(line.task is not None and not line.is_sent for line in lines)
        room = self._service.begin(endpoint, work, report.active, places_for_lines(report, on_their_way))
        if alone:
            return False
        if await make_room_for_head(self._claims, work, report.active, room):
            return True
        most = lines_to_claim(room, at_hand)
        return most > 0 and await self._claims.claim(work, report.active, most)


async def _woken(work: InstanceWork, limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await work.wake.wait()
