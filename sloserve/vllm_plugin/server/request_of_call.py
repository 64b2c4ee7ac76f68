"""Find the request to which a call of the engine belongs: a new one, or one that made a call before.

Neither a handler nor the name of a route says so; the order of the calls does. If an HTTP request sends prompts as a
list, all of them are handed to the engine client before any of them enters the engine. The steps of a beam search, the
turns of a request with tools, and the calls for a recording after its language had to be found are made by the same
task after the call before has entered the engine.

So a call is a further one of the request that the same task (or a task that it began) called for last, if that request
belongs to the same HTTP request and has entered the engine; and in a task that has made no call, of the only request of
its HTTP request. Without our middleware no call is a further one, since nothing says which calls are of one HTTP
request.
"""

import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, cast

from sloserve.core.served import ServedRequest
from sloserve.scheduler.admission.ticket import Together
from sloserve.vllm_plugin.server.observe import Observed
from sloserve.wire.context import HTTPContext
from sloserve.wire.progress import RequestProgress

_latest: ContextVar["tuple[weakref.ref[HTTPContext], weakref.ref[Observed]] | None"] = ContextVar(
    "sloserve_latest_request", default=None
)
"""The HTTP request and the request for which this task made its latest call."""


def made_call(http: HTTPContext | None, request: Observed) -> None:
    """Note that this task has made a call for a request."""
    if http is not None:
        _latest.set((weakref.ref(http), weakref.ref(request)))


def goes_on(http: HTTPContext | None, only: Observed | None) -> Observed | None:
    """Return the request of which this task makes a further call now; ``None`` if the call is a new request's first.

    Args:
        http: Context of the HTTP request; ``None`` without our middleware.
        only: The request that was accepted for this HTTP request, if there was exactly one.
    """
    latest = _latest.get()
    request = latest[1]() if http is not None and latest is not None and latest[0]() is http else only
    return request if request is not None and request.is_read else None


def together_with(latest: Observed | None) -> Together:
    """Return the requests that begin together with a new one.

    If the one before has entered the engine, or has ended, the HTTP request is being served, and the new one is let in.

    Args:
        latest: The request accepted before for the same HTTP request; ``None`` if there is none.
    """
    if latest is None:
        return Together()
    if latest.together is None or latest.is_read or latest.has_ended:
        return Together(is_decided=True)
    return latest.together


class Keeper(Protocol):
    """The part of a front end that accepted requests and knows which of them wait."""

    def is_waiting(self, observed: Observed) -> bool:
        """Return whether a request has no token yet."""

    def progress(self, observed: Observed) -> RequestProgress:
        """Return how far a request has come."""

    def expire(self, observed: Observed) -> int:
        """Count a request as given up; return in how many whole seconds one of its class should find a place."""


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request as its HTTP side sees it, see :class:`sloserve.wire.context.RequestHandle`."""

    keeper: Keeper
    observed: Observed

    @property
    def standing(self) -> ServedRequest | None:
        return self.observed.standing

    def is_waiting(self) -> bool:
        return self.keeper.is_waiting(self.observed)

    def progress(self) -> RequestProgress:
        return self.keeper.progress(self.observed)

    def expire(self) -> int:
        return self.keeper.expire(self.observed)

    def answer_ends(self, *, begun: bool) -> None:
        self.observed.answer_ends(begun=begun)


def accepted_for(http: HTTPContext | None) -> list[AcceptedRequest]:
    """Return the requests that were accepted for an HTTP request, in order."""
    return [] if http is None else cast(list[AcceptedRequest], http.requests)
