"""How much could be gained at all? Above every policy an upper bound, below it what a plan reaches that knows all.

Each cell of ceiling_cells.csv is a window of at most 150 requests, of the earlier half of its trace (or draws that
later halves do not have), on the engine model. Its trace is looked for in the folder that SLOSERVE_DATA names; without
it the generator in the column ``instead`` stands in, with the same targets, and the result says so.

- *upper bound*: a linear program over time slots, see ceiling_bound.py; no schedule has more requests in time.
- *clairvoyant*: the best plan that a search finds with all arrivals and lengths known, see clairvoyant.py.
- *policies*: as a server runs them, ageing on, planning charged, step times learnt.
- *auto's gap* to the clairvoyant plan, one thing more known or taken away at a time: ageing and the cost of planning,
  lengths, step times, arrivals (foreseeing_auto.py, the best of three horizons); the rest is the plan itself.
- *the difference*: which requests the plan serves in time and auto does not, and how the two run the engine.

Writes results/ceiling.json.gz and prints the table.

    python -m benchmarks.policies.ceiling [--runs 240] [--cells mixed-above,code-above] [--seed 0]
"""

import csv
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.arguments import parser_for
from benchmarks.policies import auto_cells
from benchmarks.policies.ceiling_bound import Bound, upper_bound
from benchmarks.policies.clairvoyant import Search, Timetable, first_plans, found_plan, plans_of_run
from benchmarks.policies.foreseeing_auto import ForeseeingAuto
from benchmarks.publish import RESULTS, aligned, read_json, write_result
from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.core.runlog import RunLog
from sloserve.scheduler.registry import make_policy
from sloserve.sim.advising import candidates
from sloserve.sim.experiment import Experiment, Point, measured_points, run_experiment
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import summarize
from sloserve.sim.run_name import STOCK

LIST = Path(__file__).parent / "ceiling_cells.csv"
AUTO = "auto"
BESIDE = (STOCK, "sjf:step_budget=true", "edf:step_budget=true", "niyama:step_budget=true", "andes", AUTO)
HORIZONS_S = (0.5, 2.0, 8.0)
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput", "preemptions_per_request")
RESULT = RESULTS / "ceiling.json.gz"


class CeilingCell(NamedTuple):
    """One row of the list. trace: empty where the generator ``instead`` is meant from the start. kv_blocks: empty for
    the profile's.
    """

    trace: str
    instead: str
    targets: str
    kv_blocks: str
    profile: str
    load: str
    requests: str

    def experiment(self, seed: int, folder: Path) -> tuple[Experiment, str]:
        """Without policies; and the name of the source."""
        flags: dict[str, Any] = {"max_requests": int(self.requests)}
        if self.kv_blocks:
            flags["kv_blocks"] = int(self.kv_blocks)
        for source in filter(None, (self.trace, self.instead)):
            cell = auto_cells.AutoCell(source, self.targets, "", self.profile, self.load)
            try:
                return auto_cells.experiment(cell, "earlier", seed, folder, **flags), source
            except ConfigError:
                if source == self.instead:
                    raise
        raise AssertionError("the list names a generator in each row")


def read_cells() -> dict[str, CeilingCell]:
    with LIST.open(encoding="utf-8") as file:
        return {row.pop("cell"): CeilingCell(**row) for row in csv.DictReader(file)}


def served(ours: Experiment, policy: str, point: Point) -> RunLog:
    (run,) = run_experiment(replace(ours, policies=(policy,)), points=[point])
    return run.log


def figures(log: RunLog) -> dict[str, Any]:
    record = summarize(log, policy="", seed=0, rps=0.0, load=None)
    return {name: None if record[name] is None else round(record[name], 4) for name in FIGURES}


