"""What do the mean and the tail of latency cost each other under `auto` where no request states a target?

Usage: python -m benchmarks.policies.auto_tail [--workers 2] [--seeds 3] [--workloads azure-code] [--policies auto]

Eight cells without targets, each at 0.7, 1, 1.3 and 2 times stock's capacity, on the earlier half of each workload.
Beside stock runs `auto` at several values of its option ``tail``. At 1.3 times the capacity five rivals with the step
budget run as well, and with the first seed other orders of the waiting requests: by a bound on the wait relative to the
time in which the queue drains, by the response ratio, and by a deadline that is a multiple of a request's own work.
They replace the order of `auto`, whose admission and step budget stay the same.

A request is *quick* if its first token comes within 1 s and the others within 60 ms each: nobody promised that.

Writes results/auto_tail.json.gz: figures of each run. What the file has is not run again. ``--plot`` runs nothing, and
draws the mean against the tail of that file as auto_tail.png beside it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import gmean

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment
from benchmarks.publish import RESULTS, read_json, write_result
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.runlog import RunLog
from sloserve.lso.ordering import Ranked
from sloserve.scheduler.auto import policy as planning
from sloserve.scheduler.policy import Snapshot
from sloserve.sim.experiment import Point, measured_points, run_experiment
from sloserve.sim.report.summary import duration_s, latencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = [
    AutoCell("azure-conv", "none", "scarce", "h100-llama3-8b", ""),
    AutoCell("azure-code", "none", "ample", "h100-llama3-8b", ""),
    AutoCell("servegen-19h", "none", "scarce", "h100-llama3-8b", ""),
    AutoCell("servegen-10h", "none", "scarce", "h100-llama3-8b", ""),
    AutoCell("mooncake", "none", "ample", "h100-llama3-8b", ""),
    AutoCell("sharegpt", "none", "scarce", "h100-llama3-8b", ""),
    AutoCell("reasoning", "none", "scarce", "h100-llama3-8b", ""),
    AutoCell("azure-conv", "none", "scarce", "a100-llama3-70b-tp4", ""),
]
"""The cells, without their load."""
LOADS = ("0.7", "1", "1.3", "2")
STOCK, AUTO, BUDGET = "stock", "auto", ":step_budget=true"
RIVALS = tuple(name + BUDGET for name in ("sjf", "edf", "andes", "econo", "niyama"))
POLICIES = (STOCK, AUTO, "auto:tail=0", "auto:tail=0.75", "auto:tail=3")
ORDERS_AT = "1.3"
"""The load at which the rivals run, and at the first seed the other orders."""
MORE_TAILS = ("auto:tail=0.3", "auto:tail=6")
QUICK_TTFT_S, QUICK_TPOT_S = 1.0, 0.06
FIGURES = {
    "ttft_mean_s": "TTFT, mean",
    "ttft_p50_s": "median",
    "ttft_p99_s": "p99",
    "ttft_max_s": "longest",
    "e2e_mean_s": "e2e, mean",
    "e2e_p99_s": "e2e, p99",
    "normalized_ms": "ms a token",
    "tokens_per_s": "tokens/s",
    "quick": "quick",
}
"""The figures of a run, and their heads in tables."""

Order = Callable[[FloatArray, FloatArray, float], FloatArray]
"""Returns a key of waiting requests, of which the least is served first, from their ages, their costs and the sum of
the costs, all in seconds."""


def bounded(times: float) -> Order:
    """Least cost first; in order of arrival once a request has waited ``times`` the time in which the queue drains."""
    return lambda age, cost, drain: np.where(age > times * drain, -age, 1e9 + cost)


def by_response_ratio(power: float) -> Order:
    """Highest (age + cost) ** power / cost first; with power 1 this is *highest response ratio next*."""
    return lambda age, cost, drain: -((age + cost) ** power) / cost


def by_own_deadline(times: float) -> Order:
    """Earliest arrival + ``times`` the own cost first."""
    return lambda age, cost, drain: times * cost - age


ORDERS: dict[str, Order] = {
    **{f"bounded wait {times:g}": bounded(times) for times in (0.5, 1.0, 2.0)},
    **{f"response ratio {power:g}": by_response_ratio(power) for power in (1.0, 2.0)},
    **{f"own deadline {times:g}": by_own_deadline(times) for times in (10.0, 30.0, 100.0)},
}
"""Orders that are no option of `auto`, by name and parameter."""


@contextmanager
def ordered(order: Order | None) -> Iterator[None]:
    """Let `auto` serve waiting requests in this order; ``None`` for its own."""
    if order is None:
        yield
        return
    worth_of, ranked = planning.worth_of, planning.ranked
    costs: list[FloatArray] = []

    def noted(rows: Any, engine: Any, pace: Any, runs: Any, **facts: Any) -> Any:
        found = worth_of(rows, engine, pace, runs, **facts)
        costs[:] = [found.cost]
        now_s[:] = [facts["now_s"]]
        return found

    def reordered(snapshot: Snapshot, slots: IntArray, key: FloatArray, undecided: Any) -> Ranked:
        queued = snapshot.waiting.size
        age, cost = now_s[0] - snapshot.rows.arrival_s[slots[:queued]], costs[0][:queued]
        key[:queued] = order(age, cost, float(cost.sum()))
        return ranked(snapshot, slots, key, undecided)

    now_s: list[float] = []
    try:
        planning.worth_of, planning.ranked = noted, reordered  # type: ignore[assignment]
        yield
    finally:
        planning.worth_of, planning.ranked = worth_of, ranked


def figures(log: RunLog) -> dict[str, float]:
    """Return the figures of one run."""
    found = latencies(log.requests)
    each = [request.latency for request in log.requests]
    quick = [x is not None and x.ttft_s <= QUICK_TTFT_S and x.tpot_s <= QUICK_TPOT_S for x in each]
    return {
        "ttft_mean_s": float(found.ttft_s.mean()),
        "ttft_p50_s": float(np.percentile(found.ttft_s, 50)),
        "ttft_p99_s": float(np.percentile(found.ttft_s, 99)),
        "ttft_max_s": float(found.ttft_s.max()),
        "e2e_mean_s": float(found.e2e_s.mean()),
        "e2e_p99_s": float(np.percentile(found.e2e_s, 99)),
        "normalized_ms": 1e3 * float(found.normalized_s.mean()),
        "tokens_per_s": sum(x.token_times_s.size for x in log.requests) / duration_s(log),
        "quick": float(np.mean(quick)),
    }


def tried(cell: AutoCell, seed: int) -> list[str]:
    """Return the names of what runs in a cell: policies, and other orders."""
    more = [*RIVALS, *((*MORE_TAILS, *ORDERS) if seed == 0 else ())] if cell.load == ORDERS_AT else []
    return [*POLICIES, *more]


def runs_of(cell: AutoCell, seed: int, requests: int, names: Sequence[str], rps: float | None) -> list[dict[str, Any]]:
    """Return a row for each of ``names``, policies and other orders, at a rate; ``None`` to measure stock's first."""
    rows = []
    with TemporaryDirectory() as folder:
        ours = experiment(cell, "earlier", seed, Path(folder), max_requests=requests)
        points = measured_points(ours) if rps is None else [Point(seed, rps, float(cell.load))]
        for name in names:
            policy = AUTO if name in ORDERS else name
            with ordered(ORDERS.get(name)):
                for run in run_experiment(replace(ours, policies=(policy,)), points=points):
                    found = {key: float(f"{value:.4g}") for key, value in figures(run.log).items()}
                    rows.append({**cell._asdict(), "seed": seed, "rps": run.point.rps, "policy": name} | found)
    return rows


