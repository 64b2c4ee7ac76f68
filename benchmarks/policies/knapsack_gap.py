"""How near to the best selection do the priced and the greedy knapsack come, and what does each take?

Usage: python -m benchmarks.policies.knapsack_gap [--quick]

Random requests in the shape a scheduler sees them: gains of 0 to 1, 1 to 130 KV blocks each. ``limit`` is the batch
size in parts of as many as could fit at all (the lightest first): at 1 only the KV cache binds, below it the batch size
too. Quality is the gain of the pack over that of the exact one, of at most as many items. ``batches`` lets the kernel
choose among 8 batch sizes in which everybody's gain shrinks as the batch grows, against the best exact pack of them
all. Writes results/knapsack.json.gz; ``--quick`` writes nothing.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.arguments import is_quick
from benchmarks.publish import RESULTS, write_result
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.knapsack import PackRule, best_batch, pack_exact, pack_greedy, pack_priced

SEED = 0
SIZES = (50, 100, 200)
CAPACITIES = (500, 1000, 2000, 3700)
MOST_BLOCKS = 130
LIMITS = (1.0, 0.5, 0.25)
INSTANCES = 20
BATCHES = 8
BATCH_INSTANCES = 8
BATCH_REQUESTS = (200, 500, 1000, 2000)
REPEATS = 400

PACKS: dict[str, Callable[..., IntArray]] = {
    "priced": pack_priced,
    "greedy": pack_greedy,
    "greedy, stops": partial(pack_greedy, stop_at_misfit=True),
}
RULES = {"priced": PackRule.PRICED, "greedy": PackRule.GREEDY, "greedy, stops": PackRule.PAPER}


def requests(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
    """Gains and weights in blocks."""
    return rng.random(n), rng.integers(1, MOST_BLOCKS, n, endpoint=True)


def most_that_fit(weight: IntArray, capacity: int) -> int:
    """The paper's B_max."""
    return int(np.searchsorted(np.cumsum(np.sort(weight)), capacity, side="right"))


def gains_by_batch(rng: np.random.Generator, gain: FloatArray, most: int) -> tuple[IntArray, FloatArray]:
    """Batch sizes up to ``most``, and gains ``[BATCHES, n]``: a batch of that size is up to four times slower than one
    alone, and who reads slowly minds less.
    """
    sizes = np.unique(np.linspace(max(most / BATCHES, 1.0), most, BATCHES).astype(np.int64))
    speed = 4.0 / (1.0 + 3.0 * sizes / most)
    return sizes, gain * np.minimum(1.0, speed[:, None] * rng.uniform(0.25, 1.0, gain.size))


def timed(call: Callable[[], Any], spent_us: list[float]) -> Any:
    began = time.perf_counter()
    found = call()
    spent_us.append((time.perf_counter() - began) * 1e6)
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"us_median": float(np.median(values)), "us_p99": float(np.percentile(values, 99))}


def shares(values: list[float]) -> dict[str, float]:
    """values: gain of each pack in parts of the exact one's."""
    found = np.array(values)
    return {
        "mean": float(found.mean()),
        "p5": float(np.percentile(found, 5)),
        "worst": float(found.min()),
        "exact": float((found > 1.0 - 1e-9).mean()),
    }


def one_batch_size(rng: np.random.Generator, n: int, limit: float) -> dict[str, Any]:
    quality: dict[str, list[float]] = {name: [] for name in PACKS}
    spent: dict[str, list[float]] = {name: [] for name in (*PACKS, "exact")}
    for capacity in CAPACITIES:
        for _ in range(INSTANCES):
            gain, weight = requests(rng, n)
            seq, count = np.arange(n), max(round(limit * most_that_fit(weight, capacity)), 1)
            best = timed(lambda: pack_exact(gain, weight, capacity, count, at_most=True), spent["exact"])  # noqa: B023
            for name, pack in PACKS.items():
                pack(gain, weight, seq, capacity, count)  # not timed: the exact tables have emptied the caches
                chosen = timed(lambda: pack(gain, weight, seq, capacity, count), spent[name])  # noqa: B023
                quality[name].append(float(gain[chosen].sum() / gain[best].sum()))
    return {
        "requests": n,
        "limit": limit,
        "instances": len(CAPACITIES) * INSTANCES,
        "exact": spread(spent["exact"]),
        **{name: {**shares(quality[name]), **spread(spent[name])} for name in PACKS},
    }


def of_batch_sizes(rng: np.random.Generator, n: int) -> dict[str, Any]:
    quality: dict[str, list[float]] = {name: [] for name in RULES}
    for capacity in CAPACITIES:
        for _ in range(BATCH_INSTANCES):
            gain, weight = requests(rng, n)
            sizes, gains = gains_by_batch(rng, gain, most_that_fit(weight, capacity))
            packs = [
                pack_exact(g, weight, capacity, b, at_most=True) for g, b in zip(gains, sizes.tolist(), strict=True)
            ]
            best = max(float(g[pack].sum()) for g, pack in zip(gains, packs, strict=True))
            for name, rule in RULES.items():
                found = best_batch(gains, weight, np.arange(n), capacity, sizes, rule=rule)
                quality[name].append(found.gain / best)
    return {
        "requests": n,
        "instances": len(CAPACITIES) * BATCH_INSTANCES,
        **{name: shares(values) for name, values in quality.items()},
    }


def batch_times(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Times of :func:`best_batch`, all cells in turn, each time for other requests."""
    spent: dict[tuple[int, int], dict[str, list[float]]] = {
        (n, c): {name: [] for name in RULES} for n in BATCH_REQUESTS for c in CAPACITIES
    }
    for _ in range(REPEATS):
        for (n, capacity), by_rule in spent.items():
            gain, weight = requests(rng, n)
            sizes, gains = gains_by_batch(rng, gain, most_that_fit(weight, capacity))
            seq = np.arange(n)
            for name, rule in RULES.items():
                timed(lambda: best_batch(gains, weight, seq, capacity, sizes, rule=rule), by_rule[name])  # noqa: B023
    return [
        {"requests": n, "capacity": capacity, **{name: spread(values) for name, values in by_rule.items()}}
        for (n, capacity), by_rule in spent.items()
    ]


def measured() -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    return {
        "packs": [one_batch_size(rng, n, limit) for n in SIZES for limit in LIMITS],
        "batches": [of_batch_sizes(rng, n) for n in SIZES],
        "batch_times": batch_times(rng),
    }


def main() -> None:
    quick = is_quick(__doc__)
    if quick:
        globals().update(
            SIZES=(20,), CAPACITIES=(500,), INSTANCES=2, BATCH_INSTANCES=2, BATCH_REQUESTS=(50,), REPEATS=2
        )
    result = measured()
    for row in [row for rows in result.values() for row in rows]:
        print(json.dumps(row, sort_keys=True))
    if quick:
        return
    settings = {"seed": SEED, "capacities": CAPACITIES, "most_blocks": MOST_BLOCKS, "batch_sizes": BATCHES}
    write_result(RESULTS / "knapsack.json.gz", {"settings": settings, **result})


if __name__ == "__main__":
    main()