def told_of_arrivals(ours: Experiment, point: Point) -> RunLog:
    """auto that knows lengths and step times, without ageing, and is told of arrivals at the best of the horizons."""
    requests = ours.requests(point.seed, rps=point.rps)
    table = (ours.slos or ours.workload.slos).table
    class_ids = {name: i for i, name in enumerate(table.names)}
    section = {"policy": AUTO, "aged_share": 0.0, "profile": ours.known_profile}
    settings = make_policy(AUTO, {"length": "oracle"}).settings
    logs = []
    for horizon_s in HORIZONS_S:
        policy = ForeseeingAuto(requests, class_ids, horizon_s, settings)
        config = {"sloserve": section | table.as_config()}
        logs.append(ModelEngine(ours.engine, ours.profile, config, policy=policy).run(requests))
    return max(logs, key=lambda log: sum(bool(one.good) for one in log.requests))


def split(ours: Experiment, point: Point, shipped: RunLog) -> dict[str, RunLog]:
    """Runs of auto, each with one thing more known or taken away than the one before."""
    free = replace(ours, aged_share=0.0, plan_cost=0.0)
    exact = replace(free, known_profile=ours.profile.name)
    return {
        "as shipped": shipped,
        "ageing and planning free": served(free, AUTO, point),
        "lengths known": served(free, f"{AUTO}:length=oracle", point),
        "step times known": served(exact, f"{AUTO}:length=oracle", point),
        "arrivals known": told_of_arrivals(exact, point),
    }


def what_differs(auto: RunLog, plan: RunLog, table: Timetable) -> dict[str, Any]:
    """What the plan does that auto does not. plan: of those alone that it serves. prompts_of_late: share of the prompt
    tokens, of requests that began until the last arrival, that were computed for requests that ended late.
    """
    ours = {r.request.request_id: r for r in auto.requests}
    theirs = {r.request.request_id: r for r in plan.requests}
    good = {name for name, r in ours.items() if r.good}
    better = {name for name, r in theirs.items() if r.good}
    missed = Counter(target for name in better - good for target, met in ours[name].met.items() if not met)
    first_s = {name: [of[i].latency.ttft_s for i in good & better] for name, of in (("auto", ours), ("plan", theirs))}

    def sizes(names: set[str]) -> dict[str, Any]:
        found = [ours[name].request for name in sorted(names)]
        mean = {f: float(np.mean([getattr(one, f) for one in found])) for f in ("prompt_tokens", "output_tokens")}
        return {"requests": len(found)} | ({f: round(value) for f, value in mean.items()} if found else {})

    last_s = max(r.request.arrival_s for r in auto.requests)

    def engine(log: RunLog) -> dict[str, float]:
        until = log.steps.end_s <= last_s
        steps = log.steps
        busy_s = max(float(steps.duration_s[until].sum()), 1e-9)
        tokens = steps.scheduled_tokens[until]
        begun = [r for r in log.requests if r.first_token_s is not None and r.first_token_s <= last_s]
        late = sum(r.request.prompt_tokens for r in begun if not r.good)
        return {
            "running": round(float(np.average(steps.running[until], weights=steps.duration_s[until])), 1),
            "kv_used": round(float(np.average(steps.kv_utilization[until], weights=steps.duration_s[until])), 3),
            "step_ms": round(1e3 * float(np.average(steps.duration_s[until])), 1),
            "p90_step_ms": round(1e3 * float(np.quantile(steps.duration_s[until], 0.9)), 1),
            "tokens_per_s": round(float(tokens.sum()) / busy_s),
            "prompts_of_late": round(late / max(sum(r.request.prompt_tokens for r in begun), 1), 3),
        }

    return {
        "in time under both": sizes(good & better),
        "by the plan alone": sizes(better - good),
        "under auto alone": sizes(good - better),
        "late under both": sizes(set(ours) - good - better),
        "what auto missed of those by the plan alone": dict(missed),
        "median ttft of both, s": {
            name: round(float(np.median(of)), 3) if of else None for name, of in first_s.items()
        },
        "engine until the last arrival": {"auto": engine(auto), "plan": engine(plan)},
        "plan": {
            "served": len(table.order),
            "policy": table.policy or None,
            "by_rule": table.by_rule,
            "sizes": list(table.sizes),
            "may give way": len(table.gives_way),
            "foresees": table.foresees,
            "preemptions": sum(r.num_preemptions for r in plan.requests),
        },
    }


