"""The tasks of which a gateway serves calls: when each began, so that every engine gets the same deadline.

A gateway knows the calls that came through it, and of the calls through other gateways what agents report of them for
some seconds: when their tasks began, by when they are due, and whether they are over. A chain of responses is followed
by the engine that stores them.
"""

from collections.abc import Mapping, Sequence

from sloserve.core.clock import Clock
from sloserve.engine.metrics.known_tasks import ArrivingTask, KnownTasks
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.engine.metrics.task_table import EndedTask, StartedCall
from sloserve.fleet.contract.reported_tasks import ReportedTask, stated_task
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.heard_tasks import HeardTasks
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.tasks import CHAIN


class GatewayTasks:
    """The tasks that one gateway knows."""

    def __init__(self, settings: PluginSettings, secret: bytes, clock: Clock) -> None:
        """Create an empty table.

        Args:
            settings: Settings of the engines of the fleet.
            secret: Secret with which names of tasks are hashed, the same for all gateways of the fleet.
            clock: Clock of this process.
        """
        self._secret = secret
        self._clock, self._idle_s, self._swept_s = clock, settings.task_idle_s, clock.monotonic_s()
        self._sizes = settings.task_idle_s, settings.max_tasks
        self.set_classes(settings.classes.names)
        self._heard = HeardTasks(settings.max_tasks, clock)
        pages = TaskPages(TaskPage(settings.max_tasks), clock, heard=[self._heard.page])
        self._known = KnownTasks(pages, settings.task_idle_s, self, secret, clock)

    def of_settings(self, settings: PluginSettings) -> "GatewayTasks":
        """Return the tasks for other settings: these, unless the size of the table or its idle time has changed."""
        if (settings.task_idle_s, settings.max_tasks) != self._sizes:
            return GatewayTasks(settings, self._secret, self._clock)
        return self

    def set_classes(self, names: Sequence[str]) -> None:
        """Set the names of the classes."""
        self._class_ids = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._known)

    def heard(self, tasks: Mapping[str, str]) -> None:
        """Take in the tasks in the report of an instance: calls of them came through a gateway."""
        self._heard.heard(tasks)

    def arriving(self, request: GatewayRequest) -> ArrivingTask | None:
        """Return the task of a request that arrives, and state its deadline to engines; ``None`` if it has none."""
        now_s, stated = self._clock.monotonic_s(), request.stated_task
        if now_s - self._swept_s > self._idle_s / 4:
            self._swept_s = now_s
            self._known.sweep()
        if stated is None or stated.kind == CHAIN:
            return None
        found = self._known.arriving(stated, request.tenant.name, request.arrival_s)
        request.task_due_s = self._known.epoch_s(found.due_s)
        return found

    def begins(self, arriving: ArrivingTask | None, request: GatewayRequest) -> StartedCall | None:
        """Record that a request was let in; ``None`` if it is no call of a task, or the table is full."""
        if arriving is None:
            return None
        # Only engines count tasks by class; a request that was read before the file changed may have one that is gone.
        class_id, tenant = self._class_ids.get(request.slo_class, 0), request.tenant.name
        started = self._known.call_begins(arriving, request.arrival_s, class_id, tenant)
        if started is not None:
            request.reported_task = self._stated(started)
        return started

    def ends(self, started: StartedCall | None, *, completed: bool) -> None:
        """Record that a call has ended."""
        if started is not None:
            self._known.call_ends(started, completed=completed)

    def _stated(self, started: StartedCall) -> str:
        """Return what other gateways are to know of a call."""
        task, ahead_s = started.task, self._clock.now_s() - self._clock.monotonic_s()
        due_s = None if task.due_s is None else task.due_s + ahead_s
        call_s, began_s = started.arrival_s + ahead_s, task.began_s + ahead_s
        text = stated_task(started.key, ReportedTask(task.generation, call_s, began_s, due_s, started.says_last))
        self._heard.known(text)
        return text

    def task_started(self, class_id: int, tenant: str | None) -> None:
        """Count nothing: engines count tasks."""

    def task_late(self, class_id: int, tenant: str | None) -> None:
        """Count nothing: engines count tasks."""

    def task_ended(self, ended: EndedTask) -> None:
        """Count nothing: engines count tasks."""
