"""The tasks of requests in an API process: what the engine gets of them, and what their clients see.

The engine knows a task by the hash of its name (:mod:`sloserve.engine.metrics.known_tasks`).
"""

import multiprocessing
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, cast

from sloserve.core.clock import Clock
from sloserve.core.predicted import Quantiles
from sloserve.core.served import UNUSED, InEngine, ServedRequest
from sloserve.core.tasks import TaskCall
from sloserve.engine.metrics.known_tasks import ArrivingTask, KnownTasks
from sloserve.engine.metrics.task_page import TaskPages
from sloserve.engine.metrics.task_table import EndedTask, StartedCall, TaskListener
from sloserve.scheduler.settings import PluginSettings
from sloserve.vllm_plugin.server.observe import Observed
from sloserve.vllm_plugin.server.recurring import Recurring
from sloserve.vllm_plugin.server.task_predictions import TaskPredictions
from sloserve.wire.context import HTTPContext
from sloserve.wire.tasks import StatedTask
from sloserve.wire.xargs import with_call

MOST_SWEEP_S: Final = 60.0
"""Most seconds between two looks for tasks that have ended by age."""


class RequestTask:
    """The call of a task that one HTTP request is, however many requests and calls of the engine it consists of.

    Attributes:
        call: The task, as the engine gets it.
        predicted: Predicted time from the first call of the task to its end; ``None`` if it is not known.
    """

    def __init__(
        self,
        tasks: "RequestTasks",
        call: TaskCall,
        started: StartedCall | None,
        predicted: Quantiles | None = None,
    ) -> None:
        self.call, self.predicted, self.started = call, predicted, started
        self._tasks, self._open = tasks, 0
        self._completed = self._refused = True
        self._used = UNUSED

    @property
    def is_open(self) -> bool:
        """Whether a request of it has not ended."""
        return self._open > 0

    def begins(self) -> None:
        """Note that a request of it begins."""
        self._open += 1

    def ends(self, *, completed: bool, refused: bool, used: InEngine = UNUSED) -> None:
        """Note that a request of it has ended.

        Args:
            completed: Whether its output is complete.
            refused: Whether it was refused after it had been let in. A call all of which was refused is none.
            used: What it used of the engine.
        """
        self._open -= 1
        self._used += used
        self._completed, self._refused = self._completed and completed, self._refused and refused
        if not self._open and self.started is not None:
            self._tasks.call_ended(self.started, completed=self._completed, refused=self._refused, used=self._used)

    def report(self, served: Iterable[ServedRequest]) -> dict[str, Any] | None:
        """Return the figures of the task for its client, in milliseconds; ``None`` if it is not known.

        Args:
            served: Outcomes of the requests of this call, which count as ended.
        """
        if self.started is None:
            return None
        used = sum((one.in_engine for one in served if self._open), UNUSED)
        return self._tasks.report(self.started, used)


