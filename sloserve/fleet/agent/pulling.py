"""Pulls durable requests from the store for the instances of an agent, and commits their results.

A line is claimed while its engine has room, in the order that the plan gives, and sent through the instance's door like
any other request. Results are committed in groups. A line that has to leave with its model goes back with what it has,
for another engine to go on from. When an engine dies, what it had are suspects: they run by halves with no other line
beside them, until the one that kills engines is alone.

A lease ends for its holder before it ends for the store. From then on nothing of its claim is sent to an engine; what
runs goes on and is committed late, which the store takes only if no other has claimed it since.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from sloserve.core.clock import Clock
from sloserve.core.errors import StoreError
from sloserve.fleet.agent.claims import HeldClaim, Line, Pull, Work, lines_to_claim, may_leave, places_for_lines
from sloserve.fleet.agent.line_service import RETRY_S, attempted, result_of
from sloserve.fleet.contract.door import Door, Refused
from sloserve.fleet.contract.reports import Phase
from sloserve.fleet.store.group_commit import GroupCommit
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import RequestState, Result
from sloserve.fleet.store.requests import Requests

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEASE_S: Final = 30.0
_IDLE_S: Final = 0.5
"""Where there was nothing to pull it is looked again after so long."""
_SUSPECTS_S: Final = 10.0
"""An idle instance looks for suspects so often."""
_COMMIT_S: Final = 1.0
"""Left of the time in which a model leaves, to give its lines back in the store."""
_FAILED_AT: Final = 5
"""A line that ran alone when its engine died, but with streams beside it, has failed at this attempt."""


class Pulling:
    """A :class:`~sloserve.fleet.contract.door.DurableWork`. Used in one event loop.

    Args:
        requests: of the store.
        holder: of claims; unique, and new in each process.
        clock: of this process; for durations alone.
        executor: its threads wait for the store.
        lease_s: of claims.
    """

    def __init__(
        self, requests: Requests, holder: str, clock: Clock, executor: Executor, *, lease_s: float = LEASE_S
    ) -> None:
        self._requests, self._holder, self._clock = requests, holder, clock
        self._executor, self._lease_s = executor, lease_s
        self._commit: GroupCommit[Result, bool] = GroupCommit(requests.finish, executor)
        self._doors: dict[str, Door] = {}
        self._work: dict[str, Work] = {}
        self._requeuing: set[asyncio.Task[None]] = set()
        self._ending: set[int] = set()
        self._store_errors = 0
        self._renewing: asyncio.Task[None] | None = None
        self._stops = False
        self._claims_begun = 0
        self._claims_ended = 0

    # From the composition root and from following.

    def start(self, doors: Iterable[Door]) -> None:
        """Begins with these instances. Those that serve are pulled for at once, the others once they :meth:`came`."""
        for door in doors:
            work = self._work[door.name] = Work(is_open=door.report().phase is Phase.SERVING)
            self._doors[door.name] = door
            work.task = asyncio.create_task(self._pull(door, work))
        self._renewing = asyncio.create_task(self._renew())

    async def stop(self, limit_s: float) -> None:
        """Gives back within ``limit_s`` what is not finished by then, and ends."""
        self._stops = True
        await asyncio.gather(*(self.leave(name, limit_s) for name in self._work), *self._requeuing)
        pulls = [work.task for work in self._work.values() if work.task is not None]
        for work in self._work.values():
            work.wake.set()
        if pulls:  # a claim that is on its way is given back as it comes
            await asyncio.wait(pulls, timeout=max(limit_s, _COMMIT_S))
        await _cancelled([*pulls, *([] if self._renewing is None else [self._renewing])])

    def follow(self, instance: str, order: Sequence[Pull]) -> None:
        """From now on the instance pulls from these groups, in this order."""
        work = self._work[instance]
        work.order = order
        work.empty = set()
        work.wake.set()

    def lines_of(self, instance: str) -> int:
        """How many lines the instance has, sent or at hand."""
        return len(self._work[instance].lines)

    # DurableWork.

    async def leave(self, instance: str, limit_s: float) -> None:
        work, door = self._work[instance], self._doors[instance]
        work.is_open = False
        ends_s = self._clock.monotonic_s() + max(limit_s - _COMMIT_S, 0.0)
        while self._clock.monotonic_s() < ends_s:
            running = [line for line in work.lines if line.task is not None]
            if may_leave(all(map(_leaves_well, running)), bool(running), door.report().streams):
                break
            work.wake.clear()
            await self._woken(work, min(0.2, ends_s - self._clock.monotonic_s()))
        await self._give_back(work)

    def came(self, instance: str) -> None:
        work = self._work[instance]
        work.is_open, work.has_suspects = True, True
        work.empty = set()
        work.wake.set()

    def died(self, instance: str) -> None:
        work = self._work[instance]
        work.is_open = False
        streams = self._doors[instance].report().streams
        claims, work.claims = work.claims, {}
        self._ending |= claims.keys()
        work.pending_crashes += 1
        requeuing = asyncio.create_task(self._requeue_after_crash(work, list(claims.values()), streams))
        self._requeuing.add(requeuing)
        requeuing.add_done_callback(self._requeuing.discard)

    # Pulling.

    async def _pull(self, door: Door, work: Work) -> None:
        while not self._stops:
            work.wake.clear()
            try:
                busy = await self._pull_once(door, work)
            except StoreError as error:
                self._store_is_away("nothing is claimed", error)
                busy = False
            except Exception:  # a fault of ours must not end pulling for good
                logger.exception("a round of pulling for %s failed", door.name)
                busy = False
            if not busy and not self._stops:
                await self._woken(work, _IDLE_S)

    async def _pull_once(self, door: Door, work: Work) -> bool:
        """Whether there may be more to do at once."""
        report = door.report()
        if not work.is_open or work.pending_crashes or report.phase is not Phase.SERVING or report.active is None:
            return False
        lines = work.lines
        alone = any(claim.alone for claim in work.claims.values())
        if work.has_suspects and not alone:
            if any(line.task is not None for line in lines):
                return False  # what runs ends first
            await self._give_back(work)
            return await self._pull_suspects(work, report.active)
        waiting = [line for line in lines if line.task is None]
        room = places_for_lines(report, sum(line.task is not None and not line.is_sent for line in lines))
        now_s = self._clock.monotonic_s()
        for claim in work.claims.values():
            for line in claim.lines.values():
                is_over = line.due_s <= now_s  # takes no room: it is not sent
                can_be_sent = room > 0 and claim.lease.left_s > 0.0 and line.model == report.active
                if line.task is None and (is_over or can_be_sent):
                    line.task = asyncio.create_task(self._serve(door, work, claim, line))
                    room -= not is_over
        most = 0 if alone else lines_to_claim(room, len(waiting))
        return most > 0 and await self._claim(work, report.active, most)

    async def _pull_suspects(self, work: Work, model: str) -> bool:
        work.has_suspects = await self._claimed(work, model, self._requests.claim_suspects, self._holder, model)
        return True

    async def _claim(self, work: Work, model: str, most: int) -> bool:
        empty = work.empty  # of this plan: another may come while the store is asked
        for pull in work.order:
            if pull.model == model and pull.group not in empty:
                if await self._claimed(work, model, self._requests.claim, self._holder, pull.group, most):
                    return True
                empty.add(pull.group)
        return False

    async def _claimed(self, work: Work, model: str, claim: Callable[..., Any], *args: Any) -> bool:
        lease, asked_s = Lease(self._clock, self._lease_s), self._clock.monotonic_s()
        lease.ask()
        self._claims_begun += 1
        try:
            found = await self._in_thread(claim, *args, self._lease_s)
            if found is None:
                return False
            lease.granted()
            work.claims[found.id] = HeldClaim.of(found, lease, model, asked_s)
            if not work.is_open:
                await self._give_back(work)  # the model has left, or the engine died, meanwhile
            return work.is_open
        finally:
            self._claims_ended += 1

    # One line.

    async def _serve(self, door: Door, work: Work, claim: HeldClaim, line: Line) -> None:
        left_s = line.due_s - self._clock.monotonic_s()
        result = result_of(line, RequestState.EXPIRED, 0, b"")
        try:
            if left_s > 0.0:
                async with asyncio.timeout(None if left_s == math.inf else left_s):
                    result = await attempted(door, line, self._clock)
        except TimeoutError:
            pass
        except Refused:
            line.task = None  # no byte went: it waits for its turn again
            return
        except Exception:  # a fault of ours with this line: it must not hold its batch, or its claim, for ever
            logger.exception("request %s cannot be served", line.claimed.id)
            result = result_of(line, RequestState.FAILED, 500, b"the request could not be served; send it differently")
        line.has_ended = True
        await self._finish(result)
        claim.lines.pop(line.claimed.id, None)
        if not claim.lines:
            work.claims.pop(claim.id, None)
        work.wake.set()

    async def _finish(self, result: Result) -> None:
        """Commits a result, however long the store is away: if another attempt has begun by then, it does not count.

        It is tried again whatever went wrong: it may have been another's in the same commit.
        """
        while True:
            try:
                await self._commit(result)
                return
            except Exception as error:
                self._store_is_away("a result waits", error)
                await asyncio.sleep(RETRY_S)

    # Ends of claims.

    async def _give_back(self, work: Work) -> None:
        """All that has no result, with what it has."""
        claims, work.claims = list(work.claims.values()), {}
        self._ending |= {claim.id for claim in claims}
        try:
            await self._abort(claims)
            for claim in claims:
                if claim.lines:
                    await self._tell(self._requests.give_back, claim.id, claim.progress())
        finally:
            self._ending -= {claim.id for claim in claims}  # what could not be told, renewing gives back

    async def _requeue_after_crash(self, work: Work, claims: Sequence[HeldClaim], streams: int) -> None:
        """The engine that had these has died. Nothing is pulled until the store knows."""
        try:
            await self._mark_suspects(claims, streams)
        except Exception:  # a fault of ours; renewing gives the claims back
            logger.exception("the death of an engine is not told to the store")
        finally:
            self._ending -= {claim.id for claim in claims}
            work.pending_crashes -= 1
            work.has_suspects = True
            work.empty = set()
            work.wake.set()

    async def _mark_suspects(self, claims: Sequence[HeldClaim], streams: int) -> None:
        await self._abort(claims)
        held = [claim for claim in claims if claim.lines]
        suspects = [claim for claim in held if claim.was_sent and not _is_doubtful(claim, streams)]
        for claim in held:
            if claim not in suspects:
                await self._tell(self._requests.give_back, claim.id, claim.progress())
        if suspects:
            failed = await self._tell(self._requests.engine_died, [claim.id for claim in suspects])
            for id in failed or ():
                logger.warning("request %s has failed: the engine died while it served this request alone", id)

    async def _abort(self, claims: Iterable[HeldClaim]) -> None:
        """Ends their lines in the engine; results that are there already are committed, or have a moment to be."""
        lines = [line for claim in claims for line in claim.lines.values() if line.task is not None]
        committing = [line.task for line in lines if line.has_ended and line.task is not None]
        await _cancelled([line.task for line in lines if not line.has_ended and line.task is not None])
        if committing:
            await asyncio.wait(committing, timeout=_COMMIT_S)

    async def _tell(self, call: Callable[..., T], *args: Any) -> T | None:
        """Tells the store, again and again for as long as a lease runs; then the claims lapse by themselves."""
        ends_s = self._clock.monotonic_s() + self._lease_s
        while True:
            try:
                return await self._in_thread(call, *args)
            except StoreError as error:
                if self._clock.monotonic_s() >= ends_s:
                    logger.warning("claims cannot be given back and will expire: %s", error)
                    return None
                await asyncio.sleep(RETRY_S)

    # Leases.

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3.0)
            try:
                await self._renew_once()
            except StoreError as error:
                self._store_is_away("claims are not renewed", error)
            except Exception:  # a fault of ours must not end renewing for good
                logger.exception("a round of renewing failed")

    async def _renew_once(self) -> None:
        held = {claim.id: (work, claim) for work in self._work.values() for claim in work.claims.values()}
        begun, ended = self._claims_begun, self._claims_ended
        for _, claim in held.values():
            claim.lease.ask()
        renewed = await self._in_thread(self._requests.renew, self._holder, self._lease_s)
        slow: list[str] = []
        for id, (work, claim) in held.items():
            if id in renewed.claims:
                claim.lease.granted()
            elif work.claims.pop(id, None) is not None:
                slow += claim.lines
                await self._abort([claim])  # others have them by now
                work.wake.set()
        await self._cancel(renewed.cancelled)
        if begun == ended == self._claims_begun:
            for id in renewed.claims - held.keys() - self._ending:
                await self._in_thread(self._requests.give_back, id, {})  # an answer that never came back
        await self._in_thread(self._requests.take_back)
        if slow:
            await self._in_thread(self._requests.excuse, slow)
        for work in self._work.values():
            if not work.lines:
                work.has_suspects = True

    async def _cancel(self, ids: Iterable[str]) -> None:
        """Their clients have cancelled them."""
        wanted = set(ids)
        for work in self._work.values():
            for claim in list(work.claims.values()):
                for line in [line for id, line in claim.lines.items() if id in wanted and not line.has_ended]:
                    await _cancelled([] if line.task is None else [line.task])
                    if not line.has_ended:
                        line.has_ended = True
                        await self._finish(result_of(line, RequestState.CANCELLED, 0, b""))
                    claim.lines.pop(line.claimed.id, None)
                if not claim.lines:
                    work.claims.pop(claim.id, None)
            work.wake.set()

    # Small parts.

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    def _store_is_away(self, what: str, error: Exception) -> None:
        self._store_errors += 1
        if self._store_errors & (self._store_errors - 1) == 0:  # the first, second, fourth, ...
            logger.warning("%s, since the store fails (error %d): %s", what, self._store_errors, error)

    async def _woken(self, work: Work, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await work.wake.wait()


def _leaves_well(line: Line) -> bool:
    """Whether nothing is lost of it when it is aborted now."""
    return not line.is_sent or line.has_ended or line.progress is not None


def _is_doubtful(claim: HeldClaim, streams: int) -> bool:
    """A single suspect whose engine died with streams in it: one of them may have been it."""
    if not (claim.alone and len(claim.lines) == 1 and streams):
        return False
    return next(iter(claim.lines.values())).claimed.attempt < _FAILED_AT


async def _cancelled(tasks: Iterable["asyncio.Task[None]"]) -> None:
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
