"""The comparison of `auto` of today with its published runs."""

import pytest

from benchmarks.policies.auto_again import Row, compared, published, summary


def figures(attainment: str, tokens: float = 100.0) -> Row:
    names = ("slo_attainment", "normalized_latency_ms", "output_throughput", "preemptions_per_request")
    return dict(zip(names, (attainment, "20", str(tokens), "0"), strict=True))


def test_cells_are_paired_by_seed_and_losses_beyond_the_interval_are_named() -> None:
    now = {(0, seed, "auto"): figures(f"{0.80 + 0.01 * seed}", 90.0) for seed in range(3)}
    now |= {(1, seed, "auto"): figures("") for seed in range(3)}
    now |= {(cell, seed, "stock"): figures("0.5") for cell in (0, 1) for seed in range(3)}
    before = {key: figures(f"{0.85 + 0.01 * key[1]}") if key[0] == 0 else row for key, row in now.items()}
    before |= {key: figures("0.5") for key in now if key[2] == "stock"}
    lost, untargeted = rows = compared(now, before)
    assert lost["points"] == pytest.approx(-5.0) and lost["half_95"] == pytest.approx(0.0, abs=1e-9)
    assert untargeted["points"] is None and lost["tokens_over_stock"] == pytest.approx(0.9)
    found = summary(rows, now, before)
    assert found["cells_with_targets"] == 1 and found["cells_below_0.97_of_stock"] == [0]
    assert found["stock_differs_by_points"] == 0.0


def test_every_published_cell_has_runs_of_auto_and_stock() -> None:
    runs = published()
    assert {key[0] for key in runs} == set(range(48)) and {key[2] for key in runs} == {"auto", "stock"}
