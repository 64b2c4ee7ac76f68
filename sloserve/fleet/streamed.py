"""Estimates how many tokens a response has, where it is passed on: nothing of it is parsed but its end.

An event of a stream brings one token or several: with ``--stream-interval``, with speculative decoding, or where an API
server falls behind its engine. So events are counted, and the tokens per event are learned from responses that state
their length at the end.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Self

from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.fleet.client_routes import MESSAGES, RESPONSES
from sloserve.wire.event_stream import EventCounter

_USAGE: Final = b'"usage"'
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens":\s*([0-9]{1,9})')
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*([0-9]{1,9})')
_NUMBER: Final = re.compile(rb'"sequence_number":\s*([0-9]{1,9})')
_AT_LIMIT: Final = re.compile(rb'"finish_reason":\s*"length"')
_END_BYTES: Final = 2048
"""Bytes at the end of a response that contain its usage and finish reason."""
_FRAMING: Final = {RESPONSES: 7, MESSAGES: 4}
"""Events by route that bring no token, beside the one that every stream has at its end."""


@dataclass(slots=True)
class Streamed:
    """The part of one response that has come.

    Args:
        events: Number of events with tokens, and one more.
    """

    events: int = 0
    end: bytes = b""
    """The last bytes."""
    size: int = 0
    """Bytes of the body."""
    _counter: EventCounter = field(default_factory=EventCounter)

    @classmethod
    def on(cls, route: str) -> Self:
        """Return the count for a response to a request on this route, of which nothing has come."""
        return cls(-_FRAMING.get(route, 0))

    def add(self, part: bytes) -> None:
        """Add the next part of the body."""
        self.events += self._counter.add(part)
        self.size += len(part)
        self.end = part if len(part) >= _END_BYTES else (self.end + part)[-_END_BYTES:]

    def stated_tokens(self, limit: int | None) -> int | None:
        """Return the stated tokens of a response that has ended, or ``None`` if they are not stated.

        They are what its usage says, or ``limit`` if that is why it ended.
        """
        stated = self._usage(_OUTPUT)
        if stated is not None:
            return stated
        return limit if limit is not None and _AT_LIMIT.search(self.end[-_END_BYTES:]) else None

    def stated_prompt_tokens(self) -> int | None:
        """Return the tokens of the prompt that the usage of a response states, or ``None`` if it states none."""
        return self._usage(_PROMPT)

    def last_number(self) -> int | None:
        """Return the number of the last event, as the responses API counts them; ``None`` if it states none."""
        found = _NUMBER.findall(self.end[-_END_BYTES:])
        return int(found[-1]) if found else None

    def _usage(self, field: re.Pattern[bytes]) -> int | None:
        """Return a field of the last usage; the report of an outcome, which may follow it, has tokens of its own."""
        end = self.end[-_END_BYTES:]
        found = field.search(end, max(end.rfind(_USAGE), 0)) if _USAGE in end else None
        return None if found is None else int(found[1])


@dataclass(slots=True)
class TokensAnEvent:
    """Tokens per event of one model's streams.

    Args:
        stated: Tokens per event by the flags of its engines, used until a response states its length.
    """

    stated: int = 1
    _tokens: RunningMean = field(default_factory=RunningMean)
    _events: RunningMean = field(default_factory=RunningMean)

    def tokens(self, events: int) -> int:
        """Return about how many tokens have come with this many events. The first brings one, whatever the interval."""
        known, seen = self._tokens.value, self._events.value
        each = known / seen if known is not None and seen is not None else float(self.stated)
        return round(1.0 + (events - 1) * each) if events > 0 else 0

    def ended(self, streamed: Streamed, limit: int | None) -> int:
        """Return the tokens of a response that has come whole, and learn from it.

        Args:
            streamed: The response.
            limit: ``max_tokens`` of the request; ``None`` if it has none, or if it counts for several outputs.
        """
        events, stated = streamed.events - 1, streamed.stated_tokens(limit)  # the last event says that it is the last
        if stated is None:
            return self.tokens(events)
        if events > 1:
            self._tokens.add(float(max(stated - 1, 1)))
            self._events.add(float(events - 1))
        return stated
