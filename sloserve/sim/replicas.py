"""Several engines of one model behind one queue, in virtual time.

A request goes, when it arrives, to the replica with the fewest requests that have not ended; of equal ones to the
replica with the fewest tokens of prompts, then to the first. A request finds room where fewer requests are than
``places`` says for it; until then it waits in the queue, and the first deadline goes first. The choice knows what a
router knows: prompts, and which requests have ended, but not how long outputs will be.

Differs: a router that follows prefix caches, as a fleet's gateway does, sends the turns of a conversation to one
replica more often.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.engine.virtual.event_loop import EventLoop

_PROGRESS = 256
"""Number of events between two calls of ``on_progress``."""


def serve_replicated(
    make_engine: Callable[[int], EventLoop],
    requests: Sequence[WorkloadRequest],
    count: int,
    *,
    places: Callable[[WorkloadRequest], float] = lambda request: math.inf,
    on_progress: Callable[[int], None] | None = None,
) -> RunLog:
    """Serve ``requests`` with ``count`` replicas, and return one log of all of them in the order of ``requests``.

    The log is as of one engine, with the steps of all replicas together in the order of their ends.

    Args:
        make_engine: Returns a new engine for the replica of this number, from 0 on.
        requests: Requests in the order of their arrivals, with an id each; all arrive whatever becomes of the others.
        count: Number of replicas, at least 1.
        places: Returns, for a request, how many requests a replica may have at most when this one has joined them, at
            least 1; some places may be open to certain requests alone. By default nothing waits outside of the engines.
        on_progress: Called now and then with the number of requests that have ended. An error that it raises ends the
            run.

    Raises: ValueError for a number below 1, or for requests that are not in the order of their arrivals.
    """
    if count < 1:
        raise ValueError(f"count: {count} replicas serve nothing; give at least 1")
    if any(one.arrival_s > after.arrival_s for one, after in zip(requests, requests[1:], strict=False)):
        raise ValueError("requests: they are not in the order of their arrivals; sort them by arrival_s")
    started = time.perf_counter()
    replicas = [_Replica(make_engine(number)) for number in range(count)]
    queue = _Queue(places)
    coming, events = 0, 0
    while True:
        first = min(replicas, key=lambda replica: replica.engine.at)
        arrival_s = requests[coming].arrival_s if coming < len(requests) else math.inf
        now_s = min(arrival_s, first.engine.at)
        if now_s == math.inf:
            break
        if arrival_s <= now_s:
            queue.add(requests[coming], coming)
            coming += 1
        else:
            first.engine.advance()
        while queue:
            freest = min(replicas, key=lambda replica: replica.load)
            request = queue.take(freest.load[0])
            if request is None:
                break
            freest.give(request, now_s)
        events += 1
        if on_progress is not None and events % _PROGRESS == 0:
            on_progress(sum(replica.num_ended for replica in replicas))
    return merged(requests, [replica.log() for replica in replicas], time.perf_counter() - started)


class _Replica:
    """One engine and the requests that it has."""

    def __init__(self, engine: EventLoop) -> None:
        self.engine = engine
        self._given: list[WorkloadRequest] = []
        self._unfinished: dict[str, int] = {}
        self._prompt_tokens = 0
        self.num_ended = 0
        engine.notify_ended(self._ended)

    @property
    def load(self) -> tuple[int, int]:
        return len(self._unfinished), self._prompt_tokens

    def give(self, request: WorkloadRequest, now_s: float) -> None:
        self._given.append(request)
        self._unfinished[request.request_id] = request.prompt_tokens
        self._prompt_tokens += request.prompt_tokens
        self.engine.give(request, now_s=now_s)

    def log(self) -> RunLog:
        return self.engine.log(self._given)

    def _ended(self, request_id: str, outcome: Outcome) -> None:
        self._prompt_tokens -= self._unfinished.pop(request_id)
        self.num_ended += 1


class _Queue:
    """Requests that wait, in one heap for each number of places that is open to them."""

    def __init__(self, places: Callable[[WorkloadRequest], float]) -> None:
        self._places = places
        self._heaps: dict[float, list[tuple[float, int, WorkloadRequest]]] = {}

    def __bool__(self) -> bool:
        return bool(self._heaps)

    def add(self, request: WorkloadRequest, number: int) -> None:
        """Add a request; of equal deadlines the lower number is first. Raises: ValueError for less than one place."""
        places = self._places(request)
        if not places >= 1:
            raise ValueError(f"places: request {request.request_id} may use {places} places; give at least 1")
        heapq.heappush(self._heaps.setdefault(places, []), (due_s(request), number, request))

    def take(self, in_flight: int) -> WorkloadRequest | None:
        """Return the first request that may join a replica with ``in_flight`` requests; ``None`` if none may."""
        places = min(
            (one for one in self._heaps if one > in_flight), key=lambda one: self._heaps[one][0][:2], default=None
        )
        if places is None:
            return None
        request = heapq.heappop(self._heaps[places])[-1]
        if not self._heaps[places]:
            del self._heaps[places]
        return request


def due_s(request: WorkloadRequest) -> float:
    """Return the time of the first deadline of a request that has not begun; infinite where nothing is promised."""
    limit_s = request.slo.targets.next_s()
    return math.inf if limit_s is None else request.arrival_s + limit_s


def merged(requests: Sequence[WorkloadRequest], logs: Sequence[RunLog], wall_s: float = 0.0) -> RunLog:
    """Return one log of ``requests`` from the logs of engines that ran beside each other.

    A request that is in none of the logs has the outcome LOST.
    """
    of_request = {one.request.request_id: one for log in logs for one in log.requests}
    counters: Counter[str] = Counter()
    service_s: Counter[str] = Counter()
    for log in logs:
        counters.update(log.counters)
        service_s.update(log.tenant_service_s or {})
    return RunLog(
        [of_request.get(one.request_id) or RequestLog(one, Outcome.LOST, np.empty(0)) for one in requests],
        all_steps([log.steps for log in logs]),
        {"wall_s": wall_s},
        dict(counters),
        token_budget=logs[0].token_budget,
        tenant_service_s=dict(service_s) or None,
    )


def all_steps(logs: Sequence[StepLog]) -> StepLog:
    """Return the steps of several engines in one log, by their ends."""
    names = ("end_s", "duration_s", "scheduled_tokens", "running", "waiting", "kv_utilization")
    columns = {name: np.concatenate([getattr(log, name) for log in logs]) for name in names}
    order = np.argsort(columns["end_s"], kind="stable")
    return StepLog(**{name: column[order] for name, column in columns.items()})
