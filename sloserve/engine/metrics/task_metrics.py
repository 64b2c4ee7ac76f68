"""How tasks of many calls fared, as metrics, by class and by tenant. A task has the class of its first call."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sloserve.core.clock import Clock
from sloserve.engine.metrics.class_metrics import E2E_BUCKETS_S
from sloserve.engine.metrics.engine_metrics import PREFIX
from sloserve.engine.metrics.task_page import TaskPages
from sloserve.engine.metrics.task_table import LATE, OUTCOMES, EndedTask

CALLS_BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
ENGINE_BUCKETS_S: Final = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0
)  # fmt: skip
SHARE_BUCKETS: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class TaskMetrics:
    """Counts the tasks of one API process."""

    def __init__(self, class_names: Iterable[str], tenant_label: Callable[[str | None], str]) -> None:
        """Create the metrics, with a series from 0 for each class.

        Args:
            class_names: Names of the service classes.
            tenant_label: Function that returns the label of a tenant, one of a bounded number.
        """
        self._names, self._label = tuple(class_names), tenant_label
        self._begun = _counter("tasks_started", "Tasks of which a call has ended", "class")
        self._ended = _counter(
            "tasks_ended", "Tasks that ended; late ones count once they are late", "class", "outcome"
        )
        self._tenant_begun = _counter("tenant_tasks_started", "Tasks of which a call has ended", "tenant")
        self._tenant_ended = _counter(
            "tenant_tasks_ended", "Tasks that ended; late ones count once they are late", "tenant", "outcome"
        )
        self._seconds = _histogram("task_seconds", "Arrival of the first call to the end of the last", E2E_BUCKETS_S)
        self._calls = _histogram("task_calls", "Calls of tasks that ended", CALLS_BUCKETS)
        self._tools = _histogram(
            "task_tools_ratio", "Share of a task's time in which none of its calls was open", SHARE_BUCKETS
        )
        self._engine = _histogram("task_engine_seconds", "Engine time that the calls of a task used", ENGINE_BUCKETS_S)
        for name in self._names:
            self._begun.labels(name)
            for each in (self._seconds, self._calls, self._tools, self._engine):
                each.labels(name)
            for outcome in OUTCOMES:
                self._ended.labels(name, outcome)

    def all(self) -> list[Collector]:
        """Return each collector once, to be registered."""
        return [
            self._begun, self._ended, self._tenant_begun, self._tenant_ended, self._seconds, self._calls, self._tools,
            self._engine,
        ]  # fmt: skip

    def task_started(self, class_id: int, tenant: str | None) -> None:
        self._begun.labels(self._names[class_id]).inc()
        self._tenant_begun.labels(self._label(tenant)).inc()

    def task_late(self, class_id: int, tenant: str | None) -> None:
        self._outcome(class_id, tenant, LATE)

    def task_ended(self, ended: EndedTask) -> None:
        task, name = ended.task, self._names[ended.task.class_id]
        if not task.is_late:
            self._outcome(task.class_id, ended.tenant, ended.outcome)
        self._seconds.labels(name).observe(ended.seconds)
        self._calls.labels(name).observe(task.calls)
        self._engine.labels(name).observe(task.engine_s)
        if ended.seconds > 0.0:
            self._tools.labels(name).observe(min(task.tools_s / ended.seconds, 1.0))

    def _outcome(self, class_id: int, tenant: str | None, outcome: str) -> None:
        self._ended.labels(self._names[class_id], outcome).inc()
        self._tenant_ended.labels(self._label(tenant), outcome).inc()


class OpenTasksGauge(Collector):
    """Tasks that have not ended, of all API processes, counted when it is asked for."""

    def __init__(self, class_names: Sequence[str], pages: TaskPages, idle_s: float, clock: Clock) -> None:
        """Create a collector over all processes.

        Args:
            class_names: Names of the service classes.
            pages: Pages of all API processes.
            idle_s: Seconds without a call after which a task has ended.
            clock: Clock of this process.
        """
        self._names, self._pages, self._idle_s, self._clock = class_names, pages, idle_s, clock

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        of_class = self._pages.open_tasks(self._clock.monotonic_s(), self._idle_s).of_class
        for class_id, name in enumerate(self._names):
            family.add_metric([name], of_class[class_id] if class_id < len(of_class) else 0)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}open_tasks", "Tasks that have not ended", labels=["class"])


def _counter(name: str, documentation: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}{name}", documentation, labels, registry=None)


def _histogram(name: str, documentation: str, buckets: Iterable[float]) -> Histogram:
    return Histogram(f"{PREFIX}{name}", documentation, ["class"], buckets=tuple(buckets), registry=None)
