"""Runs in which requests follow other requests: the calls of an agent's task, the turns of a chat.

In an open loop all arrivals are known before the run. In a closed loop a :class:`Source` gives the first requests, is
notified of each request that is over, and answers with the requests that follow it: the next call of a task, for
example, after the time that the task's tool takes. :func:`run_closed_loop` drives an engine in virtual time through
such a run and returns the same log as an open loop does, so reports and plots work on it.

A prompt that repeats the output of an earlier request names its blocks by :data:`~sloserve.core.request.OUTPUT_ID`.
"""

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.event_loop import EventLoop


class Source(ABC):
    """Produces the requests of a closed loop. A run uses a source up: each run needs its own."""

    @abstractmethod
    def first(self) -> Iterable[WorkloadRequest]:
        """Return the requests that follow no other request, in any order of their arrivals."""

    @abstractmethod
    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        """Return the requests that follow ``request``, which is over at ``now_s``.

        Args:
            request: The request that is over.
            outcome: How it ended: completed, rejected by the front end, or aborted because its client left. The
                source is not notified of a request that never ends (``Outcome.LOST``): nothing follows it.
            now_s: The time in seconds from the start of the run; no request that is returned arrives earlier.
        """

    def leaves_s(self, request: WorkloadRequest) -> float:
        """Return the time at which the client gives the request up if it is not over by then.

        The time is in seconds from the start of the run, and infinite for a client that never leaves.
        """
        return math.inf


def run_closed_loop(engine: EventLoop, source: Source) -> RunLog:
    """Run ``engine``, which is new, until nothing of ``source`` is left to do.

    Returns: the log of all requests in the order of their arrivals; requests that arrived at the same time are in the
    order in which the source gave them.

    Raises: ValueError for a request with an id that was given before, or that arrives before the request that it
    follows was over.
    """
    started = time.perf_counter()
    requests: dict[str, WorkloadRequest] = {}
    unfinished: set[str] = set()
    leaving: list[tuple[float, str]] = []
    over: list[tuple[str, Outcome]] = []

    def give(new: Iterable[WorkloadRequest], now_s: float) -> None:
        for request in new:
            if request.request_id in requests:
                raise ValueError(f"request {request.request_id} was given twice; each needs an id of its own")
            if request.arrival_s < now_s:
                raise ValueError(
                    f"request {request.request_id} arrives at {request.arrival_s} s, before the time of the run, "
                    f"{now_s} s; let it arrive then or later"
                )
            requests[request.request_id] = request
            unfinished.add(request.request_id)
            leaves_s = source.leaves_s(request)
            if leaves_s < math.inf:
                heapq.heappush(leaving, (max(leaves_s, request.arrival_s), request.request_id))
            engine.give(request)

    engine.notify_ended(lambda request_id, outcome: over.append((request_id, outcome)))
    give(source.first(), 0.0)
    while engine.at < math.inf or leaving:
        if leaving and leaving[0][0] <= engine.at:
            now_s, request_id = heapq.heappop(leaving)
            if request_id in unfinished:
                engine.abort(request_id, now_s)
        else:
            now_s = engine.at
            engine.advance()
        for request_id, outcome in over:
            unfinished.discard(request_id)
            give(source.after(requests[request_id], outcome, now_s), now_s)
        over.clear()
    in_order = sorted(requests.values(), key=lambda request: request.arrival_s)
    return engine.log(in_order, time.perf_counter() - started)
