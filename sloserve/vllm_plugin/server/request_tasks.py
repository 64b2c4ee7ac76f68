"""The tasks of which an API process serves calls, from a request's statement to the figures of the task.

The engine knows a task by a key that is made of the tenant and the client's name for the task with a secret of the
server: no text of a client reaches it, and no client can name another tenant's task. A deadline that counts from the
first call of a task becomes a time here, where the first call is known.
"""

import asyncio
import logging
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, cast

from sloserve.core.clock import Clock
from sloserve.core.predicted import Quantiles
from sloserve.core.slo import DUE_NOW_S, MAX_TARGET_S, SLO
from sloserve.core.tasks import TaskCall
from sloserve.engine.metrics.page_folder import SECRET_BYTES, page_folder, shared_secret
from sloserve.engine.metrics.task_page import Task, TaskPages
from sloserve.engine.metrics.task_table import EndedTask, StartedCall, TaskListener, TaskTable
from sloserve.scheduler.settings import PluginSettings
from sloserve.vllm_plugin.server.observe import Observed
from sloserve.vllm_plugin.server.task_predictions import TaskPredictions
from sloserve.wire.context import HTTPContext
from sloserve.wire.tasks import CHAIN, StatedTask
from sloserve.wire.xargs import with_call

logger = logging.getLogger(__name__)

MOST_SWEEP_S: Final = 60.0
"""Most seconds between two looks for tasks that have ended by age."""
_TURN: Final = re.compile(r"(resp_[^_]+)_\d+")
"""The engine's name for one turn of a response with tools: the name of the response, and a number."""