class RequestTasks:
    """The tasks that one API process knows."""

    def __init__(self, settings: PluginSettings, pages: TaskPages, metrics: TaskListener, clock: Clock) -> None:
        """Create an empty table of tasks.

        Args:
            settings: Settings of the server.
            pages: The pages of all API processes.
            metrics: Counts tasks.
            clock: Clock of this process.
        """
        self._metrics, self._clock = metrics, clock
        self._class_ids = {name: number for number, name in enumerate(settings.classes.names)}
        self.known = KnownTasks(pages, settings.task_idle_s, self, server_secret(), clock)
        self._predictions = TaskPredictions(settings.max_tasks)
        self._sweeping = Recurring(self._sweep, min(settings.task_idle_s / 4, MOST_SWEEP_S))

    def arriving(self, http: HTTPContext | None, request: Observed, stated: StatedTask | None) -> ArrivingTask | None:
        """Return the task of a request that arrives.

        Args:
            http: Context of the HTTP request; ``None`` without our middleware.
            request: The request.
            stated: The client's statement; ``None`` if it states no task.

        Returns: ``None`` also for a further request of an HTTP request, the first of which was let in.
        """
        if stated is None or _of_http(http) is not None:
            return None
        return self.known.arriving(stated, request.tenant, request.arrival_s)

    def begin(
        self,
        http: HTTPContext | None,
        request: Observed,
        arriving: ArrivingTask | None,
        sampling_params: Any,
        request_id: str | None,
    ) -> None:
        """Record that a request was let in, and write its task where the engine finds it.

        Several requests of one HTTP request are one call of the task.

        Args:
            http: Context of the HTTP request; ``None`` without our middleware.
            request: The request.
            arriving: What :meth:`arriving` returned.
            sampling_params: vLLM's sampling parameters, in which the task is written.
            request_id: The engine's name for the request, by which a later one may name the task.
        """
        task = _of_http(http)
        if task is None and arriving is not None:
            task = self._started(arriving, request, request_id)
        if task is None:
            if http is not None and http.body.is_search:
                sampling_params.extra_args = with_call(sampling_params.extra_args, self.of_further_call(request))
            return
        task.begins()
        request.task, request.task_call = task, task.call
        if http is not None:
            http.task = task
        sampling_params.extra_args = with_call(sampling_params.extra_args, task.call)

    def _started(self, arriving: ArrivingTask, request: Observed, request_id: str | None) -> RequestTask:
        stated, name, epoch_s = arriving.stated, arriving.name.hex(), self.known.epoch_s
        class_id = self._class_ids[request.slo.slo_class.name]
        started = self.known.call_begins(arriving, request.arrival_s, class_id, request.tenant, request_id)
        self._sweeping.begin()
        if started is None:  # this call stands alone
            return RequestTask(self, TaskCall(name, epoch_s(arriving.due_s), stated.calls, stated.last), None)
        task = started.task
        name = f"{name}-{task.generation}" if task.generation else name
        of_call = None if request.predicted is None else request.predicted.e2e
        predicted = self._predictions.call_begins(started, request.tenant, self._clock.monotonic_s(), of_call)
        return RequestTask(self, TaskCall(name, epoch_s(task.due_s), task.hint, task.is_last), started, predicted)

    def of_further_call(self, request: Observed) -> TaskCall:
        """Return the task of a request of several calls of the engine: a task of its own, unless it states one."""
        if request.task_call is None:
            e2e_s = request.slo.targets.e2e_s
            due_s = None if e2e_s is None else request.arrival_s + e2e_s
            request.task_call = TaskCall(secrets.token_hex(16), self.known.epoch_s(due_s))
        return request.task_call

    def call_ended(self, started: StartedCall, *, completed: bool, refused: bool, used: InEngine) -> None:
        """Record that a call has ended.

        Args:
            started: The call.
            completed: Whether its output is complete.
            refused: Whether it was refused after it had been let in, and so is no call of the task.
            used: What it used of the engine.
        """
        if not refused:
            call_s = self._clock.monotonic_s() - started.arrival_s
            self._predictions.call_ended(started.task, started.tenant, started.task.calls, call_s)
        self.known.call_ends(started, completed=completed, refused=refused, used=used)

    def report(self, started: StartedCall, used: InEngine) -> dict[str, Any]:
        """Return the figures of a task for its client, in milliseconds; ``used`` is added to what ended calls used."""
        now_s, task = self._clock.monotonic_s(), self.known.now(started)
        found: dict[str, Any] = {"calls": task.calls, "elapsed_ms": _ms(now_s - task.began_s)}
        if task.due_s is not None:
            found["due_in_ms"] = _ms(task.due_s - now_s)
        engine_s, kv_s = task.engine_s + used.engine_s, task.kv_s + used.kv_s
        return found | {"tools_ms": _ms(task.tools_s), "engine_ms": _ms(engine_s), "kv_ms": _ms(kv_s)}

    def task_started(self, class_id: int, tenant: str | None) -> None:
        self._metrics.task_started(class_id, tenant)

    def task_late(self, class_id: int, tenant: str | None) -> None:
        self._metrics.task_late(class_id, tenant)

    def task_ended(self, ended: EndedTask) -> None:
        self._predictions.task_ended(ended)
        self._metrics.task_ended(ended)

    def _sweep(self) -> bool:
        """End tasks by age; return whether any task is known, so that one may end later."""
        self.known.sweep()
        return len(self.known) > 0


def server_secret() -> bytes:
    """Return random bytes that all API processes of a server share, since one process has started them."""
    return blake2b(multiprocessing.current_process().authkey, digest_size=32, person=b"sloserve tasks").digest()


def _of_http(http: HTTPContext | None) -> RequestTask | None:
    """Return the call of a task that an HTTP request has begun; ``None`` if it has begun none, or it has ended."""
    task = None if http is None else cast(RequestTask | None, http.task)
    return task if task is not None and task.is_open else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
