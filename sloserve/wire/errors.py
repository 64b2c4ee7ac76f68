"""Errors on the wire: the one place that knows status codes, and the headers that go with them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from sloserve.core.errors import (
    BadBody,
    BodyTooLarge,
    BodyTooSlow,
    ConfigError,
    DeadlinePassed,
    EngineError,
    EngineNotReady,
    Evicted,
    Forbidden,
    InvalidRequest,
    MalformedBody,
    PromiseRefused,
    QueueFull,
    RateLimited,
    Rejected,
    ShuttingDown,
    SloServeError,
    SLOUnattainable,
    StoreAway,
    StoreError,
    StoreFull,
    Unauthorized,
    UnknownModel,
)
from sloserve.core.outcome import Outcome
from sloserve.wire.headers import DROPPED_REASON, LLM_D_DROPPED_REASON, RETRY_AFTER

STATUS: dict[type[SloServeError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    BadBody: HTTPStatus.BAD_REQUEST,
    MalformedBody: HTTPStatus.BAD_REQUEST,
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    UnknownModel: HTTPStatus.NOT_FOUND,
    Rejected: HTTPStatus.TOO_MANY_REQUESTS,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    SLOUnattainable: HTTPStatus.TOO_MANY_REQUESTS,
    PromiseRefused: HTTPStatus.TOO_MANY_REQUESTS,
    Evicted: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlinePassed: HTTPStatus.TOO_MANY_REQUESTS,
    ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    EngineError: HTTPStatus.INTERNAL_SERVER_ERROR,
    EngineNotReady: HTTPStatus.CONFLICT,
    ConfigError: HTTPStatus.BAD_REQUEST,  # of an operator, over the admin routes
    StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreAway: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreFull: HTTPStatus.INSUFFICIENT_STORAGE,
}

_MISTAKES: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""Statuses of engines for what their client has written wrongly. A key that an engine does not know is none of them:
its operator has given it to the gateway.
"""

REASON: dict[type[SloServeError], str] = {
    QueueFull: "rejected-saturated",
    SLOUnattainable: "rejected-slo-unattainable",
    PromiseRefused: "rejected-promise",
    DeadlinePassed: "rejected-ttl-expired",
}
"""Value of ``x-slo-dropped-reason``."""

LLM_D_REASON: dict[type[SloServeError], str] = {
    QueueFull: "rejected-saturated",
    SLOUnattainable: "rejected-saturated",
    PromiseRefused: "rejected-saturated",
    DeadlinePassed: "rejected-ttl-expired",
    ShuttingDown: "rejected-shutting-down",
}
"""Value of ``x-llm-d-request-dropped-reason``.

llm-d has no value for targets that cannot be met: the nearest one says that the servers are saturated.
"""


def status(error: SloServeError) -> HTTPStatus:
    """Return the HTTP status for ``error``."""
    return STATUS[type(error)]


def outcome(status: int) -> Outcome:
    """Return how a request ended to which an engine responded, to its end, with ``status``."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Outcome.FAILED
    if status in _MISTAKES:
        return Outcome.INVALID
    return Outcome.REJECTED if status >= HTTPStatus.BAD_REQUEST else Outcome.COMPLETED


def reason(error: SloServeError) -> str | None:
    """Return why a request was dropped, as one of a few words; ``None`` if no queue was the cause."""
    return REASON.get(type(error))


def headers(error: SloServeError) -> list[tuple[str, str]]:
    """Return the headers of the response to ``error``."""
    found = []
    if isinstance(error, Unauthorized):
        found.append(("www-authenticate", "Bearer"))
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        found.append((RETRY_AFTER, str(retry_after_s)))
    if isinstance(error, RateLimited):
        found += error.headers
    for name, words in ((DROPPED_REASON, REASON), (LLM_D_DROPPED_REASON, LLM_D_REASON)):
        if type(error) in words:
            found.append((name, words[type(error)]))
    return found


def body(status: HTTPStatus, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format, as vLLM's server writes it."""
    return {"error": {"message": message, "type": status.phrase, "param": param, "code": status.value}}


ErrorBody = Callable[[HTTPStatus, str, str | None], dict[str, Any]]
"""Makes the body of an error of its status, its message and the field at fault."""

_MESSAGES: Final = "/v1/messages"
"""Route of Anthropic's API; others stand below it."""
_ANTHROPIC: Final = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def form_of(path: str) -> ErrorBody:
    """Return the form that errors of a route have."""
    return _anthropic_body if path == _MESSAGES or path.startswith(f"{_MESSAGES}/") else body


def _anthropic_body(status: HTTPStatus, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in Anthropic's format, which names no field."""
    return {"type": "error", "error": {"type": _ANTHROPIC.get(status, "api_error"), "message": message}}
