"""Up to which load does an engine keep TPOT targets with a fixed number of drafts, and with drafts by slack?

Usage: python -m benchmarks.policies.draft_loads [--quick] [--workers 1]

The crowd of :mod:`benchmarks.policies.drafts` (many decode at once, half of the requests have a TPOT target of 12 ms)
at a ladder of rates: stock and `auto` with 1, 3 and 5 draft tokens a step, and `auto:drafts=slack` and
`auto:drafts=load` with up to as many. Three seeds; each gives all engines the same requests, and drafts that are
accepted in the same places. The load that is kept is the rate at which the share of requests that keep their TPOT
target falls below 95 % (between two rates of the ladder: on the line between their shares), in multiples of what stock
carries with 3 drafts of these 400 requests. That is less than its capacity: nearly all of them run at once. vLLM's own
``num_speculative_tokens_per_batch_size`` is not simulated; `auto:drafts=load` is its like.

Writes results/draft_loads.json.gz.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.drafts import PROFILE, SEEDS, DraftCell, experiment
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.runlog import RequestLog
from sloserve.sim.experiment import Experiment, Point, measured_points, run_experiment

ACCEPTANCES, DRAFTS = (0.6, 0.75), (1, 3, 5)
LADDER = (0.8, 1.0, 1.2, 1.4, 1.6)
KEPT = 0.95
BY_ITSELF = ("auto:drafts=slack", "auto:drafts=load")
WORKLOAD = "crowd"


class Engine(NamedTuple):
    """A policy, and the most draft tokens of a step."""

    policy: str
    drafts: int

    @property
    def text(self) -> str:
        return f"{self.policy}, {'up to ' if self.policy in BY_ITSELF else ''}{self.drafts}"


POLICIES = ("stock", "auto", *BY_ITSELF)


def keeps_tpot(log: RequestLog) -> bool | None:
    """Return whether a request kept its TPOT target; ``None`` for one without a target."""
    target_s, times_s = log.request.slo.targets.tpot_s, log.token_times_s
    if target_s is None:
        return None
    return bool(times_s.size and (times_s[-1] - times_s[0]) <= target_s * max(times_s.size - 1, 1))


def run_seed(acceptance: float, seed: int, ladder: Sequence[float], requests: int) -> dict[str, dict[float, Any]]:
    """Return, by engine and load, the share that keeps its TPOT, the share in time, and tokens per second."""
    found: dict[str, dict[float, Any]] = defaultdict(dict)
    with TemporaryDirectory() as folder:

        def built(drafts: int) -> Experiment:
            return experiment(DraftCell(WORKLOAD, acceptance, drafts), seed, (1.0,), requests, Path(folder))

        (base,) = measured_points(built(3))
        points = [Point(seed, base.rps * load, load) for load in ladder]
        for drafts in DRAFTS:
            for run in run_experiment(replace(built(drafts), policies=POLICIES), points=points):
                kept = [kept for kept in map(keeps_tpot, run.log.requests) if kept is not None]
                record = run.record()
                figures = float(np.mean(kept)), float(record["slo_attainment"]), float(record["output_throughput"])
                found[Engine(run.policy, drafts).text][float(run.point.load or 0.0)] = figures
    return dict(found)


def load_kept(shares: Sequence[float], ladder: Sequence[float]) -> float:
    """Return the load at which the share first falls below :data:`KEPT`: the last of the ladder if it does nowhere."""
    for i, share in enumerate(shares):
        if share < KEPT:
            if i == 0:
                return 0.0
            above = shares[i - 1]
            return float(ladder[i - 1] + (ladder[i] - ladder[i - 1]) * (above - KEPT) / (above - share))
    return float(ladder[-1])


def rows_of(acceptance: float, of_seeds: Sequence[dict[str, dict[float, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each engine: means over seeds at each load, and the load that is kept by each seed."""
    rows = []
    for engine in of_seeds[0]:
        ladder = sorted(of_seeds[0][engine])
        of_loads = np.array([[found[engine][load] for load in ladder] for found in of_seeds])
        means = of_loads.mean(axis=0)
        row: dict[str, Any] = {"acceptance": acceptance, "engine": engine, "loads": ladder}
        names = ("keeps_tpot", "slo_attainment", "output_throughput")
        row |= {name: [round(float(x), 4) for x in means[:, i]] for i, name in enumerate(names)}
        row["load_kept"] = round(load_kept(means[:, 0].tolist(), ladder), 3)
        row["load_kept_by_seed"] = [round(load_kept(one[:, 0].tolist(), ladder), 3) for one in of_loads]
        rows.append(row)
    return rows


def over_best_fixed(rows: Sequence[dict[str, Any]], fixed: str) -> dict[str, float]:
    """Return the loads that drafts by slack keep, over that of the policy ``fixed`` with its best number of drafts."""
    kept = {row["engine"]: row["load_kept"] for row in rows}
    best = max((name for name in kept if name.startswith(f"{fixed}, ")), key=lambda name: kept[name])
    slack = [name for name in kept if name.startswith(BY_ITSELF[0])]
    return {f"{name} / {best}": round(kept[name] / kept[best], 3) for name in slack if kept[best]}


def main() -> None:
    parser = parser_for(
        __doc__, workers=1, requests=400, seeds=len(SEEDS), out=RESULTS / "draft_loads.json.gz", quick=False
    )
    given = parser.parse_args()
    seeds, ladder, acceptances = SEEDS[: given.seeds], LADDER, ACCEPTANCES
    if given.quick:
        seeds, ladder, acceptances = SEEDS[:1], LADDER[1:4:2], ACCEPTANCES[1:]
    requests = 30 if given.quick else given.requests
    rows: list[dict[str, Any]] = []
    over: dict[str, Any] = {}
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        jobs = [
            (
                acceptance,
                pool.map(run_seed, *zip(*((acceptance, seed, ladder, requests) for seed in seeds), strict=True)),
            )
            for acceptance in acceptances
        ]
        for acceptance, results in jobs:
            own = rows_of(acceptance, list(results))
            rows += own
            over[str(acceptance)] = over_best_fixed(own, "stock") | over_best_fixed(own, "auto")
            shown = [["engine, drafts", *map(str, ladder), "load kept", "by seed"]]
            for row in own:
                shares = [f"{100 * x:.1f}" for x in row["keeps_tpot"]]
                shown.append([row["engine"], *shares, str(row["load_kept"]), str(row["load_kept_by_seed"])])
            print(
                f"acceptance {acceptance}: % that keep their TPOT target by load", aligned(shown), sep="\n", flush=True
            )
            print("load kept, drafts by slack over the best fixed number:", over[str(acceptance)], flush=True)
            if not given.quick:
                of_all = {"profile": PROFILE, "seeds": seeds, "requests": requests}
                write_result(given.out, {**of_all, "rows": rows, "over": over})


if __name__ == "__main__":
    main()
