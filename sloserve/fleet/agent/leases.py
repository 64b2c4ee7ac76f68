"""Leases of claims: an agent that does not renew them loses its lines to others."""

from collections.abc import Iterable, Mapping

from sloserve.fleet.agent.claims import InstanceWork, LineClaims, cancelled
from sloserve.fleet.agent.line_service import LineService, result_of
from sloserve.fleet.store.records import RequestState


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
            for id in renewed.claims - held.keys() - claims.ending:
                await claims.in_thread(requests.give_back, id, {})  # the claim's response was lost
        await claims.in_thread(requests.take_back)
        if slow:
            await claims.in_thread(requests.excuse, slow)
        for work in self._work.values():
            if not work.lines:
                work.has_suspects = True

    async def _cancel(self, ids: Iterable[str]) -> None:
        """End lines that their clients have cancelled."""
        wanted = set(ids)
        for work in self._work.values():
            for claim in list(work.claims.values()):
                for line in [line for id, line in claim.lines.items() if id in wanted and not line.has_ended]:
                    await cancelled([line.task])
                    if not line.has_ended:
                        line.has_ended = True
                        await self._service.commit(result_of(line, RequestState.CANCELLED, 0, b""))
                    work.ended(claim, line)
            work.wake.set()
