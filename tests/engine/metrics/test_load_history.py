"""Ten minutes of load: rates and shares of counters, over all processes, in a bounded part of a snapshot."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from sloserve.core.arrays import FloatArray
from sloserve.core.clock import ManualClock
from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.load_history import EVERY_S, ROW, SLOTS, SPAN_S, record, rows, width
from sloserve.engine.metrics.load_sampler import GpuFigures, LoadSampler
from sloserve.wire.live_feed import MOST_BYTES, fitted, frame, recent

AHEAD_S = 1_000_000.0


def late() -> ManualClock:
    """Return a clock of a host that has been up for a while."""
    clock = ManualClock()
    clock.advance_to(clock.now_s() + 100.0)
    return clock


def ring(classes: int = 2) -> FloatArray:
    return np.zeros((SLOTS, width(classes)))


def shown(*rings: FloatArray, now_s: float, most: int = 999) -> list[dict[str, Any]]:
    return [dict(zip(ROW, row, strict=True)) for row in rows(rings, AHEAD_S, now_s, most)]


def test_rates_and_shares_are_of_what_was_counted_between_samples() -> None:
    own = ring()
    for i in range(3):
        figures = {"requests": 10.0 * i, "prompt_tokens": 5000.0 * i, "output_tokens": 250.0 * i, "running": 7.0,
                   "prefix_queries": 100.0 * i, "prefix_hits": 25.0 * i, "draft_tokens": 10.0 * i,
                   "accepted_tokens": 6.0 * i, "step_seconds": 2.0 * i, "timed_steps": 100.0 * i, "joules": 900.0 * i,
                   "power_w": 180.0}  # fmt: skip
        record(own, figures, [(3.0 * i, 4.0 * i), (0.0, 0.0)], 100.0 + EVERY_S * i)
    first, last = shown(own, now_s=111.0)
    assert (first["at_s"], last["at_s"]) == (AHEAD_S + 105, AHEAD_S + 110)
    assert (last["requests_per_s"], last["prompt_tokens_per_s"], last["output_tokens_per_s"]) == (2, 1000, 50)
    assert (last["prefix_hit_share"], last["accepted_share"], last["step_s"]) == (0.25, 0.6, 0.02)
    assert (last["running"], last["waiting"], last["power_w"], last["joules_per_good"]) == (7, None, 180, 300)
    assert last["attained"] == [0.75, None] and last["kv_used"] is None and last["refused_per_s"] is None


def test_counters_of_all_processes_add_up_and_figures_of_the_server_do_not() -> None:
    first, second = ring(), ring()
    for i in range(4):
        record(first, {"requests": 10.0 * i, "running": 7.0}, [(i, i), (0, 0)], 100.2 + EVERY_S * i)
        if i != 2:  # its sample came too late
            record(second, {"requests": 100.0 + 5.0 * i, "running": 7.0}, [(0, i), (0, 0)], 100.2 + EVERY_S * i)
    both = shown(first, second, ring(), now_s=116.0)
    assert [round(one["requests_per_s"] * EVERY_S) for one in both] == [15, 10, 20]
    assert both[-1]["running"] == 7 and both[-1]["attained"][0] == 0.5


def test_only_ten_minutes_are_shown_and_each_place_is_used_again() -> None:
    own = ring()
    for i in range(3 * SLOTS):
        record(own, {"requests": float(i)}, [(0, 0)] * 2, 50.0 + EVERY_S * i)
    last_s = 50.0 + EVERY_S * (3 * SLOTS - 1)
    found = shown(own, now_s=last_s)
    assert len(found) == SLOTS - 1 and len(rows([own], 0.0, last_s)) == SPAN_S / EVERY_S
    assert {one["requests_per_s"] for one in found} == {0.2}
    assert shown(own, now_s=last_s + 1e5) == [] and shown(ring(), now_s=1e3) == []


def test_a_snapshot_holds_the_longest_history_beside_the_longest_view() -> None:
    own, classes = ring(20), 20
    rng = np.random.default_rng(5)
    counters = np.zeros(len(load_history.COUNTERS))
    for i in range(SLOTS):
        counters += rng.uniform(1e5, 1e6, counters.size)
        figures = dict(zip(load_history.COUNTERS, counters.tolist(), strict=True))
        figures |= {name: float(rng.uniform(1e5, 1e6)) for name in load_history.WHOLE}
        figures |= {"step_seconds": i * 7.77, "timed_steps": i * 100.0, "joules": i * 1234.5}
        record(own, figures, [(i * 0.777, float(i))] * classes, 50.0 + EVERY_S * i)
    history: dict[str, Any] = {"columns": list(ROW), "rows": rows([own], 1.7e9, 50.0 + EVERY_S * (SLOTS - 1))}
    assert len(history["rows"]) == 120 and len(history["rows"][-1][-1]) == load_history.MOST_CLASSES
    kept = recent(history)
    assert kept["rows"] == history["rows"][-len(kept["rows"]) :] and len(kept["rows"]) > 80
    view = fitted({"rows": {f"0-{i}": ["x" * 400] * 3 for i in range(200)}})
    assert len(frame("snapshot", {**view, "history": kept})) <= MOST_BYTES
    usual: list[Any] = [
        2.31,
        0,
        1310,
        388,
        16,
        42,
        0.914,
        0.31,
        None,
        0.0213,
        0.97,
        612,
        41.2,
        [0.51, 0.52, 0.98, None],
    ]
    ordinary = {"columns": list(ROW), "rows": [[1_764_295_355.123, *usual]] * 120}
    assert recent(ordinary) == ordinary


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    for name, value in {"vllm:prompt_tokens": 300.0, "vllm:prefix_cache_queries": 40.0}.items():
        counter = Counter(name, "As vLLM has it", ["engine"], registry=found)
        for engine in ("0", "1"):
            counter.labels(engine).inc(value)
    Gauge("vllm:kv_cache_usage_perc", "As vLLM has it", ["engine"], registry=found).labels("0").set(0.5)
    requests = Counter("sloserve:requests", "As ours", ["class", "outcome"], registry=found)
    requests.labels("batch", "completed").inc(8)
    requests.labels("batch", "rejected").inc(2)
    for name, value in {"sloserve:goodput_requests": 3.0, "sloserve:slo_requests": 4.0}.items():
        Counter(name, "As ours", ["class"], registry=found).labels("batch").inc(value)
    return found


def page(rank: int) -> Any:
    return SimpleNamespace(
        rank=rank, alive=True, last_step_s=1.0, running=3, waiting=2, step_seconds=1.5, step_timed=50
    )


def test_a_sample_reads_the_counters_of_the_process_the_engines_and_the_gpus() -> None:
    clock, own, reports = (
        late(),
        ring(),
        [GpuFigures("GPU", busy=0.4, power_w=300.0, joules=1e6), GpuFigures("GPU", busy=0.6)],
    )
    sampler = LoadSampler(own, ["chat", "batch"], lambda: [page(0), page(1)], clock, lambda: reports, registry())
    sampler.sample()
    found = dict(zip((*load_history.COUNTERS, *load_history.WHOLE), own[own[:, 0] > 0.0][0, 1:].tolist(), strict=False))
    assert (found["requests"], found["refused"], found["prompt_tokens"], found["prefix_queries"]) == (8, 2, 600, 80)
    assert (found["running"], found["waiting"], found["step_seconds"], found["timed_steps"]) == (6, 4, 3, 100)
    assert found["kv_used"] == 0.5 and found["gpu_busy"] == 0.5
    assert np.isnan([found["draft_tokens"], found["power_w"], found["joules"]]).all(), "one GPU does not report them"
    assert own[own[:, 0] > 0.0][0, -4:].tolist() == [0, 0, 3, 4]
    assert [gpu["busy"] for gpu in sampler.gpus] == [0.4, 0.6]


def test_a_sample_without_engines_or_metrics_says_that_nothing_is_known() -> None:
    def no_pages() -> list[Any]:
        raise OSError("no folder")

    clock, own = late(), ring()
    LoadSampler(own, ["chat", "batch"], no_pages, clock, registry=CollectorRegistry()).sample()
    assert np.isnan(own[own[:, 0] > 0.0][0, 1:-4]).all()


def test_a_sampler_takes_a_sample_at_once_and_ends_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = late(), ring()
    sampler = LoadSampler(own, ["chat"], list, clock, registry=CollectorRegistry())
    waits: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        assert timeout is not None
        waits.append(timeout)
        clock.advance_to(clock.now_s() + timeout)
        return len(waits) == 4

    monkeypatch.setattr(sampler._stopped, "wait", wait)
    sampler._run()
    assert waits[0] == 0.0 and np.allclose(waits[1:], [5.05, 5.0, 5.0])
    assert np.count_nonzero(own[:, 0]) == 3


def test_a_sampler_that_fails_stops_quietly(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[GpuFigures]:
        raise RuntimeError("out of luck")

    LoadSampler(ring(), [], list, ManualClock(1.0), broken, CollectorRegistry())._run()
    assert "no further samples" in caplog.text
