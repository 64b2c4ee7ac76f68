"""What does the simulated-annealing paper's rule of acceptance do as it is printed? Algorithm 1 beside our annealing.

Line 36 accepts a worse plan if ``exp(-(f_new - f) / T) < rand(0, 1)``. The exponential of a worse plan is above 1, so
no worse plan is ever accepted. With the sign turned round nearly every worse plan is, since T falls from 500 to 20
and G is below 1. Both are run with the paper's moves, starts and 100 moves at each temperature (``k`` is counted anew
at each, without which the loop as printed does not end), and judged by the paper's own latency model, as in sa_paper.

    python -m benchmarks.policies.sa_printed [--quick] [--out FILE]
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.policies.sa_paper import V100, achieved, in_turn, view
from benchmarks.publish import RESULTS, write_result
from sloserve.core.kernels.anneal import BatchPlan, BatchRequests, Cooling, anneal
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.sa.times import bilinear_of
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.workloads.seeding import stream

SIZES = ((10, 1), (20, 2), (40, 4))
"""Requests at once, and most of them in a batch."""
SEEDS = tuple(range(20))
T0, T_THRES, TAU, ITER = 500.0, 20.0, 0.95, 100
"""The paper's defaults (Sec. 5.1)."""
RULES = ("as printed", "sign turned round")
Batches = list[list[int]]


class Burst:
    """Requests at once as plain numbers: scores a plan by the paper's model, Eq. 2 to 12."""

    def __init__(self, requests: BatchRequests) -> None:
        self.columns = [column.tolist() for column in np.nan_to_num(requests.columns, nan=math.inf)]

    def execution_s(self, request: int, size: int) -> tuple[float, float]:
        """Return the seconds of prefill and decoding of a request in a batch of this size."""
        base, slope, decode_base, decode_slope = (self.columns[row][request] for row in range(4))
        return base + slope * size, decode_base + decode_slope * size

    def score(self, batches: Batches) -> tuple[int, float]:
        """Return how many requests meet their targets, and the sum of all latencies in seconds."""
        ttft, limit, e2e = self.columns[-3:]
        met, latency_s, wait_s = 0, 0.0, 0.0
        for batch in batches:
            longest_s = 0.0
            for i in batch:
                prefill_s, decode_s = self.execution_s(i, len(batch))
                met += (
                    wait_s + prefill_s <= ttft[i] and decode_s <= limit[i] and wait_s + prefill_s + decode_s <= e2e[i]
                )
                latency_s += wait_s + prefill_s + decode_s
                longest_s = max(longest_s, prefill_s + decode_s)
            wait_s += longest_s
        return met, latency_s


def as_printed(burst: Burst, n: int, limit: int, rng: np.random.Generator, rule: str) -> tuple[Batches, float]:
    """Return the plan with which Algorithm 1 ends, and the share of the worse plans that it accepted."""

    def full(order: Sequence[int]) -> Batches:
        return [list(order[at : at + limit]) for at in range(0, n, limit)]

    def goodput(batches: Batches) -> float:
        met, latency_s = burst.score(batches)
        return met / latency_s

    plan = full(sorted(range(n), key=lambda i: sum(burst.execution_s(i, limit))))
    value, worse, accepted = goodput(plan), 0, 0
    if burst.score(plan)[0] == n:
        return plan, 0.0
    if value < goodput(full(range(n))):
        plan = full(range(n))
        value = goodput(plan)
    temperature = T0
    while temperature >= T_THRES:
        for _ in range(ITER):
            trial = moved(plan, limit, rng)
            found = goodput(trial)
            if found > value:
                plan, value = trial, found
                continue
            worse += found < value
            drawn = rng.random()
            if rule == RULES[0]:
                accepts = math.exp(-(found - value) / temperature) < drawn
            else:
                accepts = math.exp((found - value) / temperature) > drawn
            if accepts:
                accepted += found < value
                plan, value = trial, found
        temperature *= TAU
    return plan, accepted / max(worse, 1)


def moved(plan: Batches, limit: int, rng: np.random.Generator) -> Batches:
    """Return the plan after one of the paper's three moves; the plan itself where the drawn move is impossible."""
    trial = [list(batch) for batch in plan]
    kind, at = int(rng.integers(3)), int(rng.integers(len(trial)))
    if kind == 2:
        places = [(k, j) for k, batch in enumerate(trial) for j in range(len(batch))]
        (k, i), (m, j) = (places[int(p)] for p in rng.choice(len(places), 2, replace=False))
        trial[k][i], trial[m][j] = trial[m][j], trial[k][i]
        return trial
    to = at - 1 if kind == 0 else at + 1
    if 0 <= to < len(trial) and len(trial[to]) < limit:
        trial[to].append(trial[at].pop(int(rng.integers(len(trial[at])))))
    return [batch for batch in trial if batch]


def measured(sizes: Sequence[tuple[int, int]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return G of each rule in multiples of first come, first served, with its 95 % interval over seeds."""
    fit, rows = bilinear_of(load_profile(V100)), []
    for n, limit in sizes:
        ratios: dict[str, list[float]] = {rule: [] for rule in (*RULES, "ours")}
        shares: dict[str, list[float]] = {rule: [] for rule in RULES}
        for seed in seeds:
            truth = view(n, seed, fit)
            base = np.divide(*achieved(truth, in_turn(n, limit)))
            ours = achieved(truth, anneal(truth, limit, cooling=Cooling(moves=44), seed=seed))
            ratios["ours"].append(float(np.divide(*ours) / base))
            for rule in RULES:
                batches, share = as_printed(Burst(truth), n, limit, stream(seed, f"sa-printed/{n}"), rule)
                order = np.array([i for batch in batches for i in batch])
                plan = BatchPlan(order, np.array([len(batch) for batch in batches]), 0, 0.0)
                ratios[rule].append(float(np.divide(*achieved(truth, plan)) / base))
                shares[rule].append(share)
        for rule, values in ratios.items():
            found = mean_interval(values)
            assert found is not None
            row = {"requests": n, "max_batch": limit, "rule": rule, "goodput": round(found.value, 4)}
            row |= {"low": found.low and round(found.low, 4), "high": found.high and round(found.high, 4)}
            if rule in shares:
                row["worse_accepted"] = round(float(np.mean(shares[rule])), 4)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "sa_printed.json.gz")
    rows = measured(SIZES[:1], SEEDS[:1]) if quick else measured(SIZES, SEEDS)
    if out is not None:
        write_result(out, {"seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
