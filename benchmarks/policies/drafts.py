"""What do policies gain where an engine has a draft head (EAGLE, MTP), and what is it worth that `auto` knows of it?

Usage: python -m benchmarks.policies.drafts [--quick] [--workers 2] [--before]

Chats, a mixture, a crowd of decodes and reasoning on an H100, at 1.0 and 1.3 times what stock carries with the same
drafts: 1, 3 and 5 draft tokens, of which 0.6, 0.75 and 0.9 are accepted on average, given that those before them were.
Windows are drawn from the later half of each workload. All policies learn step times from the steps, which vary by 5 %;
each seed gives all policies the same requests, and drafts that are accepted in the same places. Differences are from
stock, paired by seed, with the 95 % interval of three seeds. Runs go through the engine model.

``--before`` runs `auto` twice more, with what was mended put back: "auto, before" takes each decode with drafts for a
chunk of a prompt, and a step to bring a decode one token; "auto, step times" only the latter.

Chats and the mixture are production traces where SLOSERVE_DATA names a folder that has them, else drawn. Writes
results/drafts.json.gz.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_judged import half_95
from benchmarks.policies.step_sizes import HALVES
from benchmarks.publish import RESULTS, aligned, write_result
from benchmarks.traces import AZURE_CONV, SERVEGEN_10H
from sloserve.core.errors import ConfigError
from sloserve.engine.virtual.drafts import spread_of
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Run, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.planned import PlannedScheduler

CHAT = {"share": 1.0, "ttft_ms": 1000, "tpot_ms": 15}
MIXED = {
    "fast": {"share": 0.25, "ttft_ms": 500, "tpot_ms": 10},
    "chat": {"share": 0.35, "ttft_ms": 1000, "tpot_ms": 30, "tds": "reading"},
    "job": {"share": 0.25, "e2e_ms": 20_000},
    "batch": {"share": 0.15, "e2e_ms": 300_000},
}
CROWD = {
    "fast": {"share": 0.5, "ttft_ms": 1000, "tpot_ms": 12},
    "reader": {"share": 0.3, "ttft_ms": 2000, "tds": "reading"},
    "job": {"share": 0.2, "e2e_ms": 60_000},
}
"""Replies that are long beside their prompts: many decode at once, so that drafts take time."""
WORKLOADS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "chat": ({"trace": AZURE_CONV}, {"chat": CHAT}),
    "mixed": ({"trace": SERVEGEN_10H, "max_num_seqs": 64}, MIXED),
    "crowd": ({"workload": "sharegpt-poisson"}, CROWD),
    "reasoning": ({"workload": "reasoning-poisson", "max_num_seqs": 16}, None),
}
"""Flags of ``sloserve simulate`` and classes; ``None`` for the workload's own. The engines of the mixture and of
reasoning run 64 and 16 requests at once: else a whole window would run at once, and nothing would queue.
"""
FEWER = {"reasoning": 0.3}
"""Share of the requests of a run where all of them would take too long: replies of thousands of tokens."""
DRAWN: dict[str, Any] = {"workload": "sharegpt-poisson", "max_num_seqs": 64}
"""In place of a trace that is not there."""
PROFILE = "h100-llama3-8b"
ACCEPTANCES, DRAFTS, LOADS = (0.6, 0.75, 0.9), (1, 3, 5), (1.0, 1.3)
SEEDS = (300, 301, 302)
POLICIES = ("stock", "edf", "niyama:step_budget=true", "auto", "auto:drafts=load", "auto:drafts=slack")
BEFORE, STEP_TIMES = "auto, before", "auto, step times"
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput", "mean_tpot_ms")
COUNTERS = ("limited_steps", "internal_errors")


class DraftCell(NamedTuple):
    workload: str
    acceptance: float
    drafts: int


def experiment(cell: DraftCell, seed: int, loads: Sequence[float], requests: int, folder: Path) -> Experiment:
    """Return the experiment of one seed, without policies. folder: for the file of its classes."""
    source, classes = WORKLOADS[cell.workload]
    flags: dict[str, Any] = {
        "profile": PROFILE,
        "load": ",".join(map(str, loads)),
        "max_requests": round(requests * FEWER.get(cell.workload, 1.0)),
        "engine": MODEL,
        "step_noise": 0.05,
        "num_speculative_tokens": cell.drafts,
        "draft_acceptance": cell.acceptance,
        "draft_acceptance_spread": spread_of(cell.acceptance),
        "policy": "stock",
    }
    if classes is not None:
        path = folder / f"{cell.workload}.yaml"
        path.write_text(yaml.safe_dump({"classes": classes}), encoding="utf-8")
        flags["slo"] = str(path)
    try:
        built = build_experiment(SimulateOptions(**source, **flags))
    except ConfigError:
        if "trace" not in source:
            raise
        built = build_experiment(SimulateOptions(**(source | DRAWN | {"trace": None}), **flags))
    return replace(built, seeds=(seed,), window=HALVES["later"])


@contextmanager
def before(name: str) -> Iterator[None]:
    """Have planned engines take a step to bring one token; for ``BEFORE`` also its drafts for tokens of prompts."""
    seen, drafts = PlannedScheduler._load_seen, ModelPort.num_drafts
    ModelPort.num_drafts = property(lambda self: 0)  # type: ignore[method-assign, assignment]
    if name == BEFORE:
        PlannedScheduler._load_seen = lambda self, batch: seen(self, replace(batch, drafts=None))  # type: ignore[method-assign]
    try:
        yield
    finally:
        PlannedScheduler._load_seen, ModelPort.num_drafts = seen, drafts  # type: ignore[method-assign]


def figures(run: Run) -> dict[str, float]:
    """Return the figures of one run; nan where it says nothing."""
    record, counters = run.record(), run.log.counters
    found = {name: float("nan") if record.get(name) is None else float(record[name]) for name in FIGURES}
    found |= {name: float(counters.get(name, 0)) for name in COUNTERS}
    drafted = counters.get("draft_tokens", 0)
    return found | {"accepted_share": counters.get("accepted_draft_tokens", 0) / drafted if drafted else 0.0}


Found = dict[tuple[float, str], dict[str, float]]
"""Figures by load and policy."""


def run_cell(
    cell: DraftCell, seed: int, loads: Sequence[float], names: Sequence[str], requests: int, has_before: bool
) -> Found:
    found: Found = {}
    with TemporaryDirectory() as folder:
        ours = experiment(cell, seed, loads, requests, Path(folder))
        points = measured_points(ours)
        for run in run_experiment(replace(ours, policies=tuple(names)), points=points):
            found[float(run.point.load or 0.0), run.policy] = figures(run)
        for name in (BEFORE, STEP_TIMES) if has_before else ():
            with before(name):
                for run in run_experiment(replace(ours, policies=("auto",)), points=points):
                    found[float(run.point.load or 0.0), name] = figures(run)
    return found


def rows_of(cell: DraftCell, of_seeds: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Yield a row for each load and policy: means over seeds, and the difference from stock, paired by seed."""
    for load, policy in of_seeds[0]:
        own = [found[load, policy] for found in of_seeds]
        stock = [found[load, "stock"] for found in of_seeds]
        row: dict[str, Any] = {**cell._asdict(), "load": load, "policy": policy}
        for name in own[0]:
            values = np.array([one[name] for one in own])
            row[name] = None if np.isnan(values).all() else float(f"{np.nanmean(values):.5g}")
        for name, short in (("slo_attainment", "attainment"), ("qoe_mean", "qoe")):
            added = np.array([one[name] - base[name] for one, base in zip(own, stock, strict=True)])
            if not np.isnan(added).any():
                row[f"{short}_less_stocks"] = round(float(added.mean()), 4)
                row[f"{short}_half_95"] = None if added.size < 2 else round(half_95(added), 4)
        speed = [one["output_throughput"] / base["output_throughput"] for one, base in zip(own, stock, strict=True)]
        yield row | {"tokens_over_stock": round(float(np.mean(speed)), 4)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the share of requests in time, in percent, of each policy and cell."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    shown = [["workload, acceptance, drafts, load", *policies]]
    in_time: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        name = f"{row['workload']} {row['acceptance']} {row['drafts']} x{row['load']}"
        in_time[name][row["policy"]] = f"{100 * row['slo_attainment']:.1f}"
    shown += [[name, *(of.get(policy, "-") for policy in policies)] for name, of in in_time.items()]
    return aligned(shown)


def main() -> None:
    parser = parser_for(
        __doc__, workers=2, seeds=len(SEEDS), requests=200, workloads=",".join(WORKLOADS),
        policies=",".join(POLICIES), out=RESULTS / "drafts.json.gz", before=False, quick=False,
    )  # fmt: skip
    given = parser.parse_args()
    seeds, loads, requests = SEEDS[: given.seeds], LOADS, given.requests
    cells = [DraftCell(*one) for one in itertools.product(given.workloads.split(","), ACCEPTANCES, DRAFTS)]
    if given.quick:
        seeds, loads, requests = SEEDS[:2], LOADS[1:], 30
        cells = [DraftCell(name, 0.75, 3) for name in given.workloads.split(",")]
    jobs = list(itertools.product(cells, seeds))
    every = [(*job, loads, given.policies.split(","), requests, given.before) for job in jobs]
    by_cell: dict[DraftCell, list[Found]] = defaultdict(list)
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        for (cell, seed), found in zip(jobs, pool.map(run_cell, *zip(*every, strict=True)), strict=True):
            by_cell[cell].append(found)
            in_time = {f"{policy} x{load}": round(one["slo_attainment"], 3) for (load, policy), one in found.items()}
            print(*cell, seed, in_time, flush=True)
    rows = [row for cell, of_seeds in by_cell.items() for row in rows_of(cell, of_seeds)]
    print(table(rows))
    if not given.quick:
        write_result(given.out, {"profile": PROFILE, "seeds": seeds, "requests": requests, "rows": rows})


if __name__ == "__main__":
    main()
