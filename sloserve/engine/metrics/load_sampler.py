"""Take a sample of a server's load every five seconds, from counters that exist already.

A sample reads the engines' pages, the counters of this process in prometheus' registry (vLLM's and ours), and the GPUs.
It is taken by a thread of its own, so that no request and no step waits for it, not even for a driver that hangs.
"""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry

from sloserve.core.arrays import FloatArray
from sloserve.core.clock import Clock
from sloserve.core.outcome import REFUSED, Outcome
from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.engine_metrics import PREFIX, one_of_each_rank
from sloserve.engine.metrics.engine_page import PageSnapshot

logger = logging.getLogger(__name__)

MOST_GPUS: Final = 16
"""GPUs of which watchers see figures."""

_VLLM: Final = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "kv_used": "vllm:kv_cache_usage_perc",
}
_REQUESTS: Final = f"{PREFIX}requests_total"
_GOOD: Final = f"{PREFIX}goodput_requests_total"
_HAD_TARGETS: Final = f"{PREFIX}slo_requests_total"
_MEANS: Final = frozenset({"kv_used"})
"""Figures of which the mean of all series counts, not the sum."""


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU as its driver reports it; ``None`` for what it does not report.

    Args:
        busy: Share of recent time in which a kernel ran, 0 to 1.
        joules: Energy since the driver was loaded.
    """

    name: str
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    busy: float | None = None
    power_w: float | None = None
    joules: float | None = None


class LoadSampler:
    """Keeps the history of the load as this process counts it."""

    def __init__(
        self,
        ring: FloatArray,
        classes: Sequence[str],
        snapshots: Callable[[], Iterable[PageSnapshot]],
        clock: Clock,
        gpus: Callable[[], Sequence[GpuFigures]] = tuple,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Create a sampler that has not started.

        Args:
            ring: Memory of the samples, see :mod:`sloserve.engine.metrics.load_history`.
            classes: Names of the service classes.
            snapshots: Function that reads the engines' pages; may raise OSError.
            clock: Clock of this process.
            gpus: Function that reads the GPUs of the server; it may take long, and never raises.
            registry: Registry of the counters.
        """
        self._ring, self._classes, self._snapshots, self._clock = ring, tuple(classes), snapshots, clock
        self._read_gpus, self._registry = gpus, registry
        self._gpus: Sequence[GpuFigures] = ()
        self._stopped = threading.Event()

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs as of the last sample, at most :data:`MOST_GPUS`."""
        return [asdict(gpu) for gpu in self._gpus[:MOST_GPUS]]

    def start(self) -> None:
        """Take samples until :meth:`stop`, from a thread that ends with the process."""
        threading.Thread(target=self._run, name="sloserve-load-history", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            try:
                self.sample()
            except Exception:
                logger.exception("no further samples of the server's load are taken")
                return
            # The next sample is taken just after its slot begins, so that no slot gets two samples, or none.
            now_s = self._clock.monotonic_s()
            wait_s = (math.floor(now_s / load_history.EVERY_S) + 1) * load_history.EVERY_S + _AFTER_S - now_s

    def sample(self) -> None:
        """Take one sample now."""
        counts = self._series(_REQUESTS)
        found = {name: value for name, metric in _VLLM.items() if (value := self._total(metric, name)) is not None}
        if counts:
            refused = sum(n for labels, n in counts if labels.get("outcome") == Outcome.REJECTED)
            taken = sum(n for labels, n in counts if labels.get("outcome") not in REFUSED)
            found |= {"refused": refused, "requests": taken}
        found |= self._engines()
        self._gpus = self._read_gpus()
        found |= _of_gpus(self._gpus)
        good, had = self._by_class(_GOOD), self._by_class(_HAD_TARGETS)
        by_class = [(good[name], had[name]) for name in self._classes]
        load_history.record(self._ring, found, by_class, self._clock.monotonic_s())

    def _engines(self) -> dict[str, float]:
        try:
            pages = one_of_each_rank(self._snapshots())
        except OSError:
            return {}
        if not pages:
            return {}
        names = {
            "running": "running",
            "waiting": "waiting",
            "step_seconds": "step_seconds",
            "timed_steps": "step_timed",
        }
        return {name: sum(getattr(page, figure) for page in pages) for name, figure in names.items()}

    def _series(self, metric: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and the value of each series of a metric; empty if there is no such metric."""
        families = self._registry.restricted_registry([metric]).collect()
        return [(one.labels, one.value) for family in families for one in family.samples if one.name == metric]

    def _total(self, metric: str, name: str) -> float | None:
        values = [value for _, value in self._series(metric)]
        if not values:
            return None
        return sum(values) / (len(values) if name in _MEANS else 1)

    def _by_class(self, metric: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for labels, value in self._series(metric):
            found[labels.get("class", "")] += value  # type: ignore[assignment]  # counts of prometheus are floats
        return found


_AFTER_S: Final = 0.05


def _of_gpus(gpus: Sequence[GpuFigures]) -> dict[str, float]:
    """Return the mean share of busy time, and the sums of power and energy, where every GPU reports them."""
    found: dict[str, float] = {}
    for figure, name in (("busy", "gpu_busy"), ("power_w", "power_w"), ("joules", "joules")):
        values = [getattr(gpu, figure) for gpu in gpus]
        if values and all(value is not None for value in values):
            found[name] = sum(values) / (len(values) if figure == "busy" else 1)
    return found
