"""What an agent has claimed, and the state of each of its lines.

:class:`LineClaims` requests lines from the store if an instance takes more, and gives them back with what they have by
then.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sloserve.core.clock import Clock
from sloserve.core.errors import StoreError
from sloserve.fleet.agent.giving_way import GivingWay
from sloserve.fleet.agent.line_output import LineOutput
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import Claim, Claimed
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.supervised import Faults

logger = logging.getLogger(__name__)
T = TypeVar("T")

MOST_CLAIMED: Final = 64
"""Most requests in one claim."""
_LEAST_CLAIMED: Final = 16
"""Requests claimed at once even if the engine takes fewer now: the rest is at hand when it takes more."""


@dataclass(eq=False, slots=True)
class ClaimedLine:
    """One claimed request.

    Args:
        claimed: Request as the store has it.
        model: Model that serves it.
        due_s: Deadline by this process' monotonic clock in seconds, inf for none.
        output: Output of the attempt that runs; ``None`` before the first, since a body that is read takes much memory.
        task: Task that sends it; ``None`` while it waits for room.
        is_sent: Whether the response of an engine has begun, or has broken off.
        is_coming: Whether it was passed to an engine, which may have seen it, and no response has begun yet.
        has_ended: Whether it has a result, which is committed or about to be.
        engine_s: Time for which it was in engines until now, in seconds.
    """

    claimed: Claimed
    model: str
    due_s: float
    output: LineOutput | None = None
    task: "asyncio.Task[None] | None" = None
    is_sent: bool = False
    is_coming: bool = False
    has_ended: bool = False
    engine_s: float = 0.0

    @property
    def progress(self) -> bytes | None:
        """Progress of its attempt from which another can go on, beside what the store has."""
        return None if self.output is None else self.output.progress()

    @property
    def waits(self) -> bool:
        """Whether it waits for room in the engine. One that its client cancels has ended before the store knows."""
        return self.task is None and not self.has_ended

    @property
    def was_never_sent(self) -> bool:
        """Whether no engine has seen it, nor can any result of it be on its way to the store."""
        return self.waits and not self.is_sent

    @property
    def leaves_well(self) -> bool:
        """Whether nothing of it is lost if it is aborted now."""
        if not self.is_sent or self.has_ended:
            return True
        # A complete output has its result in a moment, and could only be continued beyond its end.
        return self.progress is not None and self.output is not None and not self.output.is_complete


@dataclass(eq=False, slots=True)
class HeldClaim:
    """A claim that one instance works on.

    Args:
        id: Number of the claim in the store.
        lease: Lease of the claim.
        alone: Whether its lines must run without others beside them.
        group: Group from which they were pulled; ``None`` for suspects.
        lines: Lines without a committed result, by id.
    """

    id: int
    lease: Lease
    alone: bool
    group: int | None = None
    lines: dict[str, ClaimedLine] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, lease: Lease, model: str, asked_s: float, group: int | None) -> "HeldClaim":
        """Make the lines of a claim.

        Args:
            claim: Claim as the store gave it.
            lease: Lease of the claim.
            model: Model of its requests.
            asked_s: Monotonic time at which it was asked for, in seconds.
            group: Group from which they were pulled; ``None`` for suspects.
        """
        lines = {}
        for one in claim.requests:
            due_s = math.inf if one.left_s is None else asked_s + one.left_s
            lines[one.id] = ClaimedLine(one, model, due_s)
        return cls(claim.id, lease, claim.alone, group, lines)

    @property
    def was_sent(self) -> bool:
        """Whether an engine may have seen a part of it."""
        return any(line.is_sent or line.is_coming for line in self.lines.values())

    def progress(self) -> dict[str, bytes]:
        """Return the progress of its lines from which others can go on, by id."""
        found = {id: line.progress for id, line in self.lines.items()}
        return {id: progress for id, progress in found.items() if progress is not None}

    def unsent(self) -> list[str]:
        """Return the ids of its lines that no engine has seen."""
        return [id for id, line in self.lines.items() if line.was_never_sent]


@dataclass(frozen=True, slots=True)
class Pull:
    """A group to pull from, and the model of its requests."""

    group: int
    model: str


def places_for_lines(report: InstanceReport, on_their_way: int) -> int:
    """Return the number of lines that the instance takes now.

    Args:
        report: Report of the instance.
        on_their_way: Number of lines on their way to its engine that are not in its report yet.
    """
    return report.room - report.room_for_streams - on_their_way


def lines_to_claim(places: int, at_hand: int) -> int:
    """Return how many more lines an instance claims, 0 for none.

    Args:
        places: Number of lines that it takes now.
        at_hand: Number of lines that it has claimed and not sent.
    """
    if places <= 0 or at_hand >= places + _LEAST_CLAIMED:
        return 0
    return min(max(places, _LEAST_CLAIMED), MOST_CLAIMED)


def may_leave(loses_nothing: bool, any_runs: bool, streams: int) -> bool:
    """Return whether the lines of an instance are aborted now, as its model leaves, rather than awaited.

    Args:
        loses_nothing: Whether another engine can continue each line, so that none need be awaited unless something else
            is.
        any_runs: Whether any line runs in the engine.
        streams: Number of streams that run in the engine.
    """
    return loses_nothing and not (any_runs and streams)


@dataclass(eq=False, slots=True)
class InstanceWork:
    """What one instance works on.

    Args:
        is_open: Whether it may pull.
        order: Groups to pull from, the first one first.
        giving_way: Groups of which running lines give way to the first group of the queue.
        empty: Groups of these in which nothing was found.
        has_suspects: Whether suspects may be in the store, which run before anything else.
        pending_crashes: Number of crashes of its engine that the store does not know yet.
        claims: Claims that it holds, by id.
        wake: Event that wakes the puller.
    """

    is_open: bool = False
    order: Sequence[Pull] = ()
    giving_way: GivingWay = GivingWay()
    empty: set[int] = field(default_factory=set)
    has_suspects: bool = True
    pending_crashes: int = 0
    claims: dict[int, HeldClaim] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lines(self) -> list[ClaimedLine]:
        """All lines that have no committed result."""
        return [line for claim in self.claims.values() for line in claim.lines.values()]

    def ended(self, claim: HeldClaim, line: ClaimedLine) -> None:
        """Remove a line with a committed result."""
        claim.lines.pop(line.claimed.id, None)
        if not claim.lines:
            self.claims.pop(claim.id, None)

    def look_again(self) -> None:
        """Note that there may be suspects, and lines in groups that had none."""
        self.has_suspects = True
        self.empty = set()
        self.wake.set()


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
        self.ending: Counter[int] = Counter()
        """Number of reports to the store by claim: no renewal gives such a claim back."""
        self.reporting: set[asyncio.Task[None]] = set()
        """Tasks that report lines that have left."""
        self._faults = Faults("lines that have left go back when the leases of their claims end")
        self.begun = self.ended = 0
        """Numbers of claims that were requested from the store, and that it has responded to."""

    async def claim(self, work: InstanceWork, model: str, most: int, only: int | None = None) -> bool:
        """Claim up to ``most`` lines of the first group that has some, and return whether the instance has them.

        Args:
            work: Work of the instance.
            model: Active model of the instance.
            most: Most lines.
            only: The one group to claim from; ``None`` for any in the order.
        """
        empty = work.empty  # of this plan: another may come while the store is asked
        for pull in work.order:
            if pull.model == model and pull.group not in empty and only in (None, pull.group):
                call = self.requests.claim, self.holder, pull.group, most
                if await self._claimed(work, model, *call, group=pull.group):
                    return True
                empty.add(pull.group)
        return False

    async def claim_suspects(self, work: InstanceWork, model: str) -> None:
        """Claim lines that may have killed an engine, if there are some."""
        work.has_suspects = await self._claimed(work, model, self.requests.claim_suspects, self.holder, model)

    async def _claimed(
        self, work: InstanceWork, model: str, claim: Callable[..., Any], *args: Any, group: int | None = None
    ) -> bool:
        lease, asked_s = Lease(self._clock, self.lease_s), self._clock.monotonic_s()
        lease.ask()
        self.begun += 1
        try:
            found = await self.in_thread(claim, *args, self.lease_s)
            if found is None:
                return False
            lease.granted()
            work.claims[found.id] = HeldClaim.of(found, lease, model, asked_s, group)
            if not work.is_open:
                await self.give_back(work)  # the model has left, or the engine died, meanwhile
            return work.is_open
        finally:
            self.ended += 1

    async def give_back(self, work: InstanceWork) -> None:
        """Give back all lines that have no result, with what they have."""
        claims, work.claims = list(work.claims.values()), {}
        ending = Counter(claim.id for claim in claims)
        self.ending += ending
        try:
            await self.abort(claims)
            for claim in claims:
                if claim.lines:
                    await self.report(self.requests.give_back, claim.id, claim.progress(), claim.unsent())
        finally:
            self.ending -= ending  # renewing gives back what could not be reported

    async def give_back_lines(self, work: InstanceWork, lines: Sequence[tuple[HeldClaim, ClaimedLine]]) -> None:
        """Give back these lines alone, each with what it has, and continue with the others of their claims.

        Return once they have left the engine; a task of its own reports them. If the store is away for as long as a
        lease, the claims lapse with all their lines.
        """
        ending = Counter({claim.id for claim, _ in lines})
        self.ending += ending  # before the claim may be gone from the work: a renewal would give it back
        try:
            for claim, line in lines:
                work.ended(claim, line)
            await cancelled(line.task for _, line in lines)
            by_claim: dict[int, dict[str, bytes | None]] = {}
            for claim, line in lines:
                by_claim.setdefault(claim.id, {})[line.claimed.id] = line.progress
            unsent = {line.claimed.id for _, line in lines if line.was_never_sent}
            self.ending += ending
            reporting = asyncio.create_task(self._report_left(by_claim, unsent))
            self.reporting.add(reporting)
            reporting.add_done_callback(self.reporting.discard)
        finally:
            self.ending -= ending

    async def _report_left(self, by_claim: Mapping[int, Mapping[str, bytes | None]], unsent: set[str]) -> None:
        try:
            with self._faults:
                for id, progress in by_claim.items():
                    await self.report(self.requests.give_back_some, id, progress, sorted(unsent & progress.keys()))
        finally:
            self.ending -= Counter(by_claim.keys())

    async def abort(self, claims: Iterable[HeldClaim]) -> None:
        """End the claims' lines in the engine; results that are already there have a moment to be committed."""
        lines = [line for claim in claims for line in claim.lines.values()]
        committing = [line.task for line in lines if line.has_ended and line.task is not None]
        await cancelled(line.task for line in lines if not line.has_ended)
        if committing:
            await asyncio.wait(committing, timeout=COMMIT_S)

    async def report(self, call: Callable[..., T], *args: Any) -> T | None:
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
