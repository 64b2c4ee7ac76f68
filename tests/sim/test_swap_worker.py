"""When copies end in virtual time, what they take from steps, and which step tells of them."""

import math

import pytest

from sloserve.engine.virtual.virtual_swap_worker import VirtualSwapWorker
from sloserve.lso.plan import STAGING_BYTES
from sloserve.lso.swapping import STAGING_BYTES_PER_S
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, run_experiment
from sloserve.sim.experiment_options import SimulateOptions

BLOCK, RATE = 1_000_000, 1e9
COPY_S, PACK_S = BLOCK / RATE, BLOCK / STAGING_BYTES_PER_S


def test_a_load_waits_for_its_store_and_for_the_loads_before_it() -> None:
    worker = VirtualSwapWorker(BLOCK, RATE)
    told = worker.step([(0, [0, 1]), (0, [2])], [], 10.0)
    assert told.longer_s == pytest.approx(3 * PACK_S) and worker.next_s == math.inf
    # In the same step, while its store runs: block 2 is there after 0 and 1.
    worker.step([], [("b", [2]), ("a", [1])], 10.0)
    there_s = 10.0 + 2 * PACK_S + 3 * COPY_S
    assert worker.next_s == pytest.approx(there_s + COPY_S)
    assert not worker.step([], [], there_s).loaded
    told = worker.step([], [], there_s + 2 * COPY_S + 1e-6)
    assert told.loaded == ["b", "a"] and told.longer_s == pytest.approx(2 * PACK_S)
    assert told.back == (2 * BLOCK, pytest.approx(2 * COPY_S)) and worker.step([], [], 11.0).loaded == []
    assert (worker.bytes_out, worker.bytes_in, worker.loads["a"]) == (3 * BLOCK, 2 * BLOCK, 1)


def test_what_the_staging_memory_does_not_hold_waits_for_the_link() -> None:
    worker = VirtualSwapWorker(BLOCK, RATE)
    beyond = 50
    blocks = list(range(STAGING_BYTES // BLOCK + beyond))
    rest_s = (len(blocks) * BLOCK - STAGING_BYTES) / RATE
    assert worker.step([(0, blocks)], [], 0.0).longer_s == pytest.approx(rest_s, rel=1e-2)
    # It is still on its way: what comes now waits for all of it that is beyond.
    assert worker.step([(0, [0])], [], rest_s).longer_s == pytest.approx(COPY_S, rel=0.3)


def test_a_copy_beside_steps_makes_the_step_wait_that_is_told_to() -> None:
    worker = VirtualSwapWorker(BLOCK, RATE)
    blocks = list(range(STAGING_BYTES // BLOCK + 50))
    packed_s, rest_s = len(blocks) * PACK_S, (len(blocks) * BLOCK - STAGING_BYTES) / RATE
    assert worker.step([(1, blocks)], [], 0.0, 0).longer_s == pytest.approx(packed_s)
    assert worker.step([], [], rest_s / 2, 0).longer_s == 0.0
    assert worker.step([], [], rest_s / 2, 1).longer_s == pytest.approx(rest_s / 2, rel=2e-2)
    assert worker.step([], [], rest_s / 2, 1).longer_s == 0.0
    # A copy that the very step waits for, and one beside it that none ever waits for.
    assert worker.step([(2, [0])], [], 10.0, 2).longer_s == pytest.approx(PACK_S)
    assert worker.step([(3, blocks)], [], 20.0, 2).longer_s == pytest.approx(packed_s)
    assert worker.step([], [], 30.0).longer_s == 0.0


def test_a_copy_beside_steps_that_begins_without_a_step_makes_a_later_one_wait() -> None:
    worker = VirtualSwapWorker(BLOCK, RATE)
    blocks = list(range(STAGING_BYTES // BLOCK + 50))
    rest_s = (len(blocks) * BLOCK - STAGING_BYTES) / RATE
    worker.store([(1, blocks), (0, [0])], 0.0)
    assert worker.step([], [], rest_s / 2, 0).longer_s == 0.0
    assert worker.step([], [], rest_s / 2, 1).longer_s == pytest.approx(rest_s / 2, rel=2e-2)


@pytest.mark.slow
def test_runs_with_swap_space_say_what_they_moved_and_stock_has_none() -> None:
    experiment = build_experiment(SimulateOptions(
        workload="reading-speed", profile="a100-opt-13b", policy="stock,fcfs,fcfs@swap_space_gib=0:max_num_seqs=64",
        rps="9", seeds=1, max_requests=60, kv_blocks=300, engine=MODEL, swap_space_gib=8.0, swapping="always",
    ))  # fmt: skip
    stock, swapping, without = (run.log for run in run_experiment(experiment))
    assert "swap_bytes_out" not in stock.counters and "swap_bytes_out" not in without.counters
    assert sum(r.recomputed_tokens for r in stock.requests) > 0
    assert sum(r.recomputed_tokens for r in swapping.requests) == 0
    assert sum(r.num_swaps for r in swapping.requests) == swapping.counters["swap_loads"] > 0
    assert swapping.counters["swap_bytes_in"] == swapping.counters["swap_bytes_out"]
    assert 0 < swapping.counters["swap_peak_bytes"] <= 8 * 2**30
