"""Preempts running lines of an instance for lines of the first group of its queue.

Lines of the first group are claimed before any line leaves, so that none leaves for a group that is empty. A line that
leaves goes back into the store with its tokens, and continues on this or another instance; a line of which another
engine could not continue the output stays.
"""

from sloserve.fleet.agent.claims import MOST_CLAIMED, ClaimedLine, HeldClaim, InstanceWork, LineClaims
from sloserve.fleet.agent.giving_way import LineInEngine, lines_to_preempt


def running_lines(work: InstanceWork) -> list[LineInEngine]:
    """Return the lines of an instance that its engine has, or that are on their way to it."""
    return [
        LineInEngine(id, claim.group, line.due_s, claim.id, line.claimed.attempt - 1, line.leaves_well)
        for claim in work.claims.values()
        for id, line in claim.lines.items()
        if line.task is not None and not line.has_ended
    ]


async def make_room_for_head(claims: LineClaims, work: InstanceWork, model: str, room: int) -> bool:
    """Preempt lines if lines of the first group wait and no place is free for them.

    Lines of the first group are only claimed if none is at hand: places may become free while the store is asked, so
    the report of the instance has to be read again before a line leaves.

    Return whether there may be more to do at once: lines were claimed, or left.

    Args:
        claims: Claims of lines.
        work: Work of the instance.
        model: Active model of the instance.
        room: Number of lines that the instance takes now; negative if streams have places of lines.
    """
    giving_way = work.giving_way
    if room > 0 or not giving_way.groups:
        return False
    waiting = len(_unsent(work, of_head=True))
    leaving = set(lines_to_preempt(giving_way, running_lines(work), waiting or MOST_CLAIMED, over=-room))
    if not leaving:
        return False
    if not waiting:
        is_first = bool(work.order) and work.order[0].group == giving_way.head
        most = min(len(leaving) + room, MOST_CLAIMED)
        return is_first and await claims.claim(work, model, most, only=giving_way.head)
    lines = [(claim, line) for claim in work.claims.values() for id, line in claim.lines.items() if id in leaving]
    # Lines of other groups that are at hand would take the places.
    await claims.give_back_lines(work, [*_unsent(work, of_head=False), *lines])
    return True


def _unsent(work: InstanceWork, *, of_head: bool) -> list[tuple[HeldClaim, ClaimedLine]]:
    """Return the lines at hand of the first group, or of the others."""
    return [
        (claim, line)
        for claim in work.claims.values()
        if (claim.group == work.giving_way.head) is of_head
        for line in claim.lines.values()
        if line.waits
    ]
