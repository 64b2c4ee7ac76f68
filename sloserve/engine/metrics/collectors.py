"""Our metrics on ``/metrics``, beside vLLM's: what users experienced, counted in the process that served them.

They stand in prometheus_client's own registry, as vLLM's do. If there are several API servers, vLLM turns on
prometheus' multiprocess mode, which adds up the counters and histograms of all processes, dead ones too, and asks no
collector. What is computed at scrape (``sloserve:slo_attainment_ratio``, ``sloserve:prediction_coverage_ratio`` and all
of :mod:`sloserve.engine.metrics.engine_metrics`) is computed from the boards and pages of all processes, and is laid
beside what that mode collects, so that a scrape of any process shows the whole.

Labels have few values: classes come from the class table, outcomes and reasons are enumerated, and only as many tenants
as :class:`TenantLabels` allows have a label of their own.
"""

import functools
import logging
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry, Counter, multiprocess
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sloserve.core.attainment_window import AttainmentWindow
from sloserve.core.clock import Clock
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.tenants import NONE, OTHER
from sloserve.engine.metrics.class_metrics import COUNTS, AttainmentGauge, ClassMetrics, Families
from sloserve.engine.metrics.engine_metrics import PageCollector
from sloserve.engine.metrics.engine_page import PageSnapshot, find_pages
from sloserve.engine.metrics.gen_ai_metrics import GENERATE_CONTENT, GenAiMetrics
from sloserve.engine.metrics.prediction_metrics import PredictionGauges
from sloserve.engine.metrics.process_page import Boards, tenant_key, tenant_windows
from sloserve.engine.metrics.task_metrics import OpenTasksGauge, TaskMetrics
from sloserve.engine.metrics.task_page import TaskPages
from sloserve.engine.metrics.tenant_figures import named_tenants
from sloserve.engine.recording.events import BODY_TOO_LARGE, TENANT_LIMIT
from sloserve.scheduler.settings import PluginSettings

logger = logging.getLogger(__name__)

LOG_INTERVAL_S: Final = 60.0
INVALID_REQUEST: Final = "invalid-request"
SHUTTING_DOWN: Final = "shutting-down"
REASONS: Final = (
    "rejected-saturated", "rejected-slo-unattainable", "rejected-promise", "rejected-ttl-expired", "evicted-priority",
    INVALID_REQUEST, SHUTTING_DOWN, TENANT_LIMIT, BODY_TOO_LARGE,
)  # fmt: skip


class TenantLabels:
    """Tenants that have a label of their own: tenants that the operator named, then the first to come, up to a limit.

    The first tenants at one API process have their labels in all of them, so that their counts are complete. The limit
    holds for all processes together; processes that each meet a new tenant in the same instant may pass it by one each.
    """

    def __init__(self, named: Iterable[str], boards: Boards) -> None:
        """Create labels for the named tenants.

        Args:
            named: Tenants that the operator named.
            boards: Boards with room for as many tenants as may have a label.
        """
        self._boards = boards
        self._taken = 0
        self._labelled: set[str] = set()
        """Tenants that were seen to have a label, which they keep; no more than there are labels."""
        for tenant in list(named)[: boards.own.tenants.size]:
            self._take(tenant_key(tenant))

    def of(self, tenant: str | None) -> str:
        """Return the label of a tenant: its name, ``other`` beyond the limit, ``none`` for a request without one."""
        if tenant is None:
            return NONE
        if tenant in self._labelled:
            return tenant
        key, own = np.uint64(tenant_key(tenant)), self._boards.own.tenants
        if (own == key).any():
            self._labelled.add(tenant)
            return tenant
        labelled = np.unique(np.concatenate([own, *(board.tenants for board in self._boards.others)]))
        is_full = np.count_nonzero(labelled) >= own.size
        if self._taken == own.size or (is_full and key not in labelled):
            return OTHER
        self._take(key)
        return tenant

    def _take(self, key: int | np.uint64) -> None:
        self._boards.own.tenants[self._taken] = key
        self._taken += 1


class TenantMetrics:
    """The series of one label, looked up once.

    Args:
        label: The label; counters of a label begin at 0.
        families: The metrics to which the series belong.
        window: Window of the tenant's latest requests; ``None`` if they are not remembered.
    """

    def __init__(self, label: str, families: Families, window: AttainmentWindow | None) -> None:
        self._label, self._families, self._window = label, families, window
        self._outcomes: dict[Outcome, Counter] = {}
        self._counts = [(families.tenant_counts[key].labels(label), count.of) for key, count in COUNTS.items()]

    def record(self, served: ServedRequest, now_s: float) -> None:
        """Record a request of a tenant with this label that ended."""
        counter = self._outcomes.get(served.outcome)
        if counter is None:
            labels = self._label, served.outcome
            counter = self._outcomes[served.outcome] = self._families.tenant_requests.labels(*labels)
        counter.inc()
        for count, of in self._counts:
            if added := of(served):
                count.inc(added)
        if (promise := served.promise) is not None:
            self._families.promises.of_tenant.labels(self._label, promise).inc()
        if self._window is not None:
            self._window.record(served.met, served.outcome, now_s)


