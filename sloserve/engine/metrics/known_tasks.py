"""The tasks of which one process serves calls, found by what their clients call them.

A task is known by a hash of its tenant and its client's name for it, made with a secret: no text of a client goes on,
and no client can name another tenant's task. A deadline that counts from the first call of a task becomes a time here,
where the first call is known.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.served import UNUSED, InEngine
from sloserve.core.slo import DUE_NOW_S, MAX_TARGET_S, SLO
from sloserve.engine.metrics.task_page import KnownTask, OpenTasks, TaskPages
from sloserve.engine.metrics.task_table import StartedCall, TaskListener, TaskTable
from sloserve.wire.tasks import CHAIN, StatedTask

_TURN: Final = re.compile(r"(resp_[^_]+)_\d+")
"""The engine's name for one turn of a response with tools: the name of the response, and a number."""


@dataclass(frozen=True, slots=True)
class ArrivingTask:
    """The task of a request before its admission.

    Args:
        stated: The client's statement.
        name: Hash of the tenant and the client's name for the task.
        running: The task, if one of its calls was let in before and it has not ended.
        due_s: Deadline of the task by the host's monotonic clock; ``None`` if it has none.
    """

    stated: StatedTask
    name: bytes
    running: KnownTask | None
    due_s: float | None

    @property
    def key(self) -> int:
        """Number of the task in the table, never 0."""
        return int.from_bytes(self.name[:8]) or 1

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
        return replace(slo, targets=replace(slo.targets, e2e_s=e2e_s))


class KnownTasks:
    """The tasks that one process knows, together with the other processes of its server."""

    def __init__(self, pages: TaskPages, idle_s: float, listener: TaskListener, secret: bytes, clock: Clock) -> None:
        """Create an empty table of tasks.

        Args:
            pages: Pages of all processes.
            idle_s: Seconds without a call after which a task has ended.
            listener: Called for tasks that begin, become late and end.
            secret: Secret of the server, the same in all processes.
            clock: Clock of this process.
        """
        self._pages, self._secret, self._clock = pages, secret, clock
        self._table = TaskTable(pages, idle_s, listener)
        self._roots: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def arriving(self, stated: StatedTask, tenant: str | None, arrival_s: float) -> ArrivingTask:
        """Return the task of a request that arrives.

        Args:
            stated: The client's statement.
            tenant: Tenant of the request.
            arrival_s: When the request arrived.
        """
        if stated.kind == CHAIN:
            stated = replace(stated, id=self._roots.get(self._hash(CHAIN, stated.id, tenant), stated.id))
        arriving = ArrivingTask(stated, self._hash(stated.kind, stated.id, tenant), None, None)
        running = self._table.running(arriving.key, arrival_s)
        due_s = None if running is None else running.due_s
        if stated.e2e_s is not None:
            due_s = (arrival_s if running is None else running.began_s) + stated.e2e_s
        elif stated.deadline_s is not None:
            due_s = self._clock.monotonic_s() + (stated.deadline_s - self._clock.now_s())
        return replace(arriving, running=running, due_s=due_s)

    def call_begins(
        self,
        arriving: ArrivingTask,
        arrival_s: float,
        class_id: int,
        tenant: str | None,
        request_id: str | None = None,
    ) -> StartedCall | None:
        """Record that a call of a task was let in; ``None`` if the table is full of tasks with running calls.

        Args:
            arriving: The task.
            arrival_s: When the call arrived.
            class_id: Index of the class of the call.
            tenant: Tenant of the call.
            request_id: The engine's name for the call, by which a later request may name the task.
        """
        stated = arriving.stated
        if stated.kind == CHAIN and request_id is not None:
            self.link(request_id, stated.id, tenant)
        return self._table.call_begins(
            arriving.key,
            arrival_s,
            class_id=class_id,
            tenant=tenant,
            e2e_s=stated.e2e_s,
            due_s=None if stated.deadline_s is None else arriving.due_s,
            hint=stated.calls,
            is_last=stated.last,
        )

    def call_ends(
        self, started: StartedCall, *, completed: bool, refused: bool = False, used: InEngine = UNUSED
    ) -> None:
        """Record that a call has ended now.

        Args:
            started: The call.
            completed: Whether its output is complete.
            refused: Whether it was refused after it had been let in, and so is no call of the task.
            used: What it used of the engine.
        """
        if refused:
            self._table.call_withdrawn(started)
        else:
            self._table.call_ends(started, self._clock.monotonic_s(), completed=completed, used=used)

    def now(self, started: StartedCall) -> KnownTask:
        """Return the task of a call as it is now."""
        return self._pages.of_generation(started.key, started.task.generation) or started.task

    def open_tasks(self, most: int) -> OpenTasks:
        """Return the tasks of all processes that have not ended, and at most ``most`` of them one by one."""
        return self._table.open_tasks(self._clock.monotonic_s(), most)

    def sweep(self) -> None:
        """End the tasks that were idle for too long, and forget the tasks that have ended."""
        self._table.sweep(self._clock.monotonic_s())

    def epoch_s(self, at_s: float | None) -> float | None:
        """Return a time of the host's monotonic clock by the host's clock as it stands now."""
        return None if at_s is None else self._clock.now_s() - (self._clock.monotonic_s() - at_s)

    def close(self) -> None:
        """Withdraw what this process knows from the others."""
        self._pages.own.close()

    def link(self, request_id: str, root: str, tenant: str | None) -> None:
        """Note that a request which names the response to another one belongs to the same task.

        Args:
            request_id: The engine's name for the other request.
            root: Name of the first response of the task.
            tenant: Tenant of both.
        """
        name = self._hash(CHAIN, _TURN.sub(r"\1", request_id), tenant)
        self._roots[name] = root
        self._roots.move_to_end(name)
        if len(self._roots) > self._pages.own.keys.size:
            self._roots.popitem(last=False)

    def _hash(self, kind: str, name: str, tenant: str | None) -> bytes:
        """Return what stands for a client's name of a task; equal only for one tenant, kind and name."""
        parts = [kind, name] if tenant is None else [kind, name, tenant]
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return blake2b(text.encode(errors="surrogatepass"), key=self._secret, digest_size=16).digest()
