"""Every error this package raises, and how each ends a request.

    SloServeError
    ├── ConfigError            something the operator wrote: flag, file, environment
    ├── InvalidRequest         something the client wrote: answered with 400, never queued
    ├── BadBody                a body that cannot be read, or not to its end
    │   ├── MalformedBody
    │   ├── BodyTooLarge
    │   └── BodyTooSlow
    ├── Unauthorized           the client shows no key that is known: answered with 401, its body unread
    ├── Forbidden              the client's key does not open this route: answered with 403
    ├── UnknownModel           the client asks for a model that is not there: answered with 404
    ├── Rejected               refused before queueing
    │   ├── QueueFull
    │   ├── RateLimited
    │   ├── SLOUnattainable
    │   └── PromiseRefused
    ├── Evicted                given up after queueing
    │   ├── DeadlinePassed
    │   └── ShuttingDown
    ├── EngineError            the engine failed
    │   └── EngineNotReady     it is in a state in which it may not do that, and has changed nothing
    └── StoreError             the store of a fleet failed
        ├── StoreAway
        └── StoreFull

A message says what, the value, the limit and the remedy. Only ``wire/`` knows HTTP status codes.
"""

import math
import reprlib
from collections.abc import Iterable
from typing import Self

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 80


def shown(value: object) -> str:
    """Return ``value`` as a message repeats it: a long value is shortened, since messages are logged."""
    return _SHOWN.repr(value)


class SloServeError(Exception):
    """Root of every error raised on purpose by this package."""

    def to_keep(self) -> Self:
        """Return the error without the traceback and the context in which it was raised.

        Those frames hold the request with its body. A request that keeps its own error would otherwise stay in memory
        until the garbage collector runs.
        """
        self.__context__ = None
        return self.with_traceback(None)


class ConfigError(SloServeError):
    """An operator's setting is unknown, malformed or impossible."""


class InvalidRequest(SloServeError):
    """A client's request carries an SLO that cannot be read; names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.param = shown(field)[1:-1]
        """The field as a response repeats it: short and printable."""
        super().__init__(f"{self.param}: {shown(value)} is not {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class BadBody(SloServeError):
    """The body of a request cannot be read, or cannot be read to its end."""

    def __init__(self, what: str) -> None:
        super().__init__(f"request body: {what}")


class MalformedBody(BadBody):
    """The body does not have the form that its route reads."""


class BodyTooLarge(BadBody):
    """The body is longer than the limit, by what its request declares or by what has arrived."""

    param: str | None = None
    """Field of the body that makes it too large, if it is known."""

    def __init__(self, most_bytes: float) -> None:
        super().__init__(f"more than {most_bytes} bytes; send less")


class BodyTooSlow(BadBody):
    """The body does not arrive, or arrives more slowly than the limit."""

    def __init__(self, whole_s: float, bytes_per_s: float) -> None:
        more = "" if bytes_per_s == math.inf else f" and a second more for each {bytes_per_s:g} bytes"
        super().__init__(f"not whole after {whole_s:g} s{more}; send it faster")


class Unauthorized(SloServeError):
    """The request shows no key, or one that is unknown; the message says how to send one."""


class Forbidden(SloServeError):
    """The key of the request does not open its route; the message says which key does."""


class UnknownModel(SloServeError):
    """The model does not exist for this client; the message names the models that the client may ask for."""

    param = "model"

    def __init__(self, model: object, known: Iterable[str]) -> None:
        super().__init__(f"model {shown(model)} does not exist here; available: {', '.join(sorted(known)) or 'none'}")


class Rejected(SloServeError):
    """The request was refused before it was queued."""


class QueueFull(Rejected):
    """The queue is at its cap; says in how many whole seconds a place should be free, and in which class's queue.

    Args:
        message: Words for the client.
        retry_after_s: Whole seconds after which a place should be free.
        slo_class: Name of the class with the full queue; empty where no class has a queue of its own.
        of_tenant: Whether the tenant itself has taken all places that it may have, while others find some.
    """

    def __init__(self, message: str, retry_after_s: int, slo_class: str, *, of_tenant: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.slo_class = slo_class
        self.of_tenant = of_tenant


class RateLimited(Rejected):
    """The tenant has used its limit per minute.

    Args:
        message: Words for the client.
        retry_after_s: Whole seconds after which a request passes.
        headers: Headers of the response that state the tenant's limits.
    """

    def __init__(self, message: str, retry_after_s: int, headers: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.headers = headers


class SLOUnattainable(Rejected):
    """The targets cannot, or probably cannot, be met.

    The error says after how many seconds a retry may succeed, or ``None`` where no retry can.
    """

    def __init__(self, message: str, retry_after_s: int | None, slo_class: str) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.slo_class = slo_class


class PromiseRefused(Rejected):
    """The request asks for a promise that cannot be given, and not to be served without it.

    Args:
        message: Words for the client.
        why: Reason in a word, one of :data:`~sloserve.core.promises.WHY_REFUSED`.
        slo_class: Name of its class.
    """

    def __init__(self, message: str, why: str, slo_class: str) -> None:
        super().__init__(message)
        self.why = why
        self.slo_class = slo_class


class Evicted(SloServeError):
    """The request was given up after it was queued."""


class DeadlinePassed(Evicted):
    """The deadline passed while the request waited; says in how many whole seconds a retry should find a place."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(Evicted):
    """The server is stopping; says in how many whole seconds it will be gone, and another may take its place."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineError(SloServeError):
    """The engine failed."""


class EngineNotReady(EngineError):
    """The engine is in a state in which it may not do that, and has changed nothing; says what to do first."""


class StoreError(SloServeError):
    """A write to the store failed; the store is as it was before."""


class StoreAway(StoreError):
    """The store cannot be reached now."""


class StoreFull(StoreError):
    """The disk of the store is full."""
