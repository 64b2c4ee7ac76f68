"""What belongs to one HTTP request between the middleware that reads it and the engine client that serves it.

A handler may call the engine several times for one HTTP request, in tasks of its own; all see the same context, because
tasks inherit context variables. A list of prompts is several requests; the steps of a beam search and the turns of a
request with tools are calls of one.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from sloserve.core.errors import DeadlinePassed, Evicted, InvalidRequest, Rejected
from sloserve.core.predicted import Predicted
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO
from sloserve.wire.body import LENGTH_HINT, BodyFields, read_body
from sloserve.wire.headers import DEFAULT_RULES, REPORT, TTL, Field, HeaderFields, HeaderRules, read_headers
from sloserve.wire.resolve import XARGS, Resolved

RETRY_UNSEEN_S = 5
"""What a client is told whose request was given up before anything was known of the queue that it would wait in."""


def check_no_slo(headers: HeaderFields, body: BodyFields) -> None:
    """Check that a request states no SLO, for a route that cannot keep one. Raises: InvalidRequest for the first."""
    stated = [*headers.fields.values(), *body.fields.values()]
    stated += [Field(f"{XARGS}.{key}", value) for key, value in body.xargs.items()]
    stated += [Field(name, True) for name, asked in ((REPORT, headers.report), ("slo.report", body.report)) if asked]
    for item in stated:
        if item.name != LENGTH_HINT:
            raise InvalidRequest(item.name, item.value, "allowed here: this route keeps no SLO; send it without one")


class AdmittedRequest(Protocol):
    """One request that the engine client serves, as far as the HTTP side has to do with it."""

    @property
    def standing(self) -> ServedRequest | None:
        """How it fared if no further call of the engine follows; ``None`` while a call runs, or once it has ended."""

    def is_waiting(self) -> bool:
        """Whether it has no token yet."""

    def expire(self) -> int:
        """Book it as given up; return in how many whole seconds a request of its class should find a place."""

    def answer_ends(self, *, begun: bool) -> None:
        """Note that no further call of the engine follows. begun: whether any of the answer was sent."""


@dataclass(slots=True, weakref_slot=True)
class HTTPContext:
    """One HTTP request.

    arrival_s: when its head arrived, by ``Clock.monotonic_s``. error: why what it states cannot be read; raised where
    an SLO is asked for, since most routes have no use for one. served: how its requests fared that ended, in that
    order. rejection: why it was refused or given up, if it was. predicted: of its requests, at their admission. tier:
    the ``service_tier`` to answer with. requests: those that were admitted. says_end: whether :meth:`answer_ends` is
    called in the end, so that requests can wait for further calls until then. on_slo: is told its SLO once all of it is
    read.
    """

    arrival_s: float
    headers: HeaderFields = field(default_factory=HeaderFields)
    body: BodyFields = field(default_factory=BodyFields)
    error: InvalidRequest | None = None
    served: list[ServedRequest] = field(default_factory=list)
    rejection: Rejected | Evicted | None = None
    predicted: list[Predicted] = field(default_factory=list)
    tier: str | None = None
    requests: list[AdmittedRequest] = field(default_factory=list)
    says_end: bool = False
    on_slo: Callable[[SLO], None] = lambda slo: None

    def read_headers(self, headers: Iterable[tuple[bytes, bytes]], rules: HeaderRules = DEFAULT_RULES) -> None:
        try:
            self.headers = read_headers(headers, rules)
        except InvalidRequest as error:
            self.error = self.error or error.to_keep()

    def read_body(self, body: bytes, content_type: bytes = b"application/json") -> None:
        try:
            self.body = read_body(body, content_type)
        except InvalidRequest as error:
            self.error = self.error or error.to_keep()

    def resolved(self, resolved: Resolved) -> None:
        """Takes in what all that it states comes to."""
        self.tier = resolved.tier
        self.on_slo(resolved.slo)

    @property
    def outcomes(self) -> list[ServedRequest]:
        """How its requests fared, of those that have ended or will have if no further call of the engine follows."""
        return [*self.served, *(one for request in self.requests if (one := request.standing) is not None)]

    @property
    def is_waiting(self) -> bool:
        """Whether none of its requests has got a token yet."""
        return all(request.is_waiting() for request in self.requests)

    def answer_ends(self, *, begun: bool) -> None:
        """Note that its answer has ended; a second call changes nothing. begun: whether any of it was sent."""
        if self.says_end:
            self.says_end = False
            for request in self.requests:
                request.answer_ends(begun=begun)

    def expire(self) -> DeadlinePassed:
        """Book all its requests as given up, since the time that the client gave them is over; the error to answer."""
        retry_after_s = max((request.expire() for request in self.requests), default=RETRY_UNSEEN_S)
        ms = 1e3 * (self.headers.ttl_s or 0.0)
        message = f"no token within the {ms:g} ms of {TTL}; retry in {retry_after_s} s or allow for more"
        return DeadlinePassed(message, retry_after_s)

    def check_no_slo(self) -> None:
        """Check a request of a route that keeps no SLO. Raises: InvalidRequest where it states one, or misspells it."""
        if self.error is not None:
            raise self.error
        check_no_slo(self.headers, self.body)

    @property
    def wants_report(self) -> bool:
        """Whether the client asked to be told how it fared."""
        return self.headers.report or self.body.report


current: ContextVar[HTTPContext | None] = ContextVar("sloserve_http_context", default=None)