def measured(cell: CeilingCell, runs: int, seed: int, folder: Path, on_run: Callable[[], None]) -> dict[str, Any]:
    """All figures of one cell. on_run: called after each run of the search."""
    ours, source = cell.experiment(seed, folder)
    (point,) = measured_points(ours)
    requests = ours.requests(seed, rps=point.rps)
    asked = sum(bool(one.slo.targets) for one in requests)
    began = time.perf_counter()
    bound = upper_bound(requests, ours.engine, ours.profile)
    bound_s = time.perf_counter() - began
    logs = {name: served(ours, name, point) for name in dict.fromkeys([*BESIDE, *candidates()])}
    table = (ours.slos or ours.workload.slos).table
    search = Search(requests, ours.engine, ours.profile, table.as_config(), on_run)
    best_first = sorted(logs, key=lambda name: -sum(bool(one.good) for one in logs[name].requests))
    firsts = [plans_of_run(logs[name], "fcfs" if name == STOCK else name) for name in best_first]
    began = time.perf_counter()
    plan = found_plan(search, [plans_of_bound(requests, bound), *firsts], runs, seed)
    search_s = time.perf_counter() - began
    reached = search.value(plan)[0].in_time / asked
    parts = {name: figures(log)["slo_attainment"] for name, log in split(ours, point, logs[AUTO]).items()}
    own = {name: figures(log) for name, log in logs.items()}
    best = max([reached, *parts.values(), *(one["slo_attainment"] for one in own.values())])
    return {
        **cell._asdict(),
        "source": source,
        "rps": round(point.rps, 3),
        "upper_bound": round(bound.share, 4),
        "vacuous": bound.is_vacuous,
        "slot_s": round(bound.slot_s, 3),
        "clairvoyant": round(reached, 4),
        "lower_bound": round(best, 4),
        "auto": parts,
        "policies": own,
        "difference": what_differs(logs[AUTO], search.carry_out(plan), plan),
        "runs": search.runs,
        "bound_wall_s": round(bound_s, 1),
        "search_wall_s": round(search_s, 1),
    }


def plans_of_bound(requests: Sequence[Any], bound: Bound) -> list[Timetable]:
    """First plans that the solution of the linear program suggests."""
    return first_plans(requests, np.flatnonzero(bound.parts > 0.5).tolist(), bound.starts_s)


def shown(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, in % of the requests with targets."""
    head = ["cell", *BESIDE, "clairvoyant", "upper bound"]
    rows = [head]
    for name, found in cells.items():
        own = [found["policies"][policy]["slo_attainment"] for policy in BESIDE]
        rows.append([name, *(f"{100 * value:.1f}" for value in (*own, found["lower_bound"], found["upper_bound"]))])
    parts = list(next(iter(cells.values()))["auto"])
    gaps = [["auto's gap, points", *parts[1:], "the plan", "to the bound"]]
    for name, found in cells.items():
        values = [*found["auto"].values(), found["lower_bound"], found["upper_bound"]]
        gaps.append([name, *(f"{100 * value:+.1f}" for value in np.diff(values))])
    return aligned(rows) + "\n" + aligned(gaps)


def main() -> None:
    parser = parser_for(__doc__, seed=0)
    parser.add_argument("--runs", type=int, default=240, help="of the search, for each cell")
    parser.add_argument("--cells", help="comma-separated; replaced in the result. Default: all")
    args = parser.parse_args()
    cells = read_cells()
    names = args.cells.split(",") if args.cells else list(cells)
    found = read_json(RESULT).get("cells", {}) if args.cells else {}
    with TemporaryDirectory() as folder, progress("searching, runs", Console(), len(names) * args.runs) as bar:
        for at, name in enumerate(names):
            found[name] = measured(cells[name], args.runs, args.seed, Path(folder), bar.advance)
            bar.update((at + 1) * args.runs, len(names) * args.runs)
            ordered = {one: found[one] for one in cells if one in found}
            write_result(RESULT, {"runs": args.runs, "seed": args.seed, "cells": ordered})
    print(shown(ordered))


if __name__ == "__main__":
    main()
