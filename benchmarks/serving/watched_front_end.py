"""The front end's part of a view under load, as an API process has it: full windows, ten minutes of history, tasks.

What a step of the engine costs does not depend on it; what the API process takes for each frame does.
"""

from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge

from sloserve.core.attainment_window import MAX_REQUESTS, AttainmentWindow
from sloserve.core.judged_window import MAX_PREDICTIONS, PredictionWindow
from sloserve.core.latency_window import LatencyWindow
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import PREDICTED, Quantiles
from sloserve.core.promise_window import PromiseWindow
from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.engine_page import find_pages
from sloserve.engine.metrics.live_view import LiveView
from sloserve.engine.metrics.load_sampler import GpuFigures, LoadSampler
from sloserve.engine.metrics.process_page import LATENCIES, Board
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.engine.metrics.task_table import EndedTask, TaskTable

TASKS = 200
"""Open tasks, of which a view has 20."""
MOST_TENANTS = 50
_GPUS = (GpuFigures("NVIDIA H100 80GB HBM3", 74 << 30, 80 << 30, 0.98, 641.0, 1e6),) * 8


class _Uncounted:
    """Counts no task."""

    def task_started(self, class_id: int, tenant: str | None) -> None: ...
    def task_late(self, class_id: int, tenant: str | None) -> None: ...
    def task_ended(self, ended: EndedTask) -> None: ...


class _UpForHours:
    """The engine's clock, of which the monotonic time begins late enough for ten minutes of history before it."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now_s(self) -> float:
        return float(self._clock.now_s())

    def monotonic_s(self) -> float:
        return float(self._clock.monotonic_s()) + 1e4


class FrontEnd:
    """The view of one API process, with all parts of its load.

    Args:
        names: Names of the classes.
        clock: Clock of the engine.
        folder: Folder of its pages.
    """

    def __init__(self, names: tuple[str, ...], clock: Any, folder: Path) -> None:
        self._clock, self.board = _UpForHours(clock), Board(len(names), MOST_TENANTS)
        self._fill_windows(len(names), clock.monotonic_s())
        self._count = _counters(names)
        snapshots = lambda: [page.snapshot() for page in find_pages(folder)]  # noqa: E731 - a function of no arguments
        registry = CollectorRegistry()
        for counter in self._count:
            registry.register(counter)
        self.sampler = LoadSampler(self.board.history, names, snapshots, self._clock, lambda: _GPUS, registry)
        self._fill_history(len(names))
        tasks = TaskPages(TaskPage(4096), clock)
        table = TaskTable(tasks, 600.0, _Uncounted())
        now_s = clock.monotonic_s()
        for number in range(1, TASKS + 1):
            table.call_begins(number << 32, now_s, class_id=0, tenant=None, e2e_s=1e5 + number, hint=12)
        self.view = LiveView(
            lambda: "model", names, lambda: [self.board], clock, folder=folder,
            tasks=lambda most: tasks.open_tasks(clock.monotonic_s(), 600.0, most), parts=self.parts,
        )  # fmt: skip

    def parts(self) -> dict[str, Any]:
        """Return the load and the GPUs, as :class:`~sloserve.vllm_plugin.server.load_shown.LoadShown` does."""
        latest = self.history(1)["rows"]
        return {
            "server": {"version": "0.1.0", "vllm": "0.32.0", "started_s": 0.0},
            "load": dict(zip(load_history.ROW, latest[0], strict=True)) if latest else None,
            "gpus": self.sampler.gpus,
        }

    def history(self, *most: int) -> dict[str, Any]:
        """Return ten minutes of the load, which a watcher gets once."""
        now_s = self._clock.monotonic_s()
        rows = load_history.rows([self.board.history], self._clock.now_s() - now_s, now_s, *most)
        return {"columns": list(load_history.ROW), "rows": rows}

    def _fill_windows(self, classes: int, now_s: float) -> None:
        draws = np.random.default_rng(0)
        for i in range(classes):
            ended, promises = AttainmentWindow(self.board.ended[i]), PromiseWindow(self.board.promises[i])
            latencies = [LatencyWindow(self.board.latency[i, at]) for at in range(len(LATENCIES))]
            for took_s in draws.gamma(2.0, 1.0, MAX_REQUESTS).tolist():
                ended.record({"ttft": took_s < 3.0, "e2e": True}, Outcome.COMPLETED, now_s)
                promises.record("kept", 0.9, now_s)
                for window in latencies:
                    window.record(took_s, now_s)
            for at in range(len(PREDICTED)):
                predicted = PredictionWindow(self.board.predicted[i, at])
                for took_s in draws.gamma(2.0, 1.0, MAX_PREDICTIONS).tolist():
                    predicted.record(Quantiles(1.7, 3.9, 6.6), took_s, now_s)

    def _fill_history(self, classes: int) -> None:
        now_s = self._clock.monotonic_s()
        for i in range(load_history.SLOTS):
            at_s = now_s - load_history.EVERY_S * (load_history.SLOTS - i)
            figures = {name: 100.0 * i for name in load_history.COUNTERS} | dict.fromkeys(load_history.WHOLE, 0.5 * i)
            load_history.record(self.board.history, figures, [(9.0 * i, 10.0 * i)] * classes, at_s)


def _counters(names: tuple[str, ...]) -> list[Any]:
    """Return the counters that a sample reads, each with the series that a server of these classes has."""
    found: list[Any] = []
    for name in ("requests", "goodput_requests", "slo_requests"):
        labels = ["class", "outcome"] if name == "requests" else ["class"]
        counter = Counter(f"sloserve:{name}", name, labels, registry=None)
        for one in names:
            counter.labels(*([one, "completed"] if name == "requests" else [one])).inc(1e4)
        found.append(counter)
    for name in ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"):
        counter = Counter(f"vllm:{name}", name, ["engine"], registry=None)
        counter.labels("0").inc(1e6)
        found.append(counter)
    used = Gauge("vllm:kv_cache_usage_perc", "used", ["engine"], registry=None)
    used.labels("0").set(0.9)
    return [*found, used]
