"""One request as Envoy shows it to an endpoint picker: its headers, its body, and the response of the chosen server.

In full-duplex mode, which the protocol asks for, Envoy sends headers and body at once and waits for both to be handed
on: the body is kept until its end, or until it is too long, and then the server is chosen. In buffered mode the headers
are let go first. In any other mode the server is chosen by the headers.

A stream that ends, however it ends, ends the request at its server.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from sloserve.core.clock import Clock
from sloserve.core.errors import QueueFull
from sloserve.fleet.beside.endpoint_picker import responses
from sloserve.fleet.beside.endpoint_picker.messages import BUFFERED, FULL_DUPLEX
from sloserve.fleet.beside.endpoint_picker.picker_metrics import PickerMetrics
from sloserve.fleet.beside.picking import Pick, Picking
from sloserve.fleet.beside.request_reading import RequestReading
from sloserve.wire.asgi import first

logger = logging.getLogger(__name__)

_FULL: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses with which a server says that it takes no more."""


@dataclass(slots=True)
class BodyMemory:
    """Memory for bodies that are kept until their end.

    Args:
        most: Most bytes of all bodies.
        most_of_one: Most bytes of one body.
    """

    most: int
    most_of_one: int
    kept: int = field(default=0, init=False)
    """Bytes that are kept now."""

    def take(self, size: int, of_one: int) -> bool:
        """Count ``size`` more bytes of a body, ``of_one`` with them; return ``False`` if they must not be kept."""
        if of_one > self.most_of_one or self.kept + size > self.most:
            return False
        self.kept += size
        return True

    def give(self, size: int) -> None:
        """Release ``size`` bytes."""
        self.kept -= size


@dataclass(frozen=True, slots=True)
class PickerState:
    """State that all requests of a picker share."""

    picking: Picking
    reading: RequestReading
    memory: BodyMemory
    metrics: PickerMetrics
    clock: Clock


