"""Does any output change, or any token get computed twice, where preempted requests keep their KV in host memory?

Every policy with every means it has, on real CPU engines of the tiny model: synchronous and two steps deep, with a
prefix cache and without. 200 requests of all kinds (free text, n = 2, structured output) on eight slots and 16 KV
blocks, with room on the host for all. Stock vLLM's outputs, without swapping, are the measure; it is the first row of
each engine.

One engine, or some policies, can be run at a time: other runs in the folder's runs.csv.gz stay.

    python -m benchmarks.swap.equality [--engine async-cache] [--part 1/2] [--out benchmarks/results/swap-equality]
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, aligned, read_runs, write_runs, write_table
from sloserve.core.clock import ManualClock
from sloserve.estimator.planning_cost import constant_cost
from tests.equality.engine import Engine, EngineConfig, started
from tests.equality.harness import STEP_S, Served, serve
from tests.equality.subjects import SUBJECTS, Subject
from tests.equality.workloads import WORKLOADS

HOST_BLOCKS = 1024
ENGINES = {
    str(config).removesuffix("-swap"): config
    for config in (
        EngineConfig(async_scheduling=two_deep, prefix_caching=cache, host_blocks=HOST_BLOCKS)
        for two_deep in (True, False)
        for cache in (True, False)
    )
}
COLUMNS = ("steps", "paused", "preempted", "swapped_out", "swapped_in", "computed", "twice", "of_requests", "causes")


def run(name: str, config: EngineConfig, subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Stock, then every one of ``subjects``, on one engine."""
    with started(config) as engine, tempfile.TemporaryDirectory() as folder:
        engine.use_stock()
        stock = serve(engine, WORKLOADS["many"](), ManualClock(), Path(folder))
        rows = [row(f"{name} stock", engine, stock, stock)]
        for subject in subjects:
            served = swapped(engine, subject, Path(folder))
            rows.append(row(f"{name} {subject.name}", engine, served, stock))
            print(rows[-1], flush=True)
    return rows


def swapped(engine: Engine, subject: Subject, folder: Path) -> Served:
    clock = ManualClock()
    cost_s = (subject.plan_every - 0.5) * STEP_S if subject.plan_every > 1 else 0.0
    section = {**subject.swapping().section, "plan_share": 1.0}
    engine.use_sloserve(section, clock=clock, planning_costs=constant_cost(cost_s * 1e6))
    return serve(engine, WORKLOADS["many"](), clock, folder, token_s=subject.token_s)


def row(name: str, engine: Engine, served: Served, stock: Served) -> dict[str, Any]:
    counters = getattr(engine.scheduler, "slo_counters", {})
    causes = {k: n for k, n in sorted(counters.items()) if k.startswith(("swap_refused", "swap_dropped", "swap_fail"))}
    return {
        "policy": name,
        "differ": sum(served.outputs[i] != stock.outputs[i] for i in stock.outputs),
        "steps": served.steps,
        "paused": served.paused_steps,
        "preempted": served.preemptions,
        "swapped_out": counters.get("swap_stores", 0),
        "swapped_in": counters.get("swap_loads", 0),
        "computed": served.computed_tokens,
        "twice": sum(served.computed_twice.values()),
        "of_requests": len(served.computed_twice),
        "causes": sum(n for k, n in causes.items() if k not in ("swap_dropped_ended", "swap_dropped_found_elsewhere")),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """One line a run."""
    head = ["engine and policy", "outputs differ", *(name.replace("_", " ") for name in COLUMNS)]
    rows = [[str(one["policy"]), f"{one['differ']:.0f}", *(f"{one[name]:,.0f}" for name in COLUMNS)] for one in runs]
    swaps = sum(one["swapped_in"] for one in runs)
    return (
        "200 requests a run; stock does not swap. paused: request-steps. computed: tokens; twice: those that had been\n"
        "computed before for the same request; causes: states refused, given up for others, or failed.\n"
        f"{len(runs)} runs, {swaps:,.0f} loads, {sum(one['differ'] for one in runs):.0f} outputs differ.\n\n"
        + aligned([head, *rows])
    )


def main() -> None:
    parser = parser_for(__doc__, out=RESULTS / "swap-equality")
    parser.add_argument("--engine", choices=ENGINES, help="one of the engines; all are the default")
    parser.add_argument("--part", default="1/1", help="which part of the policies, of how many")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    path = given.out / RUNS
    runs = {str(one["policy"]): dict(one) for one in read_runs(path)}
    order = [f"{engine} {name}" for engine in ENGINES for name in ("stock", *(one.name for one in SUBJECTS))]
    for name in [given.engine] if given.engine else ENGINES:
        runs |= {one["policy"]: one for one in run(name, ENGINES[name], SUBJECTS[part - 1 :: parts])}
        found = [runs[name] for name in order if name in runs]
        write_runs(path, found)
        write_table(given.out, table(found))


if __name__ == "__main__":
    main()
