"""The benchmark of predicted latencies: its accounts, and that the product's coverage holds on a small run."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.promises.coverage import in_flight_at_shocks, judged, predict, recorded
from benchmarks.promises.former import FormerPredictor
from benchmarks.promises.rival import Arrival, LastOutcomes, Product, QueueTimesService
from benchmarks.promises.shocks import LOADS, PARTS, RELIEF, RELIEVED, Recorded, requests
from sloserve.core.finished import Latency
from sloserve.core.slo import SLO
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT

TABLE = DEFAULT_ASSIGNMENT.table
COUNT = 3000


def test_windows_count_what_is_judged_and_what_took_longer() -> None:
    found, actual = np.full((5, 3, 3), np.nan), np.full((5, 3), np.nan)
    found[1:, 2] = (1.0, 2.0, 4.0)
    actual[:, 2] = (9.0, 0.5, 1.5, 3.0, 5.0)
    rows = judged(found, actual, window=2)
    assert [(row["figure"], row["level"]) for row in rows] == [("e2e", 0.5), ("e2e", 0.9), ("e2e", 0.99)]
    assert rows[0]["judged"] == [1, 2, 1] and [row["missed"] for row in rows] == [[0, 2, 1], [0, 1, 1], [0, 0, 1]]
    assert rows[1]["mean_s"] == 2.0 and rows[1]["over_median"] == 2.0
    assert rows[0]["pinball_s"] == pytest.approx((0.25 + 0.25 + 1.0 + 2.0) / 4)


@pytest.mark.slow
def test_loads_follow_the_parts() -> None:
    made, shocks = requests(20_000, 0, (40.0, 10.0))
    starts = [*shocks.starts_s, made[-1].arrival_s]
    relief_s = made[int(20_000 * (len(PARTS) - 1 + RELIEF) / len(PARTS))].arrival_s
    for part, capacity in enumerate((40.0, 40.0, 10.0, 10.0)):
        came = sum(starts[part] <= r.arrival_s < starts[part + 1] for r in made)
        assert came / (starts[part + 1] - starts[part]) == pytest.approx(LOADS[part] * capacity, rel=0.05)
    late = sum(r.arrival_s > relief_s for r in made) / (made[-1].arrival_s - relief_s)
    assert late == pytest.approx(RELIEVED * 10.0, rel=0.05)
    chunks = [r.task == "chunk" for r in made]
    assert sum(chunks[:8000]) == 0 and sum(chunks[8000:]) / 12_000 == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("rival", [Product, FormerPredictor, LastOutcomes, QueueTimesService])
def test_predictors_learn_from_the_same_events_and_forget_requests_that_ended(rival: type) -> None:
    one = rival(tuple(TABLE.names))
    slo = SLO(TABLE["batch"], TABLE["batch"].targets)
    for i in range(40):
        now_s = 10.0 * i
        told = one.arrives(Arrival(i, 1, slo, now_s, 100, 1000), now_s)
        one.starts(i, now_s + 0.1)
        one.ends(i, None if i % 10 == 9 else Latency(0.1, 0.02, 2.08), 100, now_s + 2.08)
    ttft, tpot, e2e = told
    assert ttft[0] == pytest.approx(0.1, rel=0.35) and e2e[0] == pytest.approx(2.08, rel=0.4)
    assert ttft == sorted(ttft) and e2e == sorted(e2e)
    assert np.isnan(tpot[0]) if rival is QueueTimesService else tpot[0] == pytest.approx(0.02, rel=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded("fcfs", 0, COUNT, tmp_path_factory.mktemp("runs"))[0]


@pytest.mark.slow
def test_replayed_predictions_are_those_of_the_engine_s_own_front_end(run: Recorded, tmp_path: Path) -> None:
    found, _ = predict(run, Product)
    assert np.array_equal(found, run.predicted_s, equal_nan=True)
    assert all(count > 0 for count in in_flight_at_shocks(run))
    run.save(tmp_path / "run.npz")
    again = Recorded.load(tmp_path / "run.npz")
    assert np.array_equal(again.event, run.event) and np.array_equal(again.latency_s, run.latency_s, equal_nan=True)


@pytest.mark.slow
def test_coverage_of_a_small_run_with_four_shocks(run: Recorded) -> None:
    """A part has 600 requests here, of which a fifth is in flight when the next shock comes."""
    kept, loss = {}, {}
    for predictor in (Product, FormerPredictor):
        for row in judged(predict(run, predictor)[0], run.latency_s):
            key = predictor, row["figure"], row["level"]
            kept[key], loss[key] = 1.0 - sum(row["missed"]) / sum(row["judged"]), row["pinball_s"]
    for figure in ("ttft", "e2e"):
        assert kept[Product, figure, 0.5] == pytest.approx(0.5, abs=0.03)
        assert kept[Product, figure, 0.9] == pytest.approx(0.9, abs=0.03)
        assert kept[Product, figure, 0.99] == pytest.approx(0.99, abs=0.02)
    # A shock makes a miss of each TPOT in flight, and 120 of 3,000 requests are 4 points.
    assert kept[Product, "tpot", 0.5] == pytest.approx(0.5, abs=0.08) and kept[Product, "tpot", 0.9] >= 0.78
    for _, figure, level in [key for key in loss if key[0] is Product]:
        assert loss[Product, figure, level] <= 1.1 * loss[FormerPredictor, figure, level], (figure, level)
    assert loss[Product, "e2e", 0.9] < 0.8 * loss[FormerPredictor, "e2e", 0.9]
