"""A request's way through the engine, as its trace carries it from the engine process to where vLLM makes the span.

vLLM hands the trace headers of a request to its engine and back with each output, whatever host the engine runs on. The
way stands beside them under a name that no propagator reads. Only while vLLM's tracing is on; see docs/traces.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

HEADER: Final = "sloserve-way"
MOST_EVENTS: Final = 32
"""As many are told of one request, the earliest; the others are counted. Together they are below 3 KB."""


class WayEvent(NamedTuple):
    """Something that befell a request. name: ``admitted``, ``preempted``, ``swapped``, ``resumed``, ``paused`` or
    ``continued``. at_s: epoch seconds. why: a reason as docs/watch.md has them, in small letters, empty where there is
    none. figure, of: its two figures, ``None`` for one that is not known.
    """

    name: str
    at_s: float
    why: str = ""
    figure: float | None = None
    of: float | None = None


@dataclass(slots=True)
class Way:
    """Of one request so far. left_out: events beyond those told. paused_s, preempted_s: together, up to the last."""

    events: list[WayEvent] = field(default_factory=list)
    left_out: int = 0
    paused_s: float = 0.0
    preempted_s: float = 0.0

    def add(self, event: WayEvent) -> None:
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def header(self) -> str:
        """What :meth:`read` understands."""
        return json.dumps([self.events, self.left_out, self.paused_s, self.preempted_s], separators=(",", ":"))

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> "Way":
        """The way beside a request's trace ``headers``; an empty one where none is told, or it cannot be read."""
        try:
            events, left_out, paused_s, preempted_s = json.loads((headers or {})[HEADER])
            return cls([WayEvent(*event) for event in events], int(left_out), float(paused_s), float(preempted_s))
        except (KeyError, TypeError, ValueError):
            return cls()
