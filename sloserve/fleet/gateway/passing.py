"""A response on its way to its client.

It is parsed only for what the gateway must know: whether it has begun, and how many events it has.
"""

import json
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from sloserve.fleet.client_routes import MESSAGES, RESPONSES
from sloserve.fleet.gateway.agent_connections import BrokenResponse, EngineResponse
from sloserve.fleet.streamed import Streamed
from sloserve.wire import errors
from sloserve.wire.asgi import Send
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.event_stream import EVENT_STREAM
from sloserve.wire.progress import RequestProgress
from sloserve.wire.waiting_comments import WaitingComments

logger = logging.getLogger(__name__)

_BROKE_OFF: Final = "the engine broke off within the response; send the request again"
_STATUSES: Final = frozenset(HTTPStatus)
_MOST_ERROR_BYTES: Final = 1 << 16
"""Bytes of an engine's error that are read to put its message into an event."""
_NO_MESSAGE: Final = "the engine refused the request without a message"
_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}


class PassedResponse:
    """One response, passed on as it arrives.

    The attribute ``status`` is the status of the engine's response, ``first_s`` the monotonic time of its first byte.

    Args:
        send: ASGI's ``send`` of the request.
        route: Route of the request, which says how an error in a stream is written.
    """

    def __init__(self, send: Send, route: str) -> None:
        self._send, self._route = send, route
        self.status, self._model = 0, ""
        self.first_s: float | None = None
        self.streamed = Streamed.on(route)
        self._client: WhileClientWaits | None = None
        self.on_part: Callable[[], None] = lambda: None
        """Called after each part of a stream."""
        self._comments: WaitingComments | None = None
        self._passed = self._passed_before = 0
        """Parts of the response, now and when :meth:`end_if_silent` last saw progress."""
        self._went_on_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether the first byte has come."""
        return self.first_s is not None

    def comment(
        self, progress: Callable[[], RequestProgress | None], every_s: float, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Send comments until the first byte; the first of them begins the response, as a stream with status 200.

        Args:
            progress: Returns how far the request has come.
            every_s: Seconds from one comment to the next.
            headers: Headers of the response if a comment begins it.
        """
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENT_STREAM), *headers]}
        self._comments = WaitingComments(self._send, progress, every_s, head)
        self._comments.start()
        self._send = self._comments.send

    @property
    def has_early_head(self) -> bool:
        """Whether a comment began the response, before it was known what the engine responds."""
        return self._comments is not None and self._comments.has_begun

    def ended(self) -> None:
        """Note that nothing more comes from the engine."""
        if self._comments is not None:
            self._comments.stop()

    async def end_with_error(self, status: int, message: str) -> None:
        """End a stream that a comment began with an error event.

        Args:
            status: Status that the response would have had.
            message: Words for the client.
        """
        await self._send({"type": "http.response.body", "body": self._error_event(status, message), "more_body": True})
        await self._send(_END)

    def begin(self, status: int, model: str, client: WhileClientWaits, now_s: float) -> None:
        """Record that its first byte has come."""
        self.status, self._model, self._client = status, model, client
        self.first_s = self._went_on_s = now_s

    def end_if_silent(self, now_s: float, most_s: float) -> None:
        """End it if neither engine nor client has done anything for more than ``most_s`` seconds."""
        if self._passed != self._passed_before:
            self._passed_before, self._went_on_s = self._passed, now_s
        elif now_s - self._went_on_s > most_s and self._client is not None:
            logger.warning("ending a stream of model %s: nothing was passed on for too long", self._model)
            self._client.give_up()

    async def pass_on(
        self, answer: EngineResponse, first: bytes, headers: Iterable[tuple[bytes, bytes]], client: WhileClientWaits
    ) -> bool:
        """Pass the response on, and return whether it came to its end.

        A stream that breaks off ends with an error event.

        Args:
            answer: Response of the engine.
            first: First part of its body.
            headers: Headers beside the engine's, in place of engine's headers of the same names.
            client: Client that waits for the response.

        Raises: BrokenResponse if a length was promised, so that the client sees that a part is missing.
        """
        if self.has_early_head and not (answer.is_stream and answer.status == HTTPStatus.OK):
            whole = await _read_whole(answer, first)
            client.answered()
            await self.end_with_error(answer.status, _message_of(whole))
            return True
        send, read = self._send, answer.read
        ours = list(headers)
        names = {name for name, _ in ours}
        both = [*((name, value) for name, value in answer.headers if name not in names), *ours]
        await send({"type": "http.response.start", "status": answer.status, "headers": both})
        if answer.is_whole(first):
            client.answered()
            await send({"type": "http.response.body", "body": first})
            self.streamed.add(first)
            return True
        part, last = first, b""
        try:
            while part:
                self.streamed.add(part)
                self.on_part()
                last = part
                await send({"type": "http.response.body", "body": part, "more_body": True})
                self._passed += 1
                part = await read()
        except BrokenResponse as error:
            logger.warning("a stream of model %s broke off: %s", self._model, error)
            client.answered()
            if not answer.is_stream:
                raise
            event = self._error_event(HTTPStatus.BAD_GATEWAY, _BROKE_OFF, last)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await send(_END)
            return False
        client.answered()
        await send(_END)
        return True

    def _error_event(self, status: int, message: str, last: bytes = b"\n\n") -> bytes:
        """Return the event with which the API of the route ends a stream that failed.

        Args:
            status: Status that tells the kind of error.
            message: Words for the client.
            last: Part that came before, perhaps not a whole event.
        """
        begin = b"" if last.endswith(b"\n\n") else b"\n\n"
        known = HTTPStatus(status) if status in _STATUSES else HTTPStatus.BAD_GATEWAY
        body = errors.form_of(self._route)(known, message, None)
        if self._route == RESPONSES:
            number = self.streamed.last_number()
            body = {"type": "error", "code": "server_error", "message": message, "param": None}
            body["sequence_number"] = 0 if number is None else number + 1
        if self._route in (RESPONSES, MESSAGES):
            return begin + b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
        return begin + b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"


async def _read_whole(answer: EngineResponse, first: bytes) -> bytes:
    """Return the body of an error, as much of it as is read."""
    whole = part = first
    try:
        while part and len(whole) < _MOST_ERROR_BYTES and not answer.is_whole(whole):
            part = await answer.read()
            whole += part
    except BrokenResponse:
        pass
    return whole


def _message_of(body: bytes) -> str:
    """Return the message of an error in OpenAI's or Anthropic's format."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return _NO_MESSAGE
    return message if isinstance(message, str) else _NO_MESSAGE
