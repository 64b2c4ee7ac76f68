"""Tasks of agents on a fleet: the ways in which calls are placed, and that a small run ends."""

from collections.abc import Callable

import pytest

from benchmarks.fleet.task_affinity import FIGURES, KNOWN, NAMES, OFF, RATES, fleet, means, row_of
from benchmarks.policies.agent_tasks import KV_BLOCKS
from sloserve.fleet.planning.replayed_model import engine_settings


def test_engines_have_the_kv_cache_of_the_runs_on_one_engine() -> None:
    (model,) = fleet().models.values()
    (profile,) = model.profiles.values()
    assert engine_settings(model, profile, prefix_caching=True).kv_blocks == KV_BLOCKS


def test_differences_are_paired_by_seed() -> None:
    runs = [
        dict.fromkeys((*FIGURES, "unfinished"), 1.0)
        | {"name": name, "policy": policy, "seed": seed, "in_time": 0.5 + 0.1 * seed + 0.2 * (name != OFF)}
        for policy in RATES
        for name in NAMES
        for seed in (0, 1)
    ]
    rows = means(runs)
    assert len(rows) == len(RATES) * len(NAMES)
    for row in rows:
        assert row["less_off"] == pytest.approx(0.0 if row["name"] == OFF else 0.2)
        assert row["less_off_half_95"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_a_call_finds_its_prefix_with_affinity_and_all_tasks_end() -> None:
    off, on, known = (row_of(name, "stock", 0, 4) for name in (OFF, "affinity", KNOWN))
    assert off["unfinished"] == on["unfinished"] == known["unfinished"] == 0
    for one in (on, known):
        assert one["hit_rate"] > off["hit_rate"] and one["computed_over_needed"] < off["computed_over_needed"]


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("fleet.task_affinity", "--quick").splitlines()
    assert sum(any(f" {name}  " in line for name in NAMES) for line in lines) == len(RATES) * len(NAMES)