def of_stock(rows: Sequence[dict[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Return these runs with each figure but ``quick`` as a ratio of stock's in the same cell and seed.

    ``queues`` says whether stock's p99 of the first token is above 1 s: below that no order has anything to decide.
    """
    frame = pd.DataFrame(rows)
    run = [*AutoCell._fields, "seed"]
    ratios = [name for name in FIGURES if name != "quick"]
    stock = frame[frame.policy == STOCK].set_index(run)[ratios]
    found = frame.set_index([*run, "policy"])
    base = stock.reindex(found.index.droplevel("policy"))
    queues = base.ttft_p99_s.to_numpy() > QUICK_TTFT_S
    found[ratios] = found[ratios].to_numpy() / base.to_numpy()
    return found.assign(queues=queues).reset_index()


def with_all_orders(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the cells in which every policy and every other order has run, and stock has a queue."""
    ratios = ratios[(ratios.load == ORDERS_AT) & (ratios.seed == 0) & ratios.queues]
    ran = ratios.groupby(["workload", "profile"]).policy.transform("size")
    return ratios[ran == len(tried(CELLS[0]._replace(load=ORDERS_AT), 0))]


def family_of(policy: str) -> str:
    """Return the family of a point of the picture: the name without its parameter."""
    if policy.startswith(AUTO):
        return "auto, tail"
    return policy.removesuffix(BUDGET) if policy in (STOCK, *RIVALS) else policy.rsplit(" ", 1)[0]


def drawn(rows: Sequence[dict[str, Any]]) -> "Figure":
    """Return the picture of mean against tail at the load at which all orders ran, as geometric means over cells."""
    from matplotlib.figure import Figure

    from sloserve.sim.report.figure_style import line_styles, plain_name  # matplotlib: only where it is drawn

    points = with_all_orders(of_stock(rows)).groupby("policy", sort=False)[["ttft_mean_s", "ttft_p99_s"]].agg(gmean)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    families: dict[str, list[str]] = {}
    for policy in points.index:
        families.setdefault(family_of(policy), []).append(policy)
    for family, style in line_styles(list(families)).items():
        at = points.loc[families[family]].sort_values("ttft_mean_s")
        is_auto = plain_name(family).startswith(AUTO)
        axes.plot(
            at.ttft_mean_s,
            at.ttft_p99_s,
            label=family,
            zorder=3 if is_auto else 2,
            **style | {"linewidth": 2.5 if is_auto else 1.0},
        )
        if is_auto:
            for policy, (x, y) in zip(at.index, at.to_numpy(), strict=True):
                name = "default" if policy == AUTO else policy.partition("=")[2]
                axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize="small")
    axes.set_xlabel("mean time to first token, x stock")
    axes.set_ylabel("p99 of the time to first token, x stock")
    axes.legend(fontsize="small", ncols=2)
    return figure


def about(found: Mapping[str, Any]) -> str:
    """Return the caption of the picture: cells, load, seeds and versions."""
    rows = with_all_orders(of_stock(found["rows"]))
    cells, seeds = len(rows.drop_duplicates(["workload", "profile"])), sorted(rows.seed.unique())
    return (
        f"auto_tail: {cells} workloads without targets at {rows.load.unique()[0]} times stock's capacity, seed "
        f"{', '.join(map(str, seeds))}, {found['requests']} requests each; commit {found['commit']}, sloserve "
        f"{found['sloserve']}, engine model of vLLM {found['vllm']}"
    )


def main() -> None:
    out = RESULTS / "auto_tail.json.gz"
    parser = parser_for(__doc__, workers=2, seeds=3, requests=400, workloads="", policies="", out=out, plot=False)
    given = parser.parse_args()
    if given.plot:
        from sloserve.sim.report.figure_style import styled, write_figure

        with styled():
            found = read_json(given.out)
            write_figure(drawn(found["rows"]), RESULTS / "auto_tail.png", about(found))
        return
    workloads, policies = (set(names.split(",")) - {""} for names in (given.workloads, given.policies))
    rows: list[dict[str, Any]] = read_json(given.out).get("rows", [])
    jobs = []
    for seed, cell, load in itertools.product(range(given.seeds), CELLS, LOADS):
        at = cell._replace(load=load)
        there = {row["policy"]: row["rps"] for row in rows if (cell_of(row), row["seed"]) == (at, seed)}
        names = [name for name in tried(at, seed) if name not in there and (not policies or name in policies)]
        if names and (not workloads or cell.workload in workloads):
            jobs.append((at, seed, given.requests, names, next(iter(there.values()), None)))
    with ProcessPoolExecutor(given.workers) as pool:
        for (cell, seed, *_), found in zip(jobs, pool.map(runs_of, *zip(*jobs, strict=True)), strict=True):
            rows += found
            write_result(given.out, {"requests": given.requests, "rows": rows})
            shown = {row["policy"]: (row["ttft_mean_s"], row["ttft_p99_s"]) for row in found}
            print(*cell, seed, shown, flush=True)


def cell_of(row: Mapping[str, Any]) -> AutoCell:
    """Return the cell of a row."""
    return AutoCell(*(row[name] for name in AutoCell._fields))


if __name__ == "__main__":
    main()
