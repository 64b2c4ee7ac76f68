"""Errors on the wire: the one place that knows status codes, and the headers that go with them."""

from http import HTTPStatus
from typing import Any

from sloserve.core.errors import (
    BadBody,
    BodyTooLarge,
    BodyTooSlow,
    ConfigError,
    DeadlinePassed,
    EngineError,
    EngineNotReady,
    Evicted,
    InvalidRequest,
    MalformedBody,
    QueueFull,
    Rejected,
    ShuttingDown,
    SloServeError,
    SLOUnattainable,
    StoreAway,
    StoreError,
    StoreFull,
    UnknownModel,
)
from sloserve.wire.headers import DROPPED_REASON, RETRY_AFTER

STATUS: dict[type[SloServeError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    BadBody: HTTPStatus.BAD_REQUEST,
    MalformedBody: HTTPStatus.BAD_REQUEST,
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    UnknownModel: HTTPStatus.NOT_FOUND,
    Rejected: HTTPStatus.TOO_MANY_REQUESTS,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    SLOUnattainable: HTTPStatus.TOO_MANY_REQUESTS,
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

REASON: dict[type[SloServeError], str] = {
    QueueFull: "rejected-saturated",
    SLOUnattainable: "rejected-slo-unattainable",
    DeadlinePassed: "rejected-ttl-expired",
}
"""Value of ``x-slo-dropped-reason``, in llm-d's words."""


def status(error: SloServeError) -> HTTPStatus:
    """Return the HTTP status for ``error``."""
    return STATUS[type(error)]


def reason(error: SloServeError) -> str | None:
    """Return why a request was dropped, as one of a few words; ``None`` if no queue was the cause."""
    return REASON.get(type(error))


def headers(error: SloServeError) -> list[tuple[str, str]]:
    """Return the headers of the response to ``error``."""
    found = []
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        found.append((RETRY_AFTER, str(retry_after_s)))
    why = reason(error)
    if why is not None:
        found.append((DROPPED_REASON, why))
    return found


def body(status: HTTPStatus, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format, as vLLM's server writes it."""
    return {"error": {"message": message, "type": status.phrase, "param": param, "code": status.value}}
