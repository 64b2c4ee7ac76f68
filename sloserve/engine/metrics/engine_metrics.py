"""What the schedulers say on their pages, as metrics, read at each scrape; label ``engine`` is the rank.

Counters count from the start of their engine. In prometheus' multiprocess mode (several API servers) none of this is
shown, see :mod:`sloserve.engine.metrics.collectors`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sloserve.engine.metrics.engine_figures import FAMILY, EngineFigures
from sloserve.engine.metrics.engine_page import PLAN_BUCKETS_S, PageSnapshot
from sloserve.engine.metrics.swap_figures import swap_families
from sloserve.engine.metrics.tenant_figures import own_name, tenant_families

PREFIX = "sloserve:"


class PageCollector(Collector):
    """Turns snapshots of pages into metrics."""

    def __init__(
        self, snapshots: Callable[[], Iterable[PageSnapshot]], tenant_label: Callable[[str | None], str] = own_name
    ) -> None:
        """Create a collector of the engines' pages.

        Args:
            snapshots: Function that takes a snapshot of every page; an OSError or ValueError counts as no page.
            tenant_label: Function that returns the label of a tenant. A page has a bounded number of tenants, but
                several pages together may have more.
        """
        self._snapshots = snapshots
        self._tenant_label = tenant_label

    def describe(self) -> Iterable[Metric]:
        return self._families([])

    def collect(self) -> Iterable[Metric]:
        try:
            return self._families(one_of_each_rank(self._snapshots()))
        except (OSError, ValueError):
            return []  # a scrape without them is better than none; the engines' own log says why there is no page

    def _families(self, pages: Sequence[PageSnapshot]) -> list[Metric]:
        return [*_families(pages), *tenant_families(pages, PREFIX, self._tenant_label)]


def one_of_each_rank(snapshots: Iterable[PageSnapshot]) -> list[PageSnapshot]:
    """Return the page of each rank's live engine that stepped last: Prometheus refuses duplicates in a scrape."""
    latest: dict[int, PageSnapshot] = {}
    for page in snapshots:
        if page.alive and (page.rank not in latest or page.last_step_s > latest[page.rank].last_step_s):
            latest[page.rank] = page
    return [latest[rank] for rank in sorted(latest)]


def _families(pages: Sequence[PageSnapshot]) -> list[Metric]:
    plan_seconds = HistogramMetricFamily(f"{PREFIX}scheduler_plan_seconds", "Time to make a plan", labels=["engine"])
    plans = _counter(
        "plans",
        "Steps by the origin of their plan: a fresh one, the last one, none since it is too old, none since it failed",
        "kind",
    )
    preemptions = _counter("preemptions", "Running requests that lost their KV, by what preempted them", "mode", "by")
    queue = _gauge("queue_requests", "Requests never admitted yet", "class")
    policy = _gauge("scheduler_policy_info", "The policies at work", "policy", "shadow_policy")
    plans_off = _gauge("scheduler_plans_off", "1 where vLLM schedules by itself although the policy plans", "reason")
    agreement = _gauge(
        "shadow_agreement_ratio", "Mean agreement of the shadow policy's plans with the applied plans, 0 to 1"
    )
    gain = _gauge(
        "shadow_predicted_attainment_difference",
        "Mean predicted SLO attainment of the shadow policy's plans minus the attainment of the applied plans, -1 to 1",
    )
    factor = _gauge("step_time_factor", "Observed step time over the profile's, by part of the step", "part")
    error = _gauge("step_time_relative_error", "Usual relative error of a step's predicted time")
    coverage = _gauge(
        "step_time_coverage_ratio", "Share of recent steps no larger than the steps from which times were learnt"
    )
    for page in pages:
        engine = str(page.rank)
        counts = list(accumulate(page.plan_seconds))
        limits = [*(f"{limit:g}" for limit in PLAN_BUCKETS_S), "+Inf"]
        plan_seconds.add_metric([engine], list(zip(limits, counts, strict=True)), page.plan_seconds_sum)
        plans.add_metric([engine, "fresh"], page.plans)
        plans.add_metric([engine, "reused"], page.reused_plans)
        plans.add_metric([engine, "stale"], page.stale_plans)
        plans.add_metric([engine, "error"], page.plan_errors)
        swapped = {"policy": page.swapped_by_policy, "vllm": page.swap_stores - page.swapped_by_policy}
        for by, count in (("policy", page.policy_preemptions), ("vllm", page.vllm_preemptions)):
            preemptions.add_metric([engine, "recompute", by], count - swapped[by])
            preemptions.add_metric([engine, "swap", by], swapped[by])
        for name, waiting in page.waiting_by_class.items():
            queue.add_metric([engine, name], waiting)
        policy.add_metric([engine, page.policy, page.shadow_policy or ""], 1.0)
        plans_off.add_metric([engine, page.plans_off or ""], float(page.plans_off is not None))
        if page.shadow_agreement_count:
            agreement.add_metric([engine], page.shadow_agreement_sum / page.shadow_agreement_count)
        if page.shadow_gain_count:
            gain.add_metric([engine], page.shadow_gain_sum / page.shadow_gain_count)
        if page.step_factor_constant:
            for part in ("constant", "prefill", "decode"):
                factor.add_metric([engine, part], getattr(page, f"step_factor_{part}"))
        if page.step_error:
            error.add_metric([engine], page.step_error)
            coverage.add_metric([engine], page.step_coverage)
    ours = [plan_seconds, plans, preemptions, queue, policy, plans_off, agreement, gain, factor, error, coverage]
    return [*ours, *swap_families(pages, PREFIX), *_plain(pages)]


def _plain(pages: Sequence[PageSnapshot]) -> Iterator[Metric]:
    """Yield the figures that are shown as they are."""
    for figure in fields(EngineFigures):
        if FAMILY in figure.metadata:
            kind, name, documentation = figure.metadata[FAMILY]
            family = kind(f"{PREFIX}{name}", documentation, labels=["engine"])
            for page in pages:
                family.add_metric([str(page.rank)], getattr(page, figure.name))
            yield family


def _counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", documentation, labels=["engine", *labels])


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", documentation, labels=["engine", *labels])