class FrontEndMetrics:
    """Counts how requests fared. Every request is recorded once, however it ended."""

    def __init__(
        self,
        class_names: Iterable[str],
        tenants: Iterable[str],
        boards: Boards,
        clock: Clock,
        snapshots: Callable[[], Iterable[PageSnapshot]],
        *,
        registry: CollectorRegistry = REGISTRY,
        open_tasks: Collector | None = None,
        model: str = "",
    ) -> None:
        """Create and register the metrics of a front end.

        Args:
            class_names: Names of the service classes.
            tenants: Tenants that the operator named.
            boards: Boards of this server's processes.
            clock: Clock of this process.
            snapshots: Function that reads the engines' pages, see
                :class:`~sloserve.engine.metrics.engine_metrics.PageCollector`.
            registry: Registry of metrics.
            open_tasks: Collector of tasks that have not ended; ``None`` for none.
            model: Name of the model for clients; empty if it is not known.

        Raises: ValueError if such metrics already exist in ``registry``.
        """
        self._clock = clock
        self._tenants = TenantLabels(tenants, boards)
        self._registry = registry
        self._families = Families()
        self._board = boards.own
        self._of_tenant: dict[tuple[str, str | None], TenantMetrics] = {}
        self._logged_s: float | None = None
        names = list(class_names)
        self._classes = {name: ClassMetrics(name, self._families, boards.own, i) for i, name in enumerate(names)}
        for name in self._classes:
            for reason in REASONS:
                self._families.rejected.labels(name, reason)
        self._computed: list[Collector] = [
            AttainmentGauge(names, boards.look, clock),
            PredictionGauges(names, boards.look),
            PageCollector(snapshots, self._tenants.of),
            *([] if open_tasks is None else [open_tasks]),
        ]
        self.tasks = TaskMetrics(names, self._tenants.of)
        self._gen_ai = GenAiMetrics(model)
        self._collectors: list[Collector] = [
            *self._families.all(), *self.tasks.all(), *self._gen_ai.all(), *self._computed
        ]  # fmt: skip
        for collector in self._collectors:
            registry.register(collector)

    def computed(self) -> Iterable[Metric]:
        """Yield what is computed at scrape, of all processes."""
        for collector in self._computed:
            yield from collector.collect()

    def record(self, served: ServedRequest, operation: str = GENERATE_CONTENT, age_s: float = 0.0) -> None:
        """Record a request that ended, also one that was refused.

        Args:
            served: How the request fared.
            operation: Operation of the request's route, see :mod:`sloserve.engine.metrics.gen_ai_metrics`.
            age_s: Seconds since the request arrived.

        Raises: KeyError for a class that is not in the table.
        """
        now_s = self._clock.monotonic_s()
        self._classes[served.slo.slo_class.name].record(served, now_s)
        self._of(served.tenant).record(served, now_s)
        self._gen_ai.record(served, operation, age_s)

    def _of(self, tenant: str | None) -> TenantMetrics:
        label = self._tenants.of(tenant)
        is_own = tenant is None or tenant == label
        key = label, tenant if is_own else OTHER
        found = self._of_tenant.get(key)
        if found is None:
            windows = tenant_windows([self._board], tenant) if is_own else []
            window = AttainmentWindow(windows[0]) if windows else None
            found = self._of_tenant[key] = TenantMetrics(label, self._families, window)
        return found

    def rejected(self, slo_class: str | None, reason: str | None) -> None:
        """Count why a request was refused; if its SLO could be read, :meth:`record` counts the request itself.

        Args:
            slo_class: Name of the class; ``None`` if it could not be read.
            reason: One of :data:`REASONS`; any other counts as ``other``.
        """
        known = slo_class if slo_class in self._classes else NONE
        self._families.rejected.labels(known, reason if reason in REASONS else OTHER).inc()

    def promise_refused(self, class_name: str, why: str) -> None:
        """Count a promise that was asked for and not given, whether its request was then served or refused.

        Args:
            class_name: Name of the request's class.
            why: ``late`` if the request's own targets would be kept too seldom, ``others`` if promises given before
                would be broken, ``unknown`` if too little is known of the class.

        Raises: KeyError for a class that is not in the table.
        """
        self._classes[class_name].promise_refused(why)

    def ignored(self, names: Sequence[str]) -> None:
        """Count headers that were ignored, and name some in the log, at most once in ``LOG_INTERVAL_S``."""
        self._families.ignored_headers.inc(len(names))
        now_s = self._clock.monotonic_s()
        if self._logged_s is None or now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.warning("headers that sloserve does not know are ignored: %s", reprlib.repr(names))

    def unregister(self) -> None:
        """Take all metrics out of the registry; a second call has no effect."""
        while self._collectors:
            self._registry.unregister(self._collectors.pop())


_installed: FrontEndMetrics | None = None


def install(
    settings: PluginSettings, boards: Boards, clock: Clock, tasks: TaskPages | None = None, model: str = ""
) -> FrontEndMetrics:
    """Install and return the metrics of this process; metrics of an engine it had before are dropped, as vLLM does."""
    global _installed
    if _installed is not None:
        _installed.unregister()
    _extend_multiprocess_mode()
    _installed = FrontEndMetrics(
        settings.classes.names,
        named_tenants(settings),
        boards,
        clock,
        lambda: [page.snapshot() for page in find_pages()],
        open_tasks=None
        if tasks is None
        else OpenTasksGauge(settings.classes.names, tasks, settings.task_idle_s, clock),
        model=model,
    )
    return _installed


def _extend_multiprocess_mode() -> None:
    """Extend what multiprocess mode reads from its files by what is computed at scrape.

    The collector that the mode consists of is extended, once, since every scrape makes a registry of its own for it.
    """
    stock: Any = multiprocess.MultiProcessCollector.collect
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def collect(self: Any) -> Iterable[Metric]:
        yield from stock(self)
        if _installed is not None:
            yield from _installed.computed()

    multiprocess.MultiProcessCollector.collect = collect  # type: ignore[method-assign]
