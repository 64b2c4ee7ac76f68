"""A gateway in virtual time: it meters, holds and sends requests on events in place of connections."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sloserve.core.errors import PromiseRefused
from sloserve.core.request import PREFIX_BLOCK_TOKENS
from sloserve.core.slo import SLO, ClassTable, Targets
from sloserve.fleet.contract.endpoint import Refusal
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import AgentReport, GatewayReport
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.held import HeldRequests, HoldFull
from sloserve.fleet.gateway.held_request import HeldRequest, comes_first_after_s, held_due_after_s
from sloserve.fleet.gateway.instances import COMPARED, Instances
from sloserve.fleet.gateway.prediction import Work, paces_of
from sloserve.fleet.gateway.prefixes import Beginning, chained
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.fleet.simulated.live.simulated_promises import SimulatedPromises
from sloserve.fleet.streamed import Streamed


@dataclass(slots=True)
class _StreamState:
    """One request at the gateway.

    Args:
        sent: Record of the last instance to which it was sent, or ``None`` before.
        sent_s: Time when it was sent, in seconds.
    """

    request: WaitingRequest
    held: HeldRequest
    sent: SentRequest | None = None
    sent_s: float = 0.0


Send = Callable[[WaitingRequest, str], Refusal | None]
"""A function that sends a request to the instance of this name, and returns the reason of a refusal or ``None``."""


class SimulatedGateway:
    """A gateway that serves streams.

    Args:
        prefixes: Whether expected hits in prefix caches count.
        shares: Whether requests are held by the shares of their tenants, if the settings have any.
        compared: Most instances that are all compared for one stream.
        promises: Whether streams ask for promises, and engines can keep them.
    """

    def __init__(
        self,
        fleet: Fleet,
        send: Send,
        *,
        prefixes: bool,
        shares: bool = True,
        compared: float = COMPARED,
        promises: bool = False,
    ) -> None:
        self._send = send
        self._classes: ClassTable = fleet.settings.classes
        self._hold_max_s = fleet.gateway.hold_max_s
        self._meter = DemandMeter(self._classes)
        self._instances = Instances(paces_of(fleet), prefixes, compared)
        tenant_shares = fleet.settings.tenant_shares if shares else None
        self._held = HeldRequests(self._instances, fleet.gateway.max_held, tenant_shares)
        self._promises = SimulatedPromises(fleet.settings.classes.names) if promises else None
        self._streams: dict[str, _StreamState] = {}
        self._of: dict[HeldRequest, str] = {}

    @property
    def waits(self) -> bool:
        """Whether any request waits for an instance."""
        return bool(self._held)

    def arrived(self, request: WaitingRequest, now_s: float) -> bool:
        """Place a stream that has come, or has come back from an instance; return ``False`` if it is turned away."""
        stream = self._streams.get(request.request_id)
        if stream is None:
            try:
                stream = self._new(request, now_s)
            except PromiseRefused:
                return False
        elif stream.sent is not None:
            stream.held.sent_back(now_s - stream.sent_s)
            stream.sent.end(refused=True, gone=True)
        try:
            self._place(stream, now_s)
        except HoldFull:
            self._forget(stream, None, now_s)
            return False
        return True

    def let_go(self, now_s: float) -> Iterator[str]:
        """Send requests for which there is room now; yield the ids of requests that have waited too long."""
        for held, flight in self._held.let_go(now_s):
            stream = self._streams[self._of[held]]
            if not self._sent(stream, flight, now_s):
                self._place(stream, now_s)
        for held in [one for one in self._held if one.refused_s <= now_s]:
            self._held.left(held)
            stream = self._streams[self._of[held]]
            self._forget(stream, None, now_s)
            yield stream.request.request_id

    def began(self, request_id: str, now_s: float) -> None:
        """Record that the first token of a stream has come."""
        if self._promises is not None:
            self._promises.began(request_id, now_s)

    def ended(self, request_id: str, tokens: int, now_s: float) -> None:
        """Record that an output is complete."""
        stream = self._streams[request_id]
        self._forget(stream, tokens, now_s)
        whole = Streamed(tokens + 1)  # and the event that says that it is the last
        self._meter.ended(stream.request.model, stream.request.slo_class, whole, None)

    def asked(self, report: AgentReport, now_s: float) -> None:
        """Take in the report of an agent."""
        self._instances.reported(report, report.door, self._instances.sent(), now_s)

    def report(self, now_s: float, plan: PlanInForce | None) -> GatewayReport:
        """Read the plan, and return the gateway's report to the planner."""
        self._instances.plan = plan
        return self._meter.report(self._held, now_s)

    def _new(self, request: WaitingRequest, now_s: float) -> _StreamState:
        if self._promises is not None:
            serving = len(self._instances.serving(request.model, now_s))
            request = replace(request, promised=self._promises.arrived(request, serving, now_s))
        first_after_s = comes_first_after_s(request.promised, self._hold_max_s)
        self._meter.arrived(request.model, request.slo_class, request.prompt_tokens, now_s)
        output = self._meter.output_tokens(request.model, request.slo_class, request.most_tokens)
        slo = request.slo or SLO(self._classes[request.slo_class], Targets())
        held = HeldRequest(
            model=request.model,
            slo_class=request.slo_class,
            arrival_s=request.arrival_s,
            due_s=request.arrival_s + held_due_after_s(slo),
            rank=request.rank,
            until_s=request.arrival_s + self._hold_max_s,
            work=Work(1, request.prompt_tokens, output),
            prompt=beginnings_of(request),
            tenant=request.tenant,
            first_from_s=None if first_after_s is None else request.arrival_s + first_after_s,
        )
        self._of[held] = request.request_id
        stream = self._streams[request.request_id] = _StreamState(request, held)
        return stream

    def _place(self, stream: _StreamState, now_s: float) -> None:
        """Send the stream, or hold it. Raises: HoldFull."""
        while (flight := self._held.arrived(stream.held, now_s)) is not None:
            if self._sent(stream, flight, now_s):
                return

    def _sent(self, stream: _StreamState, flight: SentRequest, now_s: float) -> bool:
        refusal = self._send(stream.request, flight.instance.name)
        if refusal is not None:  # the instance has changed since its agent's last report
            flight.end(refused=True, gone=refusal is not Refusal.FULL)
            return False
        stream.sent, stream.sent_s = flight, now_s
        return True

    def _forget(self, stream: _StreamState, tokens: int | None, now_s: float) -> None:
        if self._promises is not None:
            self._promises.ended(stream.request.request_id, tokens, now_s)
        del self._streams[stream.request.request_id], self._of[stream.held]
        if stream.sent is not None:
            stream.sent.end()


def beginnings_of(request: WaitingRequest) -> tuple[Beginning, ...]:
    """Return the beginnings of a request's prompt, cut about where messages of a conversation end."""
    ids, size = request.prefix_ids, max(PREFIX_BLOCK_TOKENS // request.prefix_block_tokens, 1)
    pieces = (ids[start : start + size] for start in range(0, len(ids), size))
    ends = (min(request.prefix_block_tokens * (i + size), request.prompt_tokens) for i in range(0, len(ids), size))
    texts = (b"".join(id_.to_bytes(8, "little", signed=True) for id_ in piece) for piece in pieces)
    return chained(request.model, zip(texts, ends, strict=True))
