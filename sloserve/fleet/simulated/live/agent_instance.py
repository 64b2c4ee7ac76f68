"""One instance in virtual time as its agent knows it: the requests that it was sent, its claims, and its report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sloserve.core.spans import Phase
from sloserve.fleet.agent.engine_requests import EngineRequests, InFlightRequest
from sloserve.fleet.agent.giving_way import GivingWay
from sloserve.fleet.agent.recently_sent import RecentlySent
from sloserve.fleet.contract.endpoint import Refusal
from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.simulated.dispatcher import InstanceView, WaitingRequest
from sloserve.fleet.streamed import Streamed
from sloserve.scheduler.virtual_queues.contract import RunningSums
from sloserve.scheduler.virtual_queues.fleet_operations import Queued

NO_SERVICE: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(slots=True)
class _BegunOutput:
    """The output of a request in an engine.

    Args:
        last: Number of its parts from this engine, once it has ended; ``None`` before.
    """

    instance: InstanceView
    request: WaitingRequest
    last: int | None = None
    _streamed: Streamed = field(default_factory=Streamed)

    @property
    def parts(self) -> int:
        if self.last is not None:
            return self.last
        return self.instance.generated(self.request.request_id) - self.request.generated_tokens

    @property
    def streamed(self) -> Streamed:
        self._streamed.events = self.parts
        return self._streamed

    def close(self, refusal: Refusal | None = None) -> None:
        """Do nothing: the fleet preempts the request."""


@dataclass(slots=True)
class Sent:
    """A request in an engine.

    Args:
        ref: The group from which it was pulled; ``None`` for a stream.
    """

    request: WaitingRequest
    ref: int | None
    in_flight: InFlightRequest
    coming: _BegunOutput
    model: str


@dataclass(slots=True)
class AgentInstance:
    """What an agent knows about one instance.

    Args:
        takes: Returns the places of an engine, given the number of requests that it runs at once.
        order: Groups from which it pulls, the first one first.
        empty: Groups in ``order`` in which nothing was found.
        at_hand: Requests that are claimed and not sent yet, each with its group.
        parked: Streams by model that began before their model left; they continue once it is back.
        giving_way: Groups of which running lines give way to the first group of the queue.
        recent: Prompts that it reports to gateways; ``None`` for none.
        is_woken: Whether there may be lines to pull: a look at the plan is over, or a request has ended.
        is_switching: Whether the instance is between the order to switch and the end of the switch.
    """

    view: InstanceView
    takes: Callable[[int], EnginePlaces]
    serves: str | None = None
    is_switching: bool = False
    is_woken: bool = True
    ready_s: float = 0.0
    order: Sequence[Queued] = ()
    empty: set[int] = field(default_factory=set)
    at_hand: list[tuple[int, WaitingRequest]] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    parked: dict[str, list[Sent]] = field(default_factory=dict)
    giving_way: GivingWay = GivingWay()
    recent: RecentlySent[int] | None = None
    _in_flight: dict[str, EngineRequests] = field(default_factory=dict)

    def look(self) -> None:
        """Note a switch that has ended."""
        if self.view.serving:
            if self.recent is not None and self.view.active != self.serves:
                self.recent.clear()
            self.serves, self.is_switching = self.view.active, False

    @property
    def in_flight(self) -> EngineRequests:
        """The requests in the engine; while its model leaves, the requests of that model."""
        return self._in_flight.setdefault(str(self.serves), EngineRequests())

    @property
    def _places(self) -> EnginePlaces:
        return self.takes(self.view.limits(str(self.serves)).max_num_seqs)

    def room(self, *, durable: bool) -> int:
        """Return how many more requests, or lines if ``durable``, the engine takes."""
        return self._places.left(len(self.in_flight), durable=durable)

    @property
    def over(self) -> int:
        """Number of requests in the engine beyond the places of lines, which streams alone can have."""
        return max(self._places.for_streams - self.room(durable=False), 0)

    def refusal(self, request: WaitingRequest) -> Refusal | None:
        """Return why a stream is refused, or ``None`` if it is taken."""
        if self.is_switching:
            return Refusal.SWITCHING
        if self.serves != request.model:
            return Refusal.OTHER_MODEL
        return None if self.room(durable=False) else Refusal.FULL

    def begin(self, request: WaitingRequest, ref: int | None, now_s: float, *, durable: bool) -> None:
        """Send the request to the engine."""
        coming = _BegunOutput(self.view, request)
        limit = None if request.most_tokens is None else max(request.most_tokens - request.generated_tokens, 1)
        in_flight = InFlightRequest(request.model, durable, request.prompt_tokens, limit, True, now_s, coming)
        self.in_flight.begin(in_flight)
        self.sent[request.request_id] = Sent(request, ref, in_flight, coming, request.model)

    def resume(self) -> list[Sent]:
        """Continue the streams that waited for the model that is back, and return them."""
        back = self.parked.pop(str(self.serves), [])
        for one in back:
            one.coming.last = None
        self.sent |= {one.request.request_id: one for one in back}
        return back

    def ended(self, request_id: str, tokens: int, now_s: float, *, complete: bool) -> Sent:
        """Record that the request has left the engine with ``tokens`` output tokens in all, and return it."""
        one = self.sent.pop(request_id)
        # The last event, which only says that it is the last, is one more.
        one.coming.last = tokens - one.request.generated_tokens + complete
        self._in_flight[one.model].ended(one.in_flight, now_s, broken=False)
        self.is_woken = True
        return one

    def park(self, request_id: str, tokens: int) -> None:
        """Keep a request for later when its model leaves before its end; it has ``tokens`` output tokens in all."""
        one = self.sent.pop(request_id)
        one.coming.last = tokens - one.request.generated_tokens
        self.parked.setdefault(one.model, []).append(one)

    def report(
        self, now_s: float, drain_max_s: float, service_s: Mapping[str, float] = NO_SERVICE, *, brief: bool = False
    ) -> InstanceReport:
        """Return the same report as a live agent; a ``brief`` one lacks the running work, which takes longer."""
        view, in_flight = self.view, self.in_flight
        running, drain_s = (RunningSums(), 0.0) if brief else in_flight.outlook()
        serves = not self.is_switching and view.serving
        phase = Phase.SERVING if serves else Phase.DRAINING if view.num_in_flight else Phase.SWITCHING
        ready_s = view.ready_s if phase is Phase.SWITCHING else self.ready_s
        return InstanceReport(
            view.name,
            view.device,
            phase,
            view.models,
            active_for_s=now_s - view.activated_s if serves else None,
            ready_in_s=0.0 if serves else max(abs(ready_s - now_s), 0.1),
            running=running,
            streams=in_flight.streams,
            room=self.room(durable=False) if serves else 0,
            room_for_streams=self._places.for_streams,
            drain_s=min(drain_s, drain_max_s),
            parked={model: len(streams) for model, streams in self.parked.items()},
            service_s=service_s,
            cached={} if self.recent is None else self.recent.reported(now_s),
        )
