"""What belongs to one HTTP request between the middleware that reads it and the engine client that serves it.

A handler may call the engine several times for one HTTP request, in tasks of its own; all see the same context, because
tasks inherit context variables. A list of prompts is several requests; the steps of a beam search and the turns of a
request with tools are calls of one.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from sloserve.core.errors import DeadlinePassed, Evicted, InvalidRequest, Rejected
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.promises import Promised
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO
from sloserve.wire.body import LENGTH_HINT, BodyFields, read_body
from sloserve.wire.headers import DEFAULT_RULES, REPORT, TTL, UPDATES, Field, HeaderFields, HeaderRules, read_headers
from sloserve.wire.keys import KeyTenant
from sloserve.wire.progress import RequestProgress, slowest
from sloserve.wire.rate_limits import RequestUse
from sloserve.wire.resolve import XARGS, Resolved

RETRY_UNSEEN_S = 5
"""Seconds until a retry (Retry-After) for a request that was given up before anything was known of its queue."""


def check_no_slo(headers: HeaderFields, body: BodyFields) -> None:
    """Check that a request states no SLO, for a route that cannot keep one. Raises: InvalidRequest for the first."""
    stated = [*headers.fields.values(), *body.fields.values()]
    stated += [Field(f"{XARGS}.{key}", value) for key, value in body.xargs.items()]
    asked = {REPORT: headers.report, "slo.report": body.report, UPDATES: headers.updates, "slo.updates": body.updates}
    stated += [Field(name, True) for name, is_asked in asked.items() if is_asked]
    for item in stated:
        if item.name != LENGTH_HINT:
            raise InvalidRequest(item.name, item.value, "allowed here: this route keeps no SLO; send it without one")


class RequestHandle(Protocol):
    """Handle by which the HTTP side reaches one request that the engine client serves."""

    @property
    def standing(self) -> ServedRequest | None:
        """The outcome if no further call of the engine follows; ``None`` while a call runs, or once it has ended."""

    def is_waiting(self) -> bool:
        """Return whether the request has no token yet."""

    def progress(self) -> RequestProgress:
        """Return how far the request has come."""

    def expire(self) -> int:
        """Book the request as given up; return in how many whole seconds a request of its class should find a place."""

    def answer_ends(self, *, begun: bool) -> None:
        """Note that no further call of the engine follows.

        Args:
            begun: Whether any part of the response was sent.
        """


class TaskHandle(Protocol):
    """Handle by which the HTTP side reaches the task of a request."""

    @property
    def predicted(self) -> Quantiles | None:
        """Predicted time from the first call of the task to its end; ``None`` if it is not known."""

    def report(self, served: Iterable[ServedRequest]) -> dict[str, Any] | None:
        """Return the figures of the task for its client, with this call's outcomes; ``None`` if it is not known."""


@dataclass(slots=True, weakref_slot=True)
class HTTPContext:
    """One HTTP request.

    Args:
        arrival_s: Time at which its head arrived, by ``Clock.monotonic_s``.
        error: Why its statement of an SLO cannot be read; raised where an SLO is asked for, since most routes have no
            use for one.
        served: Outcomes of its calls of the engine that ended, in the order in which they ended.
        rejection: Why the request was refused or given up, if it was.
        predicted: Predictions for its calls of the engine, made at their admission.
        promised: What its requests that ask for a promise were promised, or why nothing was.
        places: Places of its requests among the waiting ones of their class, at their admission.
        tier: The ``service_tier`` to state in the response.
        requests: Calls of the engine that were admitted.
        says_end: Whether :meth:`answer_ends` is called in the end, so that requests can wait for further calls until
            then.
        on_slo: Called with its SLO once the whole request is read.
        slo_class: The most urgent class by the key of its tenant; ``None`` for the class that the settings give it.
        task: The task of which it is a call; ``None`` if it states none, or no call of the engine was let in yet.
        path: Route of the request.
    """

    arrival_s: float
    headers: HeaderFields = field(default_factory=HeaderFields)
    body: BodyFields = field(default_factory=BodyFields)
    error: InvalidRequest | None = None
    served: list[ServedRequest] = field(default_factory=list)
    rejection: Rejected | Evicted | None = None
    predicted: list[Predicted] = field(default_factory=list)
    promised: list[Promised | str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    tier: str | None = None
    requests: list[RequestHandle] = field(default_factory=list)
    says_end: bool = False
    on_slo: Callable[[SLO], None] = lambda slo: None
    slo_class: str | None = None
    task: TaskHandle | None = None
    path: str = ""

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
        """Take in the SLO and the tier that the statements of the request amount to."""
        self.tier = resolved.tier
        self.on_slo(resolved.slo)

    @property
    def outcomes(self) -> list[ServedRequest]:
        """The outcomes of the calls that have ended, or will have ended if no further call of the engine follows."""
        return [*self.served, *(one for request in self.requests if (one := request.standing) is not None)]

    @property
    def is_waiting(self) -> bool:
        """Whether none of its requests has got a token yet."""
        return all(request.is_waiting() for request in self.requests)

    def progress(self) -> RequestProgress | None:
        """Return how far its requests have come, as a client sees it that waits for all; ``None`` before admission."""
        return slowest(request.progress() for request in self.requests)

    def answer_ends(self, *, begun: bool) -> None:
        """Note that the response has ended; a second call has no effect.

        Args:
            begun: Whether any part of the response was sent.
        """
        if self.says_end:
            self.says_end = False
            for request in self.requests:
                request.answer_ends(begun=begun)

    def expire(self) -> DeadlinePassed:
        """Book all calls as given up, since the client's time for them is over; return the error to send."""
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
    def wants_updates(self) -> bool:
        """Whether the client asked for comments while the request waits; a header beats the body."""
        return self.body.updates if self.headers.updates is None else self.headers.updates

    @property
    def wants_report(self) -> bool:
        """Whether the client asked for a report of the outcome."""
        return self.headers.report or self.body.report


key_tenant: ContextVar[KeyTenant | None] = ContextVar("sloserve_key_tenant", default=None)
"""Tenant of the key that the request showed, which may be a websocket; ``None`` without a file of keys."""

request_use: ContextVar[RequestUse | None] = ContextVar("sloserve_request_use", default=None)
"""What the request uses of the limits of its key's tenant; ``None`` without a file of keys."""

current: ContextVar[HTTPContext | None] = ContextVar("sloserve_http_context", default=None)