class PickerExchange:
    """One request. :meth:`over` must be called once its stream has ended."""

    def __init__(self, state: PickerState) -> None:
        self._state = state
        self._arrival_s = state.clock.monotonic_s()
        self._headers: list[tuple[bytes, bytes]] = []
        self._path = ""
        self._subset: list[str] | None = None
        self._parts: list[bytes] = []
        self._size = self._kept = 0
        self._request_mode = self._response_mode = FULL_DUPLEX
        self._is_decided = self._has_begun = False
        self._pick: Pick | None = None
        self._slo_class = ""
        self.is_over = False
        """Whether nothing more is to be said: Envoy answers the request itself."""

    async def take(self, message: Any) -> list[Any]:
        """Return the messages with which to answer one of Envoy's."""
        if message.HasField("protocol_config"):
            modes = message.protocol_config
            self._request_mode, self._response_mode = modes.request_body_mode, modes.response_body_mode
        match message.WhichOneof("request"):
            case "request_headers":
                found = await self._take_headers(message)
            case "request_body":
                found = await self._take_body(message.request_body)
            case "request_trailers":
                found = [] if self._is_decided else await self._decided(is_end=False)
                found += [] if self.is_over else [responses.unchanged("request_trailers")]
            case "response_headers":
                found = self._take_response(message)
            case "response_body":
                found = self._take_response_body(message.response_body)
            case "response_trailers":
                found = [responses.unchanged("response_trailers")]
            case _:
                found = []
        return [] if message.observability_mode else found

    def over(self) -> None:
        """End the request at its server, and forget its body."""
        self._forget()
        if self._pick is not None:
            self._state.picking.ended(self._pick)
            self._pick = None

    async def _take_headers(self, message: Any) -> list[Any]:
        shown = message.request_headers
        self._headers = responses.headers_in(shown.headers)
        self._path = first(self._headers, b":path").decode("latin-1")
        self._subset = responses.subset_in(message.metadata_context)
        if shown.end_of_stream:
            return await self._decided(is_end=True, has_body=False)
        if self._request_mode == FULL_DUPLEX:
            return []
        if self._request_mode == BUFFERED:
            return [responses.unchanged("request_headers")]
        return await self._decided(is_end=False, has_body=False)

    async def _take_body(self, shown: Any) -> list[Any]:
        body, is_end = shown.body, shown.end_of_stream
        if self._is_decided:
            if self._request_mode == FULL_DUPLEX:
                return list(responses.pieces("request_body", body, is_end=is_end))
            return [responses.unchanged("request_body")]
        self._size += len(body)
        self._parts.append(body)
        if not self._state.memory.take(len(body), self._size):
            return await self._decided(is_end=is_end, is_whole=False)
        self._kept += len(body)
        if is_end or self._request_mode == BUFFERED:
            return await self._decided(is_end=is_end)
        return []

    async def _decided(self, *, is_end: bool, has_body: bool = True, is_whole: bool = True) -> list[Any]:
        """Choose a server, and return the messages that say so and hand on what was kept of the body.

        Args:
            is_end: Whether nothing of the body follows.
            has_body: Whether the message answers a part of the body.
            is_whole: Whether all of the body is there.
        """
        self._is_decided = True
        parts, in_body = self._parts, has_body and self._request_mode == BUFFERED
        body = b"".join(parts) if is_whole and has_body else None
        refusal = await self._choose(body)
        if refusal is not None:
            self.is_over = True
            self._forget()
            return [refusal]
        assert self._pick is not None
        found = [responses.chosen((self._pick.server, *self._pick.others), in_body=in_body)]
        if has_body and not in_body:
            found += self._handed_on(b"".join(parts) if body is None else body, is_end)
        self._forget()
        return found

    def _handed_on(self, body: bytes, is_end: bool) -> Iterator[Any]:
        if body or is_end:
            yield from responses.pieces("request_body", body, is_end=is_end)

    async def _choose(self, body: bytes | None) -> Any | None:
        """Choose a server; return the message that refuses the request if there is none for it."""
        state, began_s = self._state, self._state.clock.monotonic_s()
        try:
            request, how = state.reading.read(self._headers, body, self._path, self._arrival_s, self._size)
            self._slo_class = request.slo_class
            state.metrics.read.labels(how.value).inc()
            self._pick = await state.picking.pick(request, self._subset)
        except QueueFull as error:
            state.metrics.refused.labels(str(HTTPStatus.TOO_MANY_REQUESTS.value)).inc()
            return responses.refused(error, self._path)
        except Exception:
            logger.exception("a choice failed; the servers take turns")
            state.metrics.faults.inc()
            self._pick = state.picking.any_of(self._subset)
        if self._pick is None:
            state.metrics.refused.labels(str(HTTPStatus.SERVICE_UNAVAILABLE.value)).inc()
            return responses.without_server(self._path)
        held_s = self._pick.held_s
        state.metrics.picks.labels(self._slo_class, self._pick.why.value).inc()
        state.metrics.choice.observe(max(state.clock.monotonic_s() - began_s - held_s, 0.0))
        state.metrics.held.labels(self._slo_class).observe(held_s)
        return None

    def _take_response(self, message: Any) -> list[Any]:
        shown, picking = message.response_headers, self._state.picking
        served = responses.served_in(message.metadata_context)
        if self._pick is not None:
            if served is not None:
                picking.moved(self._pick, served)
            status = first(responses.headers_in(shown.headers), b":status")
            if status.isdigit() and int(status) in _FULL:
                picking.ended(self._pick, refused=True)
            elif shown.end_of_stream:
                picking.ended(self._pick)
        return [responses.unchanged("response_headers")]

    def _take_response_body(self, shown: Any) -> list[Any]:
        if not self._has_begun and shown.body:
            self._has_begun = True
            waited_s = self._state.clock.monotonic_s() - self._arrival_s
            self._state.metrics.first.labels(self._slo_class).observe(waited_s)
        if shown.end_of_stream and self._pick is not None:
            self._state.picking.ended(self._pick)
        if self._response_mode == FULL_DUPLEX:
            return list(responses.pieces("response_body", shown.body, is_end=shown.end_of_stream))
        return [responses.unchanged("response_body")]

    def _forget(self) -> None:
        self._parts = []
        self._state.memory.give(self._kept)
        self._kept = 0
