"""Our metrics on ``/metrics``, beside vLLM's: what users experienced, counted in the process that answered them.

They stand in prometheus_client's own registry, as vLLM's do. With several API servers vLLM turns on prometheus'
multiprocess mode: every counter and histogram here is then summed over the processes, and what is computed at scrape
(``sloserve:slo_attainment_ratio``, ``sloserve:prediction_coverage_ratio`` and all of
:mod:`sloserve.vllm_plugin.page_metrics`) is not shown, because that mode reads values from files and asks no collector.

Labels have few values: classes come from the class table, outcomes and reasons are enumerated, and of tenants only so
many as :class:`TenantLabels` allows have one of their own.
"""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector

from sloserve.core.clock import Clock
from sloserve.core.served import ServedRequest
from sloserve.vllm_plugin.class_metrics import AttainmentGauge, ClassMetrics, CoverageGauge, Families
from sloserve.vllm_plugin.config import PluginSettings
from sloserve.vllm_plugin.page import PageSnapshot, find_pages
from sloserve.vllm_plugin.page_metrics import PageCollector

INVALID_REQUEST: Final = "invalid-request"
REASONS: Final = (
    "rejected-saturated", "rejected-slo-unattainable", "rejected-ttl-expired", "evicted-priority", INVALID_REQUEST,
)  # fmt: skip
OTHER: Final = "other"
NONE: Final = "none"


class TenantLabels:
    """Which tenants have a label of their own: those the operator named, then those that come first, up to a limit."""

    def __init__(self, named: Iterable[str], limit: int) -> None:
        self._limit = limit
        self._known = set(list(named)[:limit])

    def of(self, tenant: str | None) -> str:
        """The label of a tenant: its name, ``other`` beyond the limit, ``none`` for a request that names none."""
        if tenant is None:
            return NONE
        if tenant not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(tenant)
        return tenant


class FrontEndMetrics:
    """Counts how requests fared. Every request is recorded once, however it ended."""

    def __init__(
        self,
        class_names: Iterable[str],
        tenants: TenantLabels,
        clock: Clock,
        snapshots: Callable[[], Iterable[PageSnapshot]],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Raises: ValueError if such metrics already stand in ``registry``."""
        self._clock = clock
        self._tenants = tenants
        self._registry = registry
        self._families = Families()
        self._classes = {name: ClassMetrics(name, self._families) for name in class_names}
        for name in self._classes:
            for reason in REASONS:
                self._families.rejected.labels(name, reason)
        windows = {name: of_class.window for name, of_class in self._classes.items()}
        self._collectors: list[Collector] = [
            *vars(self._families).values(),
            AttainmentGauge(windows, clock),
            CoverageGauge(self._classes),
            PageCollector(snapshots),
        ]
        for collector in self._collectors:
            registry.register(collector)

    def record(self, served: ServedRequest) -> None:
        """Takes in a request that ended, also one that was refused.

        Raises: KeyError for a class that is not in the table.
        """
        self._classes[served.slo.slo_class.name].record(served, self._clock.now_s())
        self._families.tenant_requests.labels(self._tenants.of(served.tenant), served.outcome).inc()

    def rejected(self, slo_class: str | None, reason: str | None) -> None:
        """Counts why a request was refused; where its SLO could be read, :meth:`record` counts the request itself.

        slo_class: ``None`` where it could not be read. reason: one of :data:`REASONS`; any other counts as ``other``.
        """
        known = slo_class if slo_class in self._classes else NONE
        self._families.rejected.labels(known, reason if reason in REASONS else OTHER).inc()

    def unregister(self) -> None:
        """Takes all of them out of the registry; a second call changes nothing."""
        while self._collectors:
            self._registry.unregister(self._collectors.pop())


_installed: FrontEndMetrics | None = None


def install(settings: PluginSettings, clock: Clock) -> FrontEndMetrics:
    """The metrics of this process, from now on; those of an engine it had before are dropped, as vLLM drops its own."""
    global _installed
    if _installed is not None:
        _installed.unregister()
    _installed = FrontEndMetrics(
        settings.classes.names,
        TenantLabels(settings.tenants, settings.max_tenant_labels),
        clock,
        lambda: [page.snapshot() for page in find_pages()],
    )
    return _installed
