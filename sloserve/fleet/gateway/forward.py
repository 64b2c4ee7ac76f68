"""One request through the gateway: read, admitted, sent to an instance, its answer passed on as it comes.

Nothing of an answer is parsed but for what the gateway must know: whether it has begun, how many events it has. Until
its first byte has come the request can go elsewhere, and its client sees nothing of that; after that the stream ends
with an error event.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from sloserve.admission.admission import Admission, Ticket
from sloserve.admission.prediction import ArrivingRequest
from sloserve.core.clock import Clock
from sloserve.core.errors import DeadlinePassed, EngineError, Evicted, InvalidRequest, QueueFull, Rejected, UnknownModel
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.fleet.contract.door import Refusal, Refused
from sloserve.fleet.gateway.asked import Asked, Reader
from sloserve.fleet.gateway.choosing import Chooser, Chosen, PredictedTimes
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.doors import Broken, Doors, Upstream
from sloserve.fleet.gateway.held import HeldRequest, HoldFull
from sloserve.fleet.gateway.hold import HeldTooLong, Hold
from sloserve.fleet.gateway.instances import Flight, Instances
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import InFlight, Place
from sloserve.fleet.gateway.metrics import NO_MODEL, GatewayMetrics
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import beginnings
from sloserve.fleet.gateway.settings import GatewaySettings
from sloserve.fleet.streamed import Streamed
from sloserve.settings import PluginSettings
from sloserve.wire import errors
from sloserve.wire.asgi import BodyTooLarge, ClientLeft, Receive, Scope, Send, declares_more, read_body, tell_slo
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.headers import REQUEST_ID, TTL

logger = logging.getLogger(__name__)

MOST_LOST: Final = 2
"""Engines that may die with a request before it is answered with an error: it may be what kills them."""
MAX_RETRY_AFTER_S: Final = 30
_BODY_S: Final = 60.0
"""Longest time that a client may take to send its body."""
CHOSEN_MODEL: Final = "x-sloserve-model"
"""Header of the answer to a request that named a set of models: which of them serves it, and why."""
_IN_HEADER: Final = "/:@+,"
"""What stands in a header as it is, beside letters, digits, and ``_.-~``."""
_REQUEST_ID: Final = REQUEST_ID.encode()
_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}


@dataclass
class Parts:
    """What all requests of a gateway share.

    Args:
        models: of the fleet.
        settings: of its engines and classes. limits: of the gateway.
        chooser: for requests that name no model, where there is one.
    """

    models: Collection[str]
    settings: PluginSettings
    limits: GatewaySettings
    clock: Clock
    instances: Instances
    doors: Doors
    hold: Hold
    demand: DemandMeter
    metrics: GatewayMetrics
    chooser: Chooser | None = None
    reader: Reader = field(init=False)
    in_flight: InFlight = field(init=False)
    admissions: dict[str, Admission] = field(init=False, default_factory=dict)
    passing_on: dict["Exchange", None] = field(init=False, default_factory=dict)
    """Those whose answer has begun."""

    def __post_init__(self) -> None:
        self.reader = Reader(self.settings)
        self.in_flight = InFlight(self.limits.max_requests, self.limits.max_body_mib << 20)

    def admission(self, model: str) -> Admission:
        """Returns the admission of one model, over all its instances."""
        known = self.admissions.get(model)
        if known is None:
            known = self.admissions[model] = self.settings.admission.make(
                self.settings.classes.names, lambda place: not place.request.begun
            )
        return known


class Exchange:
    """One request and its answer."""

    def __init__(self, parts: Parts, tenant: Tenant, request_id: str, send: Send) -> None:
        self._parts, self._tenant, self._send = parts, tenant, send
        self._headers = [(_REQUEST_ID, request_id.encode())]
        """Headers that the answer has beside the engine's."""
        self._request_id = request_id
        self._arrival_s = parts.clock.monotonic_s()
        self._model, self._slo_class = NO_MODEL, ""
        self._streamed = Streamed()
        self._foreseen: PredictedTimes | None = None
        self._choose_again: Callable[[], Chosen] | None = None
        """For a request that named a set of models."""
        self._first_s: float | None = None
        self._status = 0
        self.has_read = False
        """Whether the body was read to its end."""
        self._client: WhileClientWaits | None = None
        self._passed = self._passed_before = 0
        """Parts of the answer, now and when :meth:`check` last saw that it went on."""
        self._went_on_s = self._arrival_s

    @property
    def begun(self) -> bool:
        """Whether the first byte of the answer has come."""
        return self._first_s is not None

    def check(self, now_s: float) -> None:
        """Ends it where neither engine nor client has done anything for so long as may be."""
        if self._passed != self._passed_before:
            self._passed_before, self._went_on_s = self._passed, now_s
        elif now_s - self._went_on_s > self._parts.limits.silent_max_s and self._client is not None:
            logger.warning("a stream of model %s is ended: nothing was passed on for too long", self._model)
            self._client.give_up()

    async def run(self, scope: Scope, receive: Receive) -> None:
        """Serves it. Raises: SloServeError, BodyTooLarge where nothing of an answer was sent; ClientLeft."""
        outcome = Outcome.FAILED
        try:
            with self._parts.in_flight.place(self._tenant) as place:
                asked = await self._read(scope, receive, place)
                async with WhileClientWaits(receive) as client:
                    self._client = client
                    outcome = await self._serve(scope["path"], asked, place, client)
        except (InvalidRequest, UnknownModel, Rejected, BodyTooLarge):
            outcome = Outcome.REJECTED
            raise
        except Evicted:
            outcome = Outcome.EVICTED
            raise
        except (ClientLeft, asyncio.CancelledError):
            outcome = Outcome.ABORTED
            raise
        finally:
            self._parts.metrics.ended(self._model, self._slo_class, outcome)

    async def _read(self, scope: Scope, receive: Receive, place: Place) -> Asked:
        most = self._parts.settings.max_body_bytes
        if declares_more(scope["headers"], most):
            raise BodyTooLarge
        try:
            async with asyncio.timeout(_BODY_S):
                body = await read_body(receive, most, place.take)
        except TimeoutError:
            raise InvalidRequest("request body", "", f"complete after {_BODY_S:g} s") from None
        self.has_read = True
        asked = self._parts.reader.read(scope["headers"], body, self._tenant, self._request_id)
        tell_slo(scope, asked.slo)
        models = [model for model in self._parts.models if self._tenant.may_use(model)]
        sets = {} if self._parts.chooser is None else self._parts.chooser.sets(models)
        if self._parts.chooser is not None and isinstance(asked.model, str) and asked.model in sets:
            choose = partial(
                self._parts.chooser.choose, asked, sets[asked.model], scope["path"], self._tenant, self._arrival_s
            )
            self._choose(asked, choose())
            self._choose_again = partial(choose, again=True)
        if asked.model not in models:
            raise UnknownModel(asked.model, (*sets, *models))
        self._model, self._slo_class = asked.model, asked.slo.slo_class.name
        return asked

    def _choose(self, asked: Asked, chosen: Chosen) -> None:
        asked.to_model(chosen.model)
        name, told = CHOSEN_MODEL.encode(), f"{quote(chosen.model, safe=_IN_HEADER)};why={chosen.why}"
        self._headers = [*(header for header in self._headers if header[0] != name), (name, told.encode())]
        self._foreseen = chosen.foreseen
        self._parts.metrics.chose(chosen.model, chosen.why, chosen.shadow)

    async def _serve(self, path: str, asked: Asked, place: Place, client: WhileClientWaits) -> Outcome:
        parts, now_s = self._parts, self._parts.clock.monotonic_s()
        parts.demand.arrived(self._model, self._slo_class, asked.prompt_tokens, now_s)
        self._ticket = self._admit(asked, now_s)
        completed = False
        try:
            upstream, first, flight = await self._first_byte(path, asked)
            try:
                self._status = upstream.status
                self._begin(asked)
                place.forget_body()
                asked.forget_body()
                completed = await self._pass_on(upstream, first, client)
            finally:
                self._over(flight, upstream)
        finally:
            self._end(asked, completed)
        return self._outcome(completed)

    def _admit(self, asked: Asked, now_s: float) -> Ticket:
        """Raises: QueueFull, SLOUnattainable."""
        new = ArrivingRequest(
            asked.slo,
            self._arrival_s,
            asked.prompt_tokens,
            asked.max_tokens,
            asked.output_tokens,
            asked.replies,
            asked.streamed,
            key=lambda: (self._tenant.name, hash(asked.body)),
        )
        admission = self._parts.admission(self._model)
        return admission.admit(new, admission.forecast(new, now_s), self, now_s)

    # To an instance.

    async def _first_byte(self, path: str, asked: Asked) -> tuple[Upstream, bytes, Flight]:
        """The beginning of an answer, from whichever instance gives one. Raises: Rejected, Evicted, EngineError."""
        wanted, lost = self._wanted(asked), 0
        while True:
            flight = await self._flight(wanted, asked)
            refused: Refusal | None = None
            upstream: Upstream | None = None
            sent_s = self._parts.clock.monotonic_s()
            try:
                upstream = await self._sent_to(flight, path, asked, wanted)
                first = await upstream.read()
                return upstream, first, flight
            except Refused as error:
                refused = error.reason
            except Broken:
                refused = Refusal.DIED
            except BaseException:
                self._over(flight, upstream)
                raise
            gone = refused is not Refusal.FULL
            self._over(flight, upstream, refused=True, gone=gone)
            self._parts.metrics.retried(refused.value)
            wanted.sent_back(self._parts.clock.monotonic_s() - sent_s)
            lost += refused is Refusal.DIED
            if lost >= MOST_LOST:
                logger.warning("%d engines broke off with one request of model %s; it is given up", lost, self._model)
                raise EngineError(f"{lost} engines broke off with this request before its first token; it is given up")
            if gone:
                wanted = self._elsewhere(asked, wanted)

    def _elsewhere(self, asked: Asked, wanted: HeldRequest) -> HeldRequest:
        """Where another model may serve the request whose engine was lost, the router chooses again."""
        before, now_s = self._model, self._parts.clock.monotonic_s()
        if self._choose_again is None:
            return wanted
        try:
            chosen = self._choose_again()
            if chosen.model == before:
                return wanted
            self._model = chosen.model
            ticket = self._admit(asked, now_s)
        except (InvalidRequest, Rejected):
            self._model = before
            return wanted
        self._ticket.ended(None, 0, now_s)
        self._ticket = ticket
        self._choose(asked, chosen)
        self._parts.demand.arrived(self._model, self._slo_class, asked.prompt_tokens, now_s)
        return self._wanted(asked).after(wanted)

    async def _sent_to(self, flight: Flight, path: str, asked: Asked, wanted: HeldRequest) -> Upstream:
        parts, instance, late_s = self._parts, flight.instance, wanted.held_s + wanted.away_s
        parts.metrics.sent(parts.clock.monotonic_s() - self._arrival_s - late_s, self._slo_class, wanted.held_s)
        headers = asked.headers_after(late_s)
        return await parts.doors.send(instance.door, instance.name, path, headers, asked.body, self._model)

    def _over(self, flight: Flight, upstream: Upstream | None, *, refused: bool = False, gone: bool = False) -> None:
        """The request is with this instance no more."""
        if upstream is not None:
            upstream.close()
        flight.end(refused=refused, gone=gone)
        self._parts.hold.let_go((self._model,))

    def _wanted(self, asked: Asked) -> HeldRequest:
        slo = asked.slo
        target_s = slo.targets.next_s()
        ends_s = self._arrival_s + (math.inf if asked.ttl_s is None else asked.ttl_s)
        output = self._parts.demand.output_tokens(self._model, self._slo_class, asked.most_output)
        return HeldRequest(
            model=self._model,
            slo_class=self._slo_class,
            arrival_s=self._arrival_s,
            due_s=self._arrival_s + (slo.slo_class.aged_after_s if target_s is None else target_s),
            rank=slo.slo_class.rank,
            until_s=min(self._arrival_s + self._parts.limits.hold_max_s, ends_s),
            ends_s=ends_s,
            work=Work(1, asked.prompt_tokens, output * asked.replies),
            prompt=beginnings(self._model, asked.messages, asked.prompt) if self._parts.limits.affinity else (),
        )

    async def _flight(self, wanted: HeldRequest, asked: Asked) -> Flight:
        try:
            return await self._parts.hold.flight(wanted)
        except HoldFull:
            retry_s = self._retry_after_s()
            message = f"{self._parts.limits.max_held} requests wait for an instance; retry in {retry_s} s"
            raise QueueFull(message, retry_s, self._slo_class) from None
        except HeldTooLong:
            retry_s = self._retry_after_s()
            waited = f"no instance took the request within {self._parts.clock.monotonic_s() - self._arrival_s:.1f} s"
            if asked.ttl_s is not None and asked.ttl_s <= self._parts.limits.hold_max_s:
                raise DeadlinePassed(f"{waited}, the time of {TTL}; retry in {retry_s} s", retry_s) from None
            raise QueueFull(f"{waited}; retry in {retry_s} s", retry_s, self._slo_class) from None

    def _retry_after_s(self) -> int:
        """Until a place should be free, and its model be there."""
        now_s = self._parts.clock.monotonic_s()
        place_s = self._parts.admission(self._model).promise_place(self._slo_class, now_s)
        ready_s = self._parts.instances.ready_in_s(self._model, now_s) or 0.0
        return min(max(place_s, int(ready_s) + 1), MAX_RETRY_AFTER_S)

    # To the client.

    def _begin(self, asked: Asked) -> None:
        now_s = self._first_s = self._went_on_s = self._parts.clock.monotonic_s()
        self._parts.passing_on[self] = None
        if self._status == HTTPStatus.OK and asked.streamed:
            self._ticket.started(now_s)
            self._parts.metrics.first_byte(self._model, self._slo_class, now_s - self._arrival_s)

    async def _pass_on(self, upstream: Upstream, first: bytes, client: WhileClientWaits) -> bool:
        """Whether the answer has come to its end."""
        send, read = self._send, upstream.read
        headers = [*upstream.headers, *self._headers]
        await send({"type": "http.response.start", "status": upstream.status, "headers": headers})
        if upstream.is_whole(first):
            client.answered()
            await send({"type": "http.response.body", "body": first})
            self._streamed.add(first)
            return True
        part, last = first, b""
        try:
            while part:
                self._streamed.add(part)
                last = part
                await send({"type": "http.response.body", "body": part, "more_body": True})
                self._passed += 1
                part = await read()
        except Broken as error:
            logger.warning("a stream of model %s broke off: %s", self._model, error)
            client.answered()
            if not upstream.is_stream:
                raise  # the length is promised: what is missing must show
            await send({"type": "http.response.body", "body": _error_event(last), "more_body": True})
            await send(_END)
            return False
        client.answered()
        await send(_END)
        return True

    def _end(self, asked: Asked, completed: bool) -> None:
        self._parts.passing_on.pop(self, None)
        now_s, tokens, latency = self._parts.clock.monotonic_s(), 0, None
        if completed and self._status == HTTPStatus.OK and self._first_s is not None:
            limit = asked.max_tokens if asked.replies == 1 else None
            tokens = self._parts.demand.ended(self._model, self._slo_class, self._streamed, limit)
        if tokens and self._first_s is not None:
            tpot_s = (now_s - self._first_s) / max(tokens - 1, 1)
            latency = Latency(self._first_s - self._arrival_s, tpot_s, now_s - self._arrival_s)
            if self._foreseen is not None and self._parts.chooser is not None:
                ratio = latency.e2e_s / self._foreseen.completion_s(tokens)
                self._parts.chooser.ended(self._model, self._foreseen, ratio)
                self._parts.metrics.completed(self._model, ratio)
        self._ticket.ended(latency, tokens, now_s)

    def _outcome(self, completed: bool) -> Outcome:
        if not completed or self._status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Outcome.FAILED
        return Outcome.REJECTED if self._status >= HTTPStatus.BAD_REQUEST else Outcome.COMPLETED


def _error_event(last: bytes) -> bytes:
    """As vLLM ends a stream that failed. last: what came before, perhaps not a whole event."""
    status = HTTPStatus.BAD_GATEWAY
    body: Mapping[str, object] = errors.body(status, "the engine broke off within the reply; send the request again")
    begin = b"" if last.endswith(b"\n\n") else b"\n\n"
    return begin + b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"
