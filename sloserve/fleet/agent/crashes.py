"""Lines that an engine died with: which of them may have killed it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from sloserve.fleet.agent.claims import HeldClaim, InstanceWork, LineClaims
from sloserve.fleet.supervised import Faults

logger = logging.getLogger(__name__)

_FAILED_AT: Final = 5
"""Attempt at which a line fails that ran alone when its engine died, but with streams beside it."""


class Crashes:
    """Gives back what a dead engine had, and reports to the store which of these lines may have killed it."""

    def __init__(self, claims: LineClaims) -> None:
        self._claims = claims
        self._faults = Faults("lines of a dead engine go back when leases are renewed")
        self.requeuing: set[asyncio.Task[None]] = set()
        """Tasks that report claims to the store."""

    def died(self, work: InstanceWork, streams: int) -> None:
        """Note that the engine of an instance has died with its claims, and with ``streams`` streams.

        Nothing is pulled for the instance until the store knows.
        """
        claims, work.claims = list(work.claims.values()), {}
        self._claims.ending += Counter(claim.id for claim in claims)
        work.pending_crashes += 1
        requeuing = asyncio.create_task(self._requeue(work, claims, streams))
        self.requeuing.add(requeuing)
        requeuing.add_done_callback(self.requeuing.discard)

    async def _requeue(self, work: InstanceWork, claims: Sequence[HeldClaim], streams: int) -> None:
        try:
            with self._faults:
                await self._mark_suspects(claims, streams)
        finally:
            self._claims.ending -= Counter(claim.id for claim in claims)
            work.pending_crashes -= 1
            work.look_again()

    async def _mark_suspects(self, claims: Sequence[HeldClaim], streams: int) -> None:
        report, requests = self._claims.report, self._claims.requests
        await self._claims.abort(claims)
        held = [claim for claim in claims if claim.lines]
        suspects = [claim for claim in held if claim.was_sent and not _is_doubtful(claim, streams)]
        for claim in held:
            if claim not in suspects:
                await report(requests.give_back, claim.id, claim.progress(), claim.unsent())
        if suspects:
            for id in await report(requests.engine_died, [claim.id for claim in suspects]) or ():
                logger.warning("request %s has failed: the engine died while it served this request alone", id)


def _is_doubtful(claim: HeldClaim, streams: int) -> bool:
    """Return whether it is a single suspect and its engine died with streams: one of the streams may have killed it."""
    if not (claim.alone and len(claim.lines) == 1 and streams):
        return False
    return next(iter(claim.lines.values())).claimed.attempt < _FAILED_AT
