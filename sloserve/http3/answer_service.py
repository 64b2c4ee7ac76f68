"""What a request states about how to send its response: urgency, tenant, and when each part is due.

The class of the request, limited to what its tenant may use, decides how urgent a ``priority`` field may make it. SLO
targets become deadlines of its stream. A deadline is set once, or set again with each chunk of a stream of events, for
the moment when its reader has digested all that was sent and runs dry. At first only the headers are known; the
application adds what the body states (:data:`sloserve.wire.asgi.SLO_KNOWN`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.http3.stream_schedulers import LEAST_URGENT
from sloserve.wire.event_stream import EVENT_STREAM, EventCounter
from sloserve.wire.headers import DEFAULT_RULES
from sloserve.wire.resolve import Classify, Rules, classify_by

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ResponseService:
    """How a response is to be sent.

    Args:
        urgency: Urgency of a request that states none.
        most_urgent: The least urgency number that the request may state.
        targets: SLO targets, with the defaults of the request's class.
        tenant: Tenant that takes its turn with this stream; ``None`` for the turn of all requests without a tenant.
        slo_class: Name of the service class.
    """

    urgency: int
    most_urgent: int
    targets: Targets
    tenant: str | None
    slo_class: str

    @classmethod
    def of(cls, slo: SLO, tenant: str | None = None) -> "ResponseService":
        """Return how to send the response of a request with this SLO.

        Rank 0 has urgency 1 and may state 0, rank 1 has 3 and may state 2, rank 2 has 5 and may state 4, all others
        have 7 and may state 6.
        """
        most_urgent = min(2 * slo.slo_class.rank, LEAST_URGENT - 1)
        return cls(most_urgent + 1, most_urgent, slo.targets, tenant, slo.slo_class.name)


DEFAULT_CLASSIFY: Classify = classify_by(Rules(DEFAULT_CLASSES), DEFAULT_RULES)


class ResponseDeadline:
    """The deadlines of the parts of one response.

    Args:
        arrival_s: When the request arrived, on the clock of the connection.
        targets: SLO targets of the request.
        renewed: Whether each chunk of an event stream has a deadline of its own, if the pace (TPOT or TDS) is known.
    """

    def __init__(self, arrival_s: float, targets: Targets, renewed: bool) -> None:
        self._arrival_s = arrival_s
        self._renewed = renewed
        self._dry_s: float | None = None
        self._streams = False
        self._events = EventCounter()
        self.aim(targets)

    def aim(self, targets: Targets) -> None:
        """Set these targets for the request; they give the deadlines of what is yet to be sent."""
        self._pace_s = targets.pace_s if self._renewed else None
        ttft_at_s, e2e_at_s = (None if t is None else self._arrival_s + t for t in (targets.ttft_s, targets.e2e_s))
        self._begin_s = e2e_at_s if ttft_at_s is None else ttft_at_s
        self._end_s = ttft_at_s if e2e_at_s is None else e2e_at_s

    def began(self, headers: Headers) -> float | None:
        """Return when the response head, which is about to be sent, is due, or ``None`` for never."""
        self._streams = any(k.lower() == b"content-type" and v.startswith(EVENT_STREAM) for k, v in headers)
        return self._begin_s if self._streams else self._end_s

    def chunk(self, body: bytes, now_s: float) -> float | None:
        """Return when a part of the body, which is about to be sent, is due, or ``None`` for never.

        An event counts as a token once it is whole. For a reader that has run dry the next event is due at once.
        """
        if not self._streams or self._pace_s is None:
            return self._end_s
        first, events = self._dry_s is None, self._events.add(body)
        if first and not events and body.startswith(b":"):  # a comment, before there is anything to read
            return self._begin_s if self._begin_s is not None else now_s
        dry_s = now_s if self._dry_s is None else max(self._dry_s, now_s)
        self._dry_s = dry_s + self._pace_s * events
        return self._begin_s if first and self._begin_s is not None else dry_s
