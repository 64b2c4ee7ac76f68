"""The benchmark that tells policies of flat counts tells them nothing else, and only while it runs."""

from benchmarks.simulator.kv_layouts import experiment_of, flat_counts, pooled
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.model.planned import PlannedScheduler


def test_flat_counts_are_told_to_policies_alone_and_end() -> None:
    experiment = experiment_of("h100-gpt-oss-20b", {"workload": "alpaca-poisson"}, 1, 10)
    engine = ModelEngine(experiment.engine, experiment.profile, {"sloserve": {"policy": "auto"}})
    scheduler = engine.scheduler
    assert isinstance(scheduler, PlannedScheduler)
    with flat_counts():
        told = scheduler._port.facts(0, ())
        assert told.layout.is_full and told.layout.block_size == 16
        assert not scheduler.layout.is_full
    assert scheduler._port.facts(0, ()).layout == scheduler.layout == experiment.engine.layout


def test_runs_are_pooled_by_profile_and_variant() -> None:
    runs = {name: [{"slo_attainment": value}] for name, value in (("stock", 0.1), ("flat", 0.2), ("layout", 0.3))}
    cells = [{"profile": name, "runs": runs} for name in ("a", "b", "a")]
    assert {name: len(found) for name, found in pooled(cells, "a").items()} == {"stock": 2, "flat": 2, "layout": 2}
