"""A request's way through the engine, as its trace carries it from the engine process to where vLLM makes the span.

vLLM hands the trace headers of a request to its engine and back with each output, whatever host the engine runs on. The
events stand beside them under a name that no propagator reads. They are kept only while vLLM's tracing is on; see
docs/traces.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

HEADER: Final = "sloserve-way"
MOST_EVENTS: Final = 32
"""Most events that are kept of one request, the earliest; the others are counted. Together they are below 3 KB."""


class TraceEvent(NamedTuple):
    """An event in the life of a request.

    Args:
        name: ``admitted``, ``preempted``, ``swapped``, ``resumed``, ``paused`` or ``continued``.
        at_s: Time of the event in epoch seconds.
        why: A reason as docs/watch.md has them, in small letters; empty if there is none.
        figure: First figure of the reason; ``None`` if it is not known.
        of: Second figure of the reason; ``None`` if it is not known.
    """

    name: str
    at_s: float
    why: str = ""
    figure: float | None = None
    of: float | None = None


@dataclass(slots=True)
class RequestTrace:
    """Events of one request up to now.

    Args:
        left_out: Number of events beyond the ones that are kept.
        paused_s: Seconds for which the request was paused, up to the last event.
        preempted_s: Seconds for which it was preempted, up to the last event.
    """

    events: list[TraceEvent] = field(default_factory=list)
    left_out: int = 0
    paused_s: float = 0.0
    preempted_s: float = 0.0

    def add(self, event: TraceEvent) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def header(self) -> str:
        """Return a header's value that :meth:`read` understands."""
        return json.dumps([self.events, self.left_out, self.paused_s, self.preempted_s], separators=(",", ":"))

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> "RequestTrace":
        """Return the events in a request's trace ``headers``; none if there is no such header or it cannot be read."""
        try:
            events, left_out, paused_s, preempted_s = json.loads((headers or {})[HEADER])
            return cls([TraceEvent(*event) for event in events], int(left_out), float(paused_s), float(preempted_s))
        except (KeyError, TypeError, ValueError):
            return cls()
