"""What an agent has claimed, and the state of each of its lines."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sloserve.fleet.agent.line_reply import LineOutput
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import Claim, Claimed

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
        reply: Output of the attempt that runs; ``None`` before the first, since a body that is read takes much memory.
        task: Task that sends it; ``None`` while it waits for room.
        is_sent: Whether an engine may have seen it.
        has_ended: Whether it has a result, which is committed or about to be.
    """

    claimed: Claimed
    model: str
    due_s: float
    reply: LineOutput | None = None
    task: "asyncio.Task[None] | None" = None
    is_sent: bool = False
    has_ended: bool = False

    @property
    def progress(self) -> bytes | None:
        """Progress of its attempt from which another can go on, beside what the store has."""
        return None if self.reply is None else self.reply.progress()

    @property
    def leaves_well(self) -> bool:
        """Whether nothing of it is lost if it is aborted now."""
        return not self.is_sent or self.has_ended or self.progress is not None


@dataclass(eq=False, slots=True)
class HeldClaim:
    """A claim that one instance works on.

    Args:
        id: Number of the claim in the store.
        lease: Lease of the claim.
        alone: Whether its lines must run without others beside them.
        lines: Lines without a committed result, by id.
    """

    id: int
    lease: Lease
    alone: bool
    lines: dict[str, ClaimedLine] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, lease: Lease, model: str, asked_s: float) -> "HeldClaim":
        """Make the lines of a claim.

        Args:
            claim: Claim as the store gave it.
            lease: Lease of the claim.
            model: Model of its requests.
            asked_s: Monotonic time at which it was asked for, in seconds.
        """
        lines = {}
        for one in claim.requests:
            due_s = math.inf if one.left_s is None else asked_s + one.left_s
            lines[one.id] = ClaimedLine(one, model, due_s)
        return cls(claim.id, lease, claim.alone, lines)

    @property
    def was_sent(self) -> bool:
        """Whether an engine may have seen a part of it."""
        return any(line.is_sent for line in self.lines.values())

    def progress(self) -> dict[str, bytes]:
        """Return the progress of its lines from which others can go on, by id."""
        found = {id: line.progress for id, line in self.lines.items()}
        return {id: progress for id, progress in found.items() if progress is not None}


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
        empty: Groups of these in which nothing was found.
        has_suspects: Whether suspects may be in the store, which run before anything else.
        pending_crashes: Number of crashes of its engine that the store does not know yet.
        claims: Claims that it holds, by id.
        wake: Event that wakes the puller.
    """

    is_open: bool = False
    order: Sequence[Pull] = ()
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
