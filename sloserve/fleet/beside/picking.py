"""The choice of a server for a request of another gateway: made by the objects with which a fleet's gateway chooses.

A request that finds no room waits for a while, ordered by deadlines, and then goes to a server's queue. A choice fails
only where there is no server to choose from, or where requests of the class are to be refused under load.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import QueueFull
from sloserve.fleet.beside.choice_settings import DEVICE, ChoiceSection, ServedModel, pace_of
from sloserve.fleet.beside.server_figures import ServerFigures
from sloserve.fleet.beside.servers import Eligible, Servers
from sloserve.fleet.gateway.gateway_instance import GatewayInstance, SentRequest
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldTooLong, Hold, HoldFull
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import Instances

_RETRY_S: Final = 5


class PickedBy(StrEnum):
    """Why a server was chosen."""

    ROOM = "room"
    """The server had room, and the request costs the least time there."""
    HELD = "held"
    """The server was the first with room after the request had waited."""
    FULL = "full"
    """All servers have queues, and the request costs the least time there."""
    SILENT = "silent"
    """No server responds to questions for its load: the servers take turns."""


@dataclass(slots=True)
class Pick:
    """A chosen server. The caller must end it once, however the request ends.

    Args:
        server: Name of the server.
        why: Reason for the choice.
        held_s: Seconds for which the request waited.
        others: Servers to try if this one cannot be reached, the best first.
    """

    server: str
    why: PickedBy
    held_s: float = 0.0
    others: tuple[str, ...] = ()
    sent: SentRequest | None = None
    held: HeldRequest | None = None


class Picking:
    """Chooses servers, and counts the requests on their way.

    Args:
        models: What is known of models, by name.
        section: How servers are chosen.
        clock: Clock of this process.
        others: Number of further servers that each choice names.
    """

    def __init__(
        self, models: Mapping[str, ServedModel], section: ChoiceSection, clock: Clock, others: int = 0
    ) -> None:
        known = {name: pace_of(model) for name, model in models.items()}
        self.instances = Instances({(name, DEVICE): pace for name, (pace, _) in known.items()}, section.affinity)
        self.servers = Servers(self.instances, {name: capacity for name, (_, capacity) in known.items()})
        self._section, self._clock, self._others = section, clock, others
        self._hold = Hold(self.instances, clock, section.max_held)
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a server."""
        return len(self._hold)

    def reported(self, server: str, figures: ServerFigures, sent_before: int) -> None:
        """Take in the figures of a server, which may have room for waiting requests now.

        Args:
            server: Name of the server.
            figures: Figures of the server.
            sent_before: Value of :meth:`Instances.sent` when they were asked for.
        """
        self.servers.reported(server, figures, sent_before, self._clock.monotonic_s())
        self._hold.let_go()

    async def pick(self, request: GatewayRequest, subset: Collection[str] | None = None) -> Pick | None:
        """Choose a server.

        Args:
            request: The request.
            subset: Names of the servers that it may go to; ``None`` for all that are known.

        Returns: ``None`` if there is no server. Raises: QueueFull for a class that is refused where no server has room.
        """
        eligible = self.servers.eligible(request.model, subset)
        pick = None
        if len(eligible.models) == 1:
            pick = await self._of_model(request, eligible.models[0], eligible.among)
        elif eligible.models:
            pick = self._of_any(request, eligible)
        if pick is None:
            return self.any_of(subset)
        pick.others = self._after(pick, eligible.among)
        return pick

    def moved(self, pick: Pick, server: str) -> None:
        """Note that another server got the request, since the first choice could not be reached."""
        if server == pick.server:
            return
        self.ended(pick, refused=True)
        pick.server, instance = server, self.instances.by_name.get(server)
        if instance is not None and pick.held is not None:
            pick.sent = self._send(instance, pick.held)

    def ended(self, pick: Pick, *, refused: bool = False) -> None:
        """Note that the request has ended.

        Args:
            pick: Server of the request.
            refused: Whether the server did not take it: it is full until it reports room.
        """
        if pick.sent is not None:
            pick.sent.end(refused=refused)
            pick.sent = None
            if not refused:
                self.servers.ended(pick.server, self._clock.monotonic_s())
            self._hold.let_go(None if pick.held is None else (pick.held.model,))

    async def _of_model(self, request: GatewayRequest, model: str, among: Collection[str] | None) -> Pick | None:
        held = self._wanted(request, model, among)
        try:
            sent = await self._hold.flight(held) if self._lives(model, among) else None
        except (HoldFull, HeldTooLong):
            sent = None
        if sent is not None:
            why = PickedBy.HELD if held.held_s > 0.0 else PickedBy.ROOM
            return Pick(sent.instance.name, why, held.held_s, sent=sent, held=held)
        now_s = self._clock.monotonic_s()
        full = self.instances.choose_full(model, held.work, held.prompt, now_s, among)
        if full is None:
            return None
        if request.slo_class in self._section.shed:
            message = f"no server has room for requests of class {request.slo_class}; retry in {_RETRY_S} s"
            raise QueueFull(message, _RETRY_S, request.slo_class)
        return Pick(full.name, PickedBy.FULL, held.held_s, sent=self._send(full, held), held=held)

    def _of_any(self, request: GatewayRequest, eligible: Eligible) -> Pick | None:
        """Choose for a request of a model that no server is known to have, while servers have different ones."""
        now_s, found = self._clock.monotonic_s(), list[tuple[GatewayInstance, HeldRequest]]()
        for model in eligible.models:
            held = self._wanted(request, model, eligible.among)
            one = self.instances.choose_full(model, held.work, held.prompt, now_s, eligible.among)
            if one is not None:
                found.append((one, held))
        if not found:
            return None
        one, held = min(found, key=lambda each: (-min(each[0].room, 1), each[0].requests, each[0].number))
        return Pick(one.name, PickedBy.ROOM if one.room > 0 else PickedBy.FULL, sent=self._send(one, held), held=held)

    def any_of(self, subset: Collection[str] | None) -> Pick | None:
        """Choose a server of which nothing is known: of the ones with the fewest requests from here each in turn.

        Args:
            subset: Names of the servers that the request may go to; ``None`` for all that are known.

        Returns: ``None`` if there is no server.
        """
        names = self.servers.silent(subset)
        if not names:
            return None
        self._turn += 1
        known, size = self.instances.by_name, len(names)

        def load(place: int) -> tuple[int, int]:
            instance = known.get(names[place])
            return 0 if instance is None else instance.in_flight, (place - self._turn) % size

        return Pick(names[min(range(size), key=load)], PickedBy.SILENT)

    def _after(self, pick: Pick, among: Collection[str] | None) -> tuple[str, ...]:
        """Return the servers to try after the chosen one."""
        held, found = pick.held, [pick.server]
        if held is None or not self._others:
            return ()
        now_s = self._clock.monotonic_s()
        left = {one.name for one in self.instances.serving(held.model, now_s) if among is None or one.name in among}
        for _ in range(self._others):
            left.discard(found[-1])
            one = self.instances.choose_full(held.model, held.work, held.prompt, now_s, left)
            if one is None:
                break
            found.append(one.name)
        return tuple(found[1:])

    def _lives(self, model: str, among: Collection[str] | None) -> bool:
        """Return whether a server of the model responds: only then is it of use to wait for room."""
        now_s, known = self._clock.monotonic_s(), self.instances.by_name
        servers = known.values() if among is None else (known[name] for name in among if name in known)
        return any(one.serves(model, now_s) for one in servers)

    def _wanted(self, request: GatewayRequest, model: str, among: Collection[str] | None) -> HeldRequest:
        output = self.servers.output_tokens(model, request.most_output)
        held = HeldRequest.of(request, output, self._section.hold_max_s, affinity=self._section.affinity)
        held.model, held.among = model, among
        return held

    def _send(self, instance: GatewayInstance, held: HeldRequest) -> SentRequest:
        return self.instances.send(instance, held.work, held.prompt, self._clock.monotonic_s())
