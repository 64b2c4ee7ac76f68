"""What belongs to one HTTP request between the middleware that reads it and the engine client that serves it.

A handler may call the engine several times for one HTTP request (several prompts, rounds of tool calls), in tasks of
its own; all see the same context, because tasks inherit context variables.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from sloserve.core.errors import InvalidRequest, Rejected
from sloserve.core.predicted import Predicted
from sloserve.core.served import ServedRequest
from sloserve.wire.body import BodyFields, read_body
from sloserve.wire.headers import Field, HeaderFields, read_headers


@dataclass(slots=True)
class HTTPContext:
    """One HTTP request.

    arrival_s: when its head arrived. error: why what it states cannot be read; raised where an SLO is asked for, since
    most routes have no use for one. served: the engine's requests that ended, in that order. rejection: why it was
    refused, if it was. predicted: of the engine's requests, at their admission.
    """

    arrival_s: float
    headers: HeaderFields = field(default_factory=HeaderFields)
    body: BodyFields = field(default_factory=BodyFields)
    error: InvalidRequest | None = None
    served: list[ServedRequest] = field(default_factory=list)
    rejection: Rejected | None = None
    predicted: list[Predicted] = field(default_factory=list)

    def read_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        try:
            self.headers = read_headers(headers)
        except InvalidRequest as error:
            self.error = self.error or error

    def read_body(self, body: bytes) -> None:
        try:
            self.body = read_body(body)
        except InvalidRequest as error:
            self.error = self.error or error

    @property
    def priority(self) -> Field | None:
        """The numeric priority that vLLM will find, if one is stated."""
        return self.headers.priority or self.body.priority

    @property
    def wants_report(self) -> bool:
        """Whether the client asked to be told how it fared."""
        return self.headers.report or self.body.report


current: ContextVar[HTTPContext | None] = ContextVar("sloserve_http_context", default=None)
