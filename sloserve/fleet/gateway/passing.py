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

logger = logging.getLogger(__name__)

_BROKE_OFF: Final = "the engine broke off within the response; send the request again"
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
        self._passed = self._passed_before = 0
        """Parts of the response, now and when :meth:`end_if_silent` last saw progress."""
        self._went_on_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether the first byte has come."""
        return self.first_s is not None

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
            await send({"type": "http.response.body", "body": self._error_event(last), "more_body": True})
            await send(_END)
            return False
        client.answered()
        await send(_END)
        return True

    def _error_event(self, last: bytes) -> bytes:
        """Return the event with which the API of the route ends a stream that failed.

        Args:
            last: Part that came before, perhaps not a whole event.
        """
        begin = b"" if last.endswith(b"\n\n") else b"\n\n"
        body = errors.form_of(self._route)(HTTPStatus.BAD_GATEWAY, _BROKE_OFF, None)
        if self._route == RESPONSES:
            number = self.streamed.last_number()
            body = {"type": "error", "code": "server_error", "message": _BROKE_OFF, "param": None}
            body["sequence_number"] = 0 if number is None else number + 1
        if self._route in (RESPONSES, MESSAGES):
            return begin + b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
        return begin + b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"
