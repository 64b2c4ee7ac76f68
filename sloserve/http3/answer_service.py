"""What a request says of how its answer is sent: urgency, tenant, and when which part of it is due.

The class of the request, held to what its tenant may use, decides how urgent a ``priority`` field may make it. SLO
targets become deadlines of its stream: once, or anew with each chunk of a stream of events, for the moment when its
reader has digested all that was sent and runs dry. At first all that is known stands in the headers; the application
says what the body adds (:data:`sloserve.wire.asgi.SLO_KNOWN`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.http3.stream_schedulers import LEAST_URGENT
from sloserve.wire.event_stream import EventCounter
from sloserve.wire.headers import DEFAULT_RULES
from sloserve.wire.resolve import Classify, Rules, resolve_headers

Headers = Iterable[tuple[bytes, bytes]]

EVENT_STREAM = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class AnswerService:
    """How an answer is to be sent.

    urgency: of a request that states none. most_urgent: the least number that it may state. targets: with its class's
    defaults. tenant: whose turn it takes, ``None`` for that of all who name none. slo_class: the class's name.
    """

    urgency: int
    most_urgent: int
    targets: Targets
    tenant: str | None
    slo_class: str

    @classmethod
    def of(cls, slo: SLO, tenant: str | None = None) -> "AnswerService":
        """For a request with this SLO: rank 0 has urgency 1 and may state 0, rank 1 has 3 and may state 2, rank 2 has 5
        and may state 4, all others have 7 and may state 6.
        """
        most_urgent = min(2 * slo.slo_class.rank, LEAST_URGENT - 1)
        return cls(most_urgent + 1, most_urgent, slo.targets, tenant, slo.slo_class.name)


DEFAULT_CLASSIFY: Classify = partial(resolve_headers, Rules(DEFAULT_CLASSES), DEFAULT_RULES)


class ReplyDeadline:
    """When the parts of one answer are due.

    Args:
        arrival_s: of the request, on the clock of the connection.
        targets: of the request.
        renewed: whether each chunk of an event stream has a deadline of its own, if the pace (TPOT or TDS) is known.
    """

    def __init__(self, arrival_s: float, targets: Targets, renewed: bool) -> None:
        self._arrival_s = arrival_s
        self._renewed = renewed
        self._dry_s: float | None = None
        self._streams = False
        self._events = EventCounter()
        self.aim(targets)

    def aim(self, targets: Targets) -> None:
        """The request has these targets, of which what is yet to be sent is due by."""
        self._pace_s = targets.pace_s if self._renewed else None
        ttft_at_s, e2e_at_s = (None if t is None else self._arrival_s + t for t in (targets.ttft_s, targets.e2e_s))
        self._begin_s = e2e_at_s if ttft_at_s is None else ttft_at_s
        self._end_s = ttft_at_s if e2e_at_s is None else e2e_at_s

    def began(self, headers: Headers) -> float | None:
        """The answer's head is about to be sent; when it is due, ``None`` for never."""
        self._streams = any(k.lower() == b"content-type" and v.startswith(EVENT_STREAM) for k, v in headers)
        return self._begin_s if self._streams else self._end_s

    def chunk(self, body: bytes, now_s: float) -> float | None:
        """A part of the body is about to be sent; when it is due.

        An event counts as a token once it is whole. A reader that has run dry is due one at once.
        """
        if not self._streams or self._pace_s is None:
            return self._end_s
        first, events = self._dry_s is None, self._events.add(body)
        dry_s = now_s if self._dry_s is None else max(self._dry_s, now_s)
        self._dry_s = dry_s + self._pace_s * events
        return self._begin_s if first and self._begin_s is not None else dry_s
