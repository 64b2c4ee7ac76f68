"""Add to a response the tier that was served and, for clients that requested it, the report of its outcome.

Where the response carries ``usage`` (the body of a response in one piece; of a stream the last usage chunk of chat and
completions, ``message_delta`` of Anthropic's messages, ``response.completed`` or ``response.incomplete`` of the
responses API), ``slo`` stands beside it. A stream that sends no usage gets a chunk without choices before ``[DONE]``,
shaped like a usage chunk. ``slo`` is one object, or a list of them if several prompts were sent as a list.

``service_tier`` stands in the responses of OpenAI's APIs, and in each chunk of a stream, if the request named one.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message

from sloserve.core import json_text
from sloserve.wire.context import HTTPContext
from sloserve.wire.outcome import outcome

KEY = "slo"
_DATA = b"data: "
_CHOICES = b'"choices":['
_DONE = b"[DONE]"
_HEAD_BYTES = 256
_TIERED = ("chat.completion", "text_completion", "response")
"""Kinds of objects that have a ``service_tier``."""
_TIERED_CHUNK = re.compile(rb'"choices":\s*\[')
_LAST_OF_RESPONSES = ("response.completed", "response.incomplete")
"""Last events of a stream of the responses API; since vLLM 0.33 an output that was cut off has its own."""
_ENVELOPE = ("id", "object", "created", "model")


class Reporter:
    """A response on its way to the client, to which the outcome and the tier are added."""

    def __init__(self, start: Message, http: HTTPContext, *, streamed: bool) -> None:
        self._start: Message | None = None if streamed else start
        self._http = http
        self.streamed = streamed
        """Whether the response is a stream, so that its head is sent at once."""
        self._parts: list[bytes] = []
        self._rest = b""
        self._envelope: dict[str, Any] = {}
        self._reported = not http.wants_report
        """Whether there is no more to report."""
        self._text_begins = self._tiered_begins = b""

    @classmethod
    def of(cls, start: Message, http: HTTPContext) -> "Reporter | None":
        """Return a reporter for the response that ``start`` begins; ``None`` if it has no place for an outcome."""
        kind = Headers(raw=start["headers"]).get("content-type", "").partition(";")[0].strip()
        if kind not in ("application/json", "text/event-stream"):
            return None
        return cls(start, http, streamed=kind == "text/event-stream")

    def pass_on(self, message: Message) -> Sequence[Message]:
        """Return the messages to send in place of ``message``."""
        if message["type"] != "http.response.body":
            return (message,)
        part = message.get("body", b"")
        at = len(self._text_begins)
        if (  # one whole event with text, as nearly all are: it is neither cut up nor read
            at
            and part.startswith(self._text_begins)
            and part.find(b"\n\n", at) == len(part) - 2
            and not self._rest
            and (self._reported or part.find(b'"usage"', at) < 0)
        ):
            return ({**message, "body": self._tiered_begins + part[at:]},)
        more = message.get("more_body", False)
        if self.streamed:
            changed = {**message, "body": self._events(part, last=not more)}
            self._note_text(part)
            return (changed,)
        self._parts.append(part)
        if more:
            return ()
        body = self._whole(b"".join(self._parts))
        assert self._start is not None
        MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
        return self._start, {"type": "http.response.body", "body": body}

    def _whole(self, body: bytes) -> bytes:
        try:
            response = json.loads(body)
        except ValueError:
            return body
        if not isinstance(response, dict) or not self._http.outcomes:
            return body
        if self._http.wants_report:
            response[KEY] = self._outcome()
        if self._http.tier is not None and response.get("object") in _TIERED:
            response["service_tier"] = self._http.tier
        return json_text.compact(response)

    def _events(self, chunk: bytes, *, last: bool) -> bytes:
        """Return ``chunk`` of the stream with its complete events; a part of an event is kept for the next chunk."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        out = b"".join(self._event(event) + b"\n\n" for event in events)
        if last:
            out += self._rest
            self._rest = b""
        return out

    def _note_text(self, chunk: bytes) -> None:
        """Record how events with text begin in this stream, and how they begin with their tier."""
        at = chunk.find(_CHOICES, 0, _HEAD_BYTES)
        begins = chunk[: at + len(_CHOICES)]
        if at < 0 or not begins.startswith(_DATA + b"{") or b"\n\n" in begins or b'"usage"' in begins:
            return
        if self._reported or self._envelope:  # else there is something to read in each
            self._text_begins, self._tiered_begins = begins, _DATA + self._tiered(begins[len(_DATA) :])

    def _event(self, event: bytes) -> bytes:
        at = 0 if event.startswith(_DATA) else event.find(b"\n" + _DATA) + 1
        if not event.startswith(_DATA, at):
            return event  # a comment that keeps the connection alive
        head, data = event[:at], self._tiered(event[at + len(_DATA) :])
        event = head + _DATA + data
        if self._reported:
            return event
        if data.strip() == _DONE:
            return self._before_done(event)
        if not self._envelope or b'"usage"' in data:
            try:
                chunk = json.loads(data)
            except ValueError:
                return event
            if isinstance(chunk, dict):
                self._envelope = self._envelope or {k: chunk[k] for k in _ENVELOPE if k in chunk}
                if self._complete(chunk):
                    return head + _DATA + json_text.compact(chunk)
        return event

    def _tiered(self, data: bytes) -> bytes:
        """Return ``data`` with ``service_tier``.

        vLLM leaves it out of its chunks, so that it can be put in without reading them.
        """
        if self._http.tier is None or not data.startswith(b"{") or not _TIERED_CHUNK.search(data[:_HEAD_BYTES]):
            return data
        return b'{"service_tier":' + json.dumps(self._http.tier).encode() + b"," + data[1:]

    def _complete(self, chunk: dict[str, Any]) -> bool:
        """Add the outcome to ``chunk`` if it states the usage of the whole response, and return whether it does."""
        if not self._http.outcomes:
            return False
        if chunk.get("type") in _LAST_OF_RESPONSES and isinstance(chunk.get("response"), dict):
            chunk["response"][KEY] = self._outcome()
        elif chunk.get("type") == "message_delta" or (chunk.get("choices") == [] and chunk.get("usage")):
            chunk[KEY] = self._outcome()
        else:
            return False
        self._reported = True
        return True

    def _before_done(self, event: bytes) -> bytes:
        if not self._http.outcomes:
            return event
        self._reported = True
        chunk = {**self._envelope, "choices": [], KEY: self._outcome()}
        return _DATA + json_text.compact(chunk) + b"\n\n" + event

    def _outcome(self) -> Any:
        found = self._http.outcomes
        task = None if self._http.task is None else self._http.task.report(found)
        outcomes = [outcome(served) | ({} if task is None else {"task": task}) for served in found]
        return outcomes[0] if len(outcomes) == 1 else outcomes
