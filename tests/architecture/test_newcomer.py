"""What a newcomer adds needs one file and one registration: a policy, a length estimator, a workload, a metric.

A policy of another distribution is installed and served in ``tests/scheduler/test_third_party_policy.py``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics import class_metrics, engine_figures, engine_metrics, engine_page
from sloserve.engine.metrics.class_metrics import Count
from sloserve.engine.metrics.collectors import FrontEndMetrics
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.estimator.length import choice
from sloserve.estimator.length.remaining import Estimator, KnownRequests, LengthForm
from sloserve.lso.lengths import Lengths
from sloserve.scheduler import registry
from sloserve.scheduler.describe import describe_policy
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from sloserve.scheduler.registry import make_policy, policy_names
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT
from sloserve.sim.workloads.trace import make_trace
from sloserve.sim.workloads.workload_registry import WORKLOADS, Workload
from sloserve.sim.workloads_command import workloads
from tests.conformance import conserving_forms, golden_forms


class Newest(Policy):
    """Serves who came last. And nobody else."""

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        most: int = 1
        """so many at once"""

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan(waiting=snapshot.waiting[::-1][: self.settings.most])


def test_a_policy_is_one_entry_point(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., Snapshot]) -> None:
    found = registry._entry_points() | {"newest": EntryPoint("newest", f"{__name__}:Newest", registry.GROUP)}
    monkeypatch.setattr(registry, "_entry_points", lambda: found)
    assert "newest" in policy_names()
    plan = make_policy("newest", {"most": "2"}).plan(snapshot([{}, {}, {}]), 0.0)
    assert plan.waiting is not None and plan.waiting.tolist() == [2, 1]
    described = describe_policy("newest")
    assert described.summary == "Serves who came last."
    own = [(o.name, o.default, o.meaning) for o in described.options if o.name != "step_budget"]  # which all have
    assert own == [("most", 1, "so many at once")]
    # It is put to the tests of all policies at once.
    assert ("newest", "newest") in golden_forms() and "newest" in conserving_forms()


class Always:
    """Lengths that are all the same."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def mean_after(self, so_far: IntArray) -> FloatArray:
        return np.maximum(self._tokens - so_far, 1.0)

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        return (so_far + tokens < self._tokens).astype(np.float64)

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        return self.mean_after(so_far)


class AsTheLast(Estimator):
    """Every reply is as long as the last one that ended."""

    def __init__(self) -> None:
        self._last = 100

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        self._last = output_tokens
        return True

    def form(self, requests: KnownRequests) -> LengthForm:
        return Always(self._last)


def test_a_length_estimator_is_one_row(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., Snapshot]) -> None:
    with pytest.raises(ConfigError, match="'as-the-last' is not one of"):
        make_policy("sjf", {"length": "as-the-last"})
    monkeypatch.setitem(choice.CLASS_PREDICTORS, "as-the-last", AsTheLast)
    assert "as-the-last" in choice.length_names()
    at = snapshot([{}, {"output_tokens": 100}])
    lengths = Lengths("as-the-last", seed=0)
    lengths.learn(0, 400)
    np.testing.assert_allclose(lengths.left(at.rows, at.waiting), [400, 300], atol=16.0)
    plan = make_policy("sjf", {"length": "as-the-last"}).plan(at, 0.0)
    assert plan.waiting is not None and plan.waiting.tolist() == [1, 0]  # the one with less left goes first


def test_a_workload_is_one_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def one_a_second(n: int, seed: int) -> Any:
        return make_trace("even", "generator even", np.arange(n), np.full(n, 8), np.full(n, 4), ["chat"] * n)

    monkeypatch.setitem(
        WORKLOADS, "even", Workload("even", "one request a second", one_a_second, 1.0, DEFAULT_ASSIGNMENT)
    )
    workloads()
    shown = capsys.readouterr().out
    assert "workload    even " in shown and "one request a second" in shown
    experiment = build_experiment(SimulateOptions(workload="even", policy="edf", max_requests=3))
    arrivals = [r.arrival_s for r in experiment.workload.requests(3, seed=0, rate_per_s=2.0)]
    assert arrivals == [0.0, 0.5, 1.0]


def test_a_counter_of_requests_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Count("KnownRequests with more than 100 tokens", lambda served: served.output_tokens > 100)
    monkeypatch.setitem(class_metrics.COUNTS, "long_replies", long)
    names, scraped = DEFAULT_CLASSES.names, CollectorRegistry(auto_describe=True)
    clock = ManualClock()
    metrics = FrontEndMetrics(names, (), Boards(Board(len(names), 5), clock), clock, list, registry=scraped)
    for tokens in (100, 101):
        metrics.record(ServedRequest(DEFAULT_CLASSES.slo("batch", Targets()), Outcome.COMPLETED, output_tokens=tokens))
    shown = [scraped.get_sample_value("sloserve:long_replies_total", {"class": name}) for name in ("batch", "priority")]
    assert shown == [1.0, 0.0]


def test_a_figure_of_the_engine_is_one_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    field = '    warm: float = field(metadata=gauge("warm_requests", "Requests whose KV is warm"))\n'
    anchor = "    steps: float\n"
    # The modules as they would be with one more line in one of them.
    fresh = {module.__name__: ModuleType(module.__name__) for module in (engine_figures, engine_page, engine_metrics)}
    for old in (engine_figures, engine_page, engine_metrics):
        source = Path(str(old.__file__)).read_text()
        monkeypatch.setitem(sys.modules, old.__name__, fresh[old.__name__])
        edited = source.replace(anchor, field + anchor) if old is engine_figures else source
        exec(compile(edited, str(old.__file__), "exec"), fresh[old.__name__].__dict__)
    page_of, metrics_of = fresh[engine_page.__name__], fresh[engine_metrics.__name__]
    page = page_of.PageWriter(("batch",), 0, tmp_path)
    page.values[page_of.Layout.at["warm"]] = 7
    scraped = CollectorRegistry(auto_describe=True)
    scraped.register(metrics_of.PageCollector(lambda: [each.snapshot() for each in page_of.find_pages(tmp_path)]))
    assert scraped.get_sample_value("sloserve:warm_requests", {"engine": "0"}) == 7.0
    page.close()
