"""Several engines of one model behind one queue, in virtual time.

A request goes, when it arrives, to the replica with the fewest requests that have not ended; of equal ones to the
replica with the fewest tokens of prompts, then to the first. A replica takes at most ``places`` requests; while all are
full, requests wait in the queue, and the first deadline goes first. The choice knows what a router knows: prompts, and
which requests have ended, but not how long outputs will be.

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
    places: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> RunLog:
    """Serve ``requests`` with ``count`` replicas, and return one log of all of them in the order of ``requests``.

    The log is as of one engine, with the steps of all replicas together in the order of their ends.

    Args:
        make_engine: Returns a new engine for the replica of this number, from 0 on.
        requests: Requests in the order of their arrivals, with an id each; all arrive whatever becomes of the others.
        count: Number of replicas, at least 1.
        places: Most requests that a replica has at a time, at least 1; ``None`` for no limit, so that nothing waits
            outside of the engines.
        on_progress: Called now and then with the number of requests that have ended. An error that it raises ends the
            run.

    Raises: ValueError for a number below 1, or for requests that are not in the order of their arrivals.
    """
    if count < 1 or (places is not None and places < 1):
        raise ValueError(f"count {count}, places {places}: give at least 1 of each")
    if any(one.arrival_s > after.arrival_s for one, after in zip(requests, requests[1:], strict=False)):
        raise ValueError("requests: they are not in the order of their arrivals; sort them by arrival_s")
    started = time.perf_counter()
    replicas = [_Replica(make_engine(number), math.inf if places is None else places) for number in range(count)]
    waiting: list[tuple[float, int, WorkloadRequest]] = []
    coming, events = 0, 0
    while True:
        first = min(replicas, key=lambda replica: replica.engine.at)
        arrival_s = requests[coming].arrival_s if coming < len(requests) else math.inf
        now_s = min(arrival_s, first.engine.at)
        if now_s == math.inf:
            break
        if arrival_s <= now_s:
            heapq.heappush(waiting, (due_s(requests[coming]), coming, requests[coming]))
            coming += 1
        else:
            first.engine.advance()
        while waiting and (free := _freest(replicas)) is not None:
            free.give(heapq.heappop(waiting)[-1], now_s)
        events += 1
        if on_progress is not None and events % _PROGRESS == 0:
            on_progress(sum(replica.num_ended for replica in replicas))
    return merged(requests, [replica.log() for replica in replicas], time.perf_counter() - started)


class _Replica:
    """One engine and the requests that it has."""

    def __init__(self, engine: EventLoop, places: float) -> None:
        self.engine, self._places = engine, places
        self._given: list[WorkloadRequest] = []
        self._unfinished: dict[str, int] = {}
        self._prompt_tokens = 0
        self.num_ended = 0
        engine.notify_ended(self._ended)

    @property
    def has_room(self) -> bool:
        return len(self._unfinished) < self._places

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


def _freest(replicas: Sequence[_Replica]) -> _Replica | None:
    return min((one for one in replicas if one.has_room), key=lambda one: one.load, default=None)


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
