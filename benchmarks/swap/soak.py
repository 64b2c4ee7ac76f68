"""Does swapping lose a block, of the GPU's or of the host's, however requests end?

Usage: python -m benchmarks.swap.soak [--requests 500] [--seed 0] [--out benchmarks/results/swap-soak]

Runs of other seeds in the folder's runs.csv.gz stay; four of them are 2,000 requests.

A real CPU engine of builtin:tiny, two steps deep, under a plan that preempts, pauses and limits at random. Two fifths
of the requests are aborted, in whatever state they are in when their step has come. Loads take three steps, so that
some are aborted meanwhile; every 41st copy fails; the host pool is too small for all. Requests that are not aborted are
answered what stock vLLM answers. Time is virtual, so a run is the same each time.

Checked at the end: each request ended once, and every block of the GPU and of the host pool is free.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, read_runs, write_runs, write_table
from sloserve.core.clock import ManualClock
from tests.equality import harness
from tests.equality.copiers import FailingCopier, LateCopier, copying_by
from tests.equality.engine import Engine, EngineConfig, started
from tests.equality.workloads import Job

HOST_BLOCKS = 24
CONFIG = EngineConfig(async_scheduling=True, prefix_caching=True, host_blocks=HOST_BLOCKS)
CHAOS = {"preempt": 0.1, "pause": 0.1, "limit": 0.1, "illegal": 0.02}
STATES = ("new", "waiting", "preempted", "prefilling", "decoding", "paused")


def jobs(requests: int, seed: int) -> list[Job]:
    """Two arrive every nine steps, about what the engine serves."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(requests):
        prompt = "".join(map(chr, rng.integers(97, 123, int(rng.integers(4, 120)))))
        params = {"max_tokens": int(rng.integers(8, 60)), "temperature": 0.0, "ignore_eos": True}
        aborted = str(rng.choice(STATES)) if rng.random() < 0.4 else None
        found.append(Job(f"soak-{i}", prompt, 9 * (i // 2), params, abort_in=aborted))
    return found


def soak(engine: Engine, requests: int, seed: int) -> dict[str, Any]:
    """Figures of a run in which nothing was lost. Raises: AssertionError."""
    wanted, adapters = jobs(requests, seed), Path(tempfile.gettempdir())
    engine.use_stock()
    expected = harness.serve(engine, wanted, ManualClock(), adapters).outputs
    clock = ManualClock()
    engine.use_sloserve(
        {"policy": "chaos", "policy_options": CHAOS, "swapping": "always", "seed": seed, "plan_share": 1.0}, clock=clock
    )
    with copying_by(LateCopier, 3), copying_by(FailingCopier, 41):
        served = harness.serve(engine, wanted, clock, adapters)
    store, counters = engine.scheduler._swapping._connector.store, engine.scheduler.slo_counters
    assert store.free_blocks == store.host_blocks, "host blocks were lost"
    assert not engine.scheduler._swapping.loads.are_copying() and not store.loads
    assert counters["internal_errors"] == 0
    differ = [name for name, tokens in served.outputs.items() if expected.get(name, tokens) != tokens]
    assert not differ, f"other outputs than stock's: {differ}"
    states = Counter(state for seen in served.aborted.values() for state in seen.split(","))
    return {
        "policy": "chaos",
        "seed": seed,
        "requests": requests,
        "steps": served.steps,
        "preemptions": served.preemptions,
        "host_blocks_used_at_the_end": store.used_blocks,
        **{name: counters[name] for name in sorted(counters) if name.startswith("swap")},
        **{f"aborted_{state}": states[state] for state in STATES},
    }


def main() -> None:
    args = parser_for(__doc__, requests=500, seed=0, out=RESULTS / "swap-soak").parse_args()
    harness.MAX_STEPS = 20 * args.requests
    with started(CONFIG) as engine:
        row = soak(engine, args.requests, args.seed)
    runs = args.out / RUNS
    rows = [other for other in read_runs(runs) if other["seed"] != args.seed]
    write_runs(runs, rows := sorted([*rows, row], key=lambda one: int(one["seed"])))
    write_table(args.out, table(rows), shown=True)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Each figure of each seed, and their sum."""
    names = [name for name in rows[0] if name not in ("policy", "seed")]
    lines = [f"{'seed':28}" + "".join(f"{row['seed']:>9}" for row in rows) + f"{'sum':>10}"]
    for name in names:
        values = [int(row[name] or 0) for row in rows]
        lines.append(f"{name:28}" + "".join(f"{value:>9}" for value in values) + f"{sum(values):>10}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
