"""What an agent has claimed and where each line of it stands."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sloserve.fleet.agent.line_reply import LineReply
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import Claim, Claimed

MOST_CLAIMED: Final = 64
"""Requests in one claim."""
_LEAST_CLAIMED: Final = 16
"""Claimed at once even where the engine takes fewer now: the rest is at hand when it takes more."""


@dataclass(eq=False, slots=True)
class ClaimedLine:
    """One claimed request.

    Args:
        due_s: its deadline by this process' monotonic clock, inf for none.
        reply: of the attempt that runs; ``None`` before the first, since a body that is read takes much memory.
        task: that sends it; ``None`` while it waits for room.
        is_sent: an engine may have seen it.
        has_ended: it has a result, which is committed or about to be.
    """

    claimed: Claimed
    model: str
    due_s: float
    reply: LineReply | None = None
    task: "asyncio.Task[None] | None" = None
    is_sent: bool = False
    has_ended: bool = False

    @property
    def progress(self) -> bytes | None:
        """What its attempt leaves to go on from, beside what the store has."""
        return None if self.reply is None else self.reply.progress()

    @property
    def leaves_well(self) -> bool:
        """Whether nothing is lost of it when it is aborted now."""
        return not self.is_sent or self.has_ended or self.progress is not None


@dataclass(eq=False, slots=True)
class HeldClaim:
    """A claim that one instance works on. lines: by id, those without a committed result."""

    id: int
    lease: Lease
    alone: bool
    lines: dict[str, ClaimedLine] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, lease: Lease, model: str, asked_s: float) -> "HeldClaim":
        """asked_s: when it was asked for, by the monotonic clock."""
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
        """What its lines leave for others to go on from, by id."""
        found = {id: line.progress for id, line in self.lines.items()}
        return {id: progress for id, progress in found.items() if progress is not None}


@dataclass(frozen=True, slots=True)
class Pull:
    """A group to pull from, and the model of its requests."""

    group: int
    model: str


def places_for_lines(report: InstanceReport, on_their_way: int) -> int:
    """Lines that the instance takes now. on_their_way: lines to its engine that are not in its report yet."""
    return report.room - report.room_for_streams - on_their_way


def lines_to_claim(places: int, at_hand: int) -> int:
    """How many more lines an instance claims, 0 for none. places: that lines have now. at_hand: claimed, not sent."""
    if places <= 0 or at_hand >= places + _LEAST_CLAIMED:
        return 0
    return min(max(places, _LEAST_CLAIMED), MOST_CLAIMED)


def may_leave(loses_nothing: bool, any_runs: bool, streams: int) -> bool:
    """Whether the lines of an instance whose model leaves are aborted now, rather than awaited. loses_nothing: another
    engine can go on with each, which need not be waited for unless something else is. any_runs: in the engine.
    """
    return loses_nothing and not (any_runs and streams)


@dataclass(eq=False, slots=True)
class InstanceWork:
    """What one instance works on.

    is_open: it may pull. order: groups to pull from, the first first. empty: groups of these in which nothing was
    found. has_suspects: some may be in the store, and are run before anything else. pending_crashes: crashes of
    its engine that the store does not know yet.
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
        """All that have no committed result."""
        return [line for claim in self.claims.values() for line in claim.lines.values()]

    def ended(self, claim: HeldClaim, line: ClaimedLine) -> None:
        """The result of the line is committed."""
        claim.lines.pop(line.claimed.id, None)
        if not claim.lines:
            self.claims.pop(claim.id, None)

    def look_again(self) -> None:
        """There may be suspects, and lines in groups that had none."""
        self.has_suspects = True
        self.empty = set()
        self.wake.set()