@dataclass(frozen=True, slots=True)
class ArrivingTask:
    """The task of a request before its admission.

    Args:
        stated: The client's statement.
        name: Hash of the tenant and the client's name for the task.
        running: The task, if one of its calls was let in before and it has not ended.
        due_s: Its deadline by the host's monotonic clock; ``None`` if it has none.
    """

    stated: StatedTask
    name: bytes
    running: Task | None
    due_s: float | None

    @property
    def is_let_in(self) -> bool:
        """Whether admission lets this call in whatever waits, since the task is in progress.

        An alias may name what is no task, such as all requests of a client, and has this right for one call at a time.
        """
        return self.running is not None and not (self.stated.is_alias and self.running.open)

    def slo_at_admission(self, slo: SLO, arrival_s: float) -> SLO:
        """Return the SLO by which a call is admitted: the first call of a task has to end before the task is due."""
        if self.running is not None or self.due_s is None:
            return slo
        left_s = min(max(self.due_s - arrival_s, DUE_NOW_S), MAX_TARGET_S)
        e2e_s = left_s if slo.targets.e2e_s is None else min(slo.targets.e2e_s, left_s)
        return SLO(slo.slo_class, replace(slo.targets, e2e_s=e2e_s))


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

    @property
    def is_open(self) -> bool:
        """Whether a request of it has not ended."""
        return self._open > 0

    def begins(self) -> None:
        """Note that a request of it begins."""
        self._open += 1

    def ends(self, *, completed: bool, refused: bool) -> None:
        """Note that a request of it has ended.

        Args:
            completed: Whether its output is complete.
            refused: Whether it was refused after it had been let in. A call all of which was refused is none.
        """
        self._open -= 1
        self._completed, self._refused = self._completed and completed, self._refused and refused
        if not self._open and self.started is not None:
            self._tasks.call_ended(self.started, completed=self._completed, refused=self._refused)

    def report(self) -> dict[str, Any] | None:
        """Return the figures of the task for its client, in milliseconds; ``None`` if it is not known."""
        return None if self.started is None else self._tasks.report(self.started)


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
        self._metrics, self._clock, self._idle_s = metrics, clock, settings.task_idle_s
        self._class_ids = {name: number for number, name in enumerate(settings.classes.names)}
        self._pages, self._table = pages, TaskTable(pages, settings.task_idle_s, self)
        self._predictions = TaskPredictions(settings.max_tasks)
        self._secret = _secret(shared=pages.own.memory is not None)
        self._roots: OrderedDict[bytes, str] = OrderedDict()
        self._most = settings.max_tasks
        self._sweeping = False

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
        if stated.kind == CHAIN:
            stated = replace(stated, id=self._roots.get(self._hash(CHAIN, stated.id, request.tenant), stated.id))
        name = self._hash(stated.kind, stated.id, request.tenant)
        running = self._table.running(_key(name), request.arrival_s)
        due_s = None if running is None else running.due_s
        if stated.e2e_s is not None:
            due_s = (request.arrival_s if running is None else running.began_s) + stated.e2e_s
        elif stated.deadline_s is not None:
            due_s = self._clock.monotonic_s() + (stated.deadline_s - self._clock.now_s())
        return ArrivingTask(stated, name, running, due_s)

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
            return
        task.begins()
        request.task, request.task_call = task, task.call
        if http is not None:
            http.task = task
        sampling_params.extra_args = with_call(sampling_params.extra_args, task.call)

    def _started(self, arriving: ArrivingTask, request: Observed, request_id: str | None) -> RequestTask:
        stated, name, tenant = arriving.stated, arriving.name.hex(), request.tenant
        if stated.kind == CHAIN and request_id is not None:
            self._link(request_id, stated.id, tenant)
        started = self._table.call_begins(
            _key(arriving.name),
            request.arrival_s,
            class_id=self._class_ids[request.slo.slo_class.name],
            tenant=tenant,
            e2e_s=stated.e2e_s,
            due_s=None if stated.deadline_s is None else arriving.due_s,
            hint=stated.calls,
            is_last=stated.last,
        )
        self._keep_swept()
        if started is None:  # the table is full of running calls, and this one stands alone
            return RequestTask(self, TaskCall(name, self._epoch_s(arriving.due_s), stated.calls, stated.last), None)
        task = started.task
        name = f"{name}-{task.generation}" if task.generation else name
        of_call = None if request.predicted is None else request.predicted.e2e
        predicted = self._predictions.call_begins(started, tenant, self._clock.monotonic_s(), of_call)
        call = TaskCall(name, self._epoch_s(task.due_s), task.hint, task.is_last)
        return RequestTask(self, call, started, predicted)

    def of_further_call(self, request: Observed) -> TaskCall:
        """Return the task of a request that calls the engine again: a task of its own, unless it states one."""
        if request.task_call is None:
            e2e_s = request.slo.targets.e2e_s
            due_s = None if e2e_s is None else request.arrival_s + e2e_s
            request.task_call = TaskCall(secrets.token_hex(16), self._epoch_s(due_s))
        return request.task_call

    def call_ended(self, started: StartedCall, *, completed: bool, refused: bool) -> None:
        """Record that a call has ended.

        Args:
            started: The call.
            completed: Whether its output is complete.
            refused: Whether it was refused after it had been let in, and so is no call of the task.
        """
        if refused:
            self._table.call_withdrawn(started)
            return
        now_s = self._clock.monotonic_s()
        self._predictions.call_ended(started.task, started.tenant, started.task.calls, now_s - started.arrival_s)
        self._table.call_ends(started, now_s, completed=completed)

    def report(self, started: StartedCall) -> dict[str, Any]:
        """Return the figures of a task for its client, in milliseconds."""
        now_s = self._clock.monotonic_s()
        task = self._pages.of_generation(started.key, started.task.generation) or started.task
        found: dict[str, Any] = {"calls": task.calls, "elapsed_ms": _ms(now_s - task.began_s)}
        if task.due_s is not None:
            found["due_in_ms"] = _ms(task.due_s - now_s)
        return found | {"tools_ms": _ms(task.tools_s)}

    def task_started(self, class_id: int, tenant: str | None) -> None:
        self._metrics.task_started(class_id, tenant)

    def task_late(self, class_id: int, tenant: str | None) -> None:
        self._metrics.task_late(class_id, tenant)

    def task_ended(self, ended: EndedTask) -> None:
        self._predictions.task_ended(ended)
        self._metrics.task_ended(ended)

    def close(self) -> None:
        """Withdraw what this process knows of tasks from the others."""
        self._pages.own.close()

    def _hash(self, kind: str, name: str, tenant: str | None) -> bytes:
        """Return what stands for a client's name of a task; equal only for one tenant, kind and name."""
        parts = [kind, name] if tenant is None else [kind, name, tenant]
        text = "\0".join(f"{len(part)}:{part}" for part in parts)
        return blake2b(text.encode(errors="surrogatepass"), key=self._secret, digest_size=16).digest()

    def _link(self, request_id: str, root: str, tenant: str | None) -> None:
        """Note that a later request which names the response of this one belongs to the task of ``root``."""
        name = self._hash(CHAIN, _TURN.sub(r"\1", request_id), tenant)
        self._roots[name] = root
        self._roots.move_to_end(name)
        if len(self._roots) > self._most:
            self._roots.popitem(last=False)

    def _epoch_s(self, at_s: float | None) -> float | None:
        return None if at_s is None else self._clock.now_s() - (self._clock.monotonic_s() - at_s)

    def _keep_swept(self) -> None:
        """Look regularly for tasks that have ended by age, as long as any task is known."""
        if not self._sweeping:
            try:
                asyncio.get_running_loop().call_later(min(self._idle_s / 4, MOST_SWEEP_S), self._sweep)
                self._sweeping = True
            except RuntimeError:  # called outside of the server's loop
                pass

    def _sweep(self) -> None:
        self._sweeping = False
        self._table.sweep(self._clock.monotonic_s())
        if len(self._table):
            self._keep_swept()


def _secret(*, shared: bool) -> bytes:
    if shared:
        try:
            return shared_secret(page_folder())
        except OSError as error:
            logger.warning("each API process knows its own tasks alone, since they can share no secret: %s", error)
    return secrets.token_bytes(SECRET_BYTES)


def _key(name: bytes) -> int:
    """Return the number of a task in the table, never 0."""
    return int.from_bytes(name[:8]) or 1


def _of_http(http: HTTPContext | None) -> RequestTask | None:
    """Return the call of a task that an HTTP request has begun; ``None`` if it has begun none, or it has ended."""
    task = None if http is None else cast(RequestTask | None, http.task)
    return task if task is not None and task.is_open else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
