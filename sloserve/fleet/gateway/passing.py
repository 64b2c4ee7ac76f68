"""An answer on its way to its client. Nothing of it is parsed but for what the gateway must know: whether it has begun,
how many events it has.
"""

import json
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from sloserve.fleet.gateway.doors import BrokenAnswer, EngineAnswer
from sloserve.fleet.streamed import Streamed
from sloserve.wire import errors
from sloserve.wire.asgi import Send
from sloserve.wire.client import WhileClientWaits

logger = logging.getLogger(__name__)

_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}


class PassedAnswer:
    """One answer, passed on as it comes. status: as the engine has it. first_s: when its first byte came, monotonic."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self._model = 0, ""
        self.first_s: float | None = None
        self.streamed = Streamed()
        self._client: WhileClientWaits | None = None
        self._passed = self._passed_before = 0
        """Parts of the answer, now and when :meth:`end_if_silent` last saw that it went on."""
        self._went_on_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether the first byte has come."""
        return self.first_s is not None

    def begin(self, status: int, model: str, client: WhileClientWaits, now_s: float) -> None:
        """Its first byte has come."""
        self.status, self._model, self._client = status, model, client
        self.first_s = self._went_on_s = now_s

    def end_if_silent(self, now_s: float, most_s: float) -> None:
        """Ends it where neither engine nor client has done anything for so long."""
        if self._passed != self._passed_before:
            self._passed_before, self._went_on_s = self._passed, now_s
        elif now_s - self._went_on_s > most_s and self._client is not None:
            logger.warning("a stream of model %s is ended: nothing was passed on for too long", self._model)
            self._client.give_up()

    async def pass_on(
        self, answer: EngineAnswer, first: bytes, headers: Iterable[tuple[bytes, bytes]], client: WhileClientWaits
    ) -> bool:
        """Returns whether the answer has come to its end; one that broke off within a stream ends with an error event.

        headers: beside the engine's. Raises: BrokenAnswer where a length was promised, so that what is missing shows.
        """
        send, read = self._send, answer.read
        await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, *headers]})
        if answer.is_whole(first):
            client.answered()
            await send({"type": "http.response.body", "body": first})
            self.streamed.add(first)
            return True
        part, last = first, b""
        try:
            while part:
                self.streamed.add(part)
                last = part
                await send({"type": "http.response.body", "body": part, "more_body": True})
                self._passed += 1
                part = await read()
        except BrokenAnswer as error:
            logger.warning("a stream of model %s broke off: %s", self._model, error)
            client.answered()
            if not answer.is_stream:
                raise
            await send({"type": "http.response.body", "body": _error_event(last), "more_body": True})
            await send(_END)
            return False
        client.answered()
        await send(_END)
        return True


def _error_event(last: bytes) -> bytes:
    """As vLLM ends a stream that failed. last: what came before, perhaps not a whole event."""
    body = errors.body(HTTPStatus.BAD_GATEWAY, "the engine broke off within the reply; send the request again")
    begin = b"" if last.endswith(b"\n\n") else b"\n\n"
    return begin + b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"
