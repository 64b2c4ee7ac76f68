"""How many requests per second can any router serve at a mean quality of 0.9, and how near do ours come?

The ceiling knows no chance: requests flow evenly, batches are what is best in the mean, and what would be late costs
nothing. A linear program over shares of time in which a device's replicas hold given batches: a replica that holds n
requests ends n / stay per second, and requests stay no longer than their guarantee in the mean (Little's law). So no
router, whatever it knows, is above it for long. What rules keep is the highest rate, to 1 %, at which the simulator of
``router.py`` still earns 0.9: two systems each, of 16 guarantees of arrivals (31 s) the later half.

    python benchmarks/router_ceiling.py
"""

import itertools
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from router import SEED, system_called
from scipy.optimize import linprog

from sloserve.fleet.router.choose import SHIPPED_FILE
from sloserve.fleet.router.environment import System
from sloserve.fleet.router.evaluation import at_rates
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy
from sloserve.report.runs_csv import write_runs

RESULTS = Path(__file__).parent / "results" / "router-ceiling"
GOAL = 0.9
LIMITS, RATES = 16.0, 32
BATCHES = {1: 2000, 3: 40}
"""Sizes of a model's batch that are tried, beside none, by the number of models."""


def ceiling(system: System, goal: float, models: tuple[int, ...]) -> float:
    """Most requests per second of mean quality ``goal`` by these models, each task a like share of them."""
    held = _batches(system, models)
    speeds = system.speeds
    alone_s = np.array([np.where(n > 0, of.base_s + of.seq_s * n, 0.0) for of, n in zip(speeds, held, strict=True)])
    step_s = alone_s + system.interference * (alone_s.sum(axis=0) - alone_s)
    prompt_s = np.array([[of.prompt_token_s] for of in speeds]) * system.prompt_tokens.mean()
    ends = held / np.where(held > 0, system.output_tokens * step_s + held * prompt_s, 1.0)  # per second
    tasks, count = system.quality.shape
    states, served = ends.shape[1], tasks * count
    of_model, of_task = np.tile(np.eye(count), tasks), np.repeat(np.eye(tasks), count, axis=1)
    none, limit_s = np.zeros, float(system.limit_s.max())
    # Of each state its share of the time; of each task and model, requests per second; the rate.
    rows = [
        np.block([np.ones((1, states)), none((1, served + 1))]),
        np.block([-system.devices * ends, of_model, none((count, 1))]),
        np.block([held - limit_s * ends, none((count, served + 1))]),
        np.block([none((tasks, states)), of_task, np.full((tasks, 1), -1.0 / tasks)]),
        np.block([none((1, states)), -system.quality.reshape(1, -1), np.full((1, 1), goal)]),
    ]
    most = np.zeros(sum(len(row) for row in rows))
    most[0] = 1.0
    best = linprog(np.r_[none(states + served), -1.0], np.concatenate(rows), most, method="highs")
    return float(best.x[-1])


def _batches(system: System, models: tuple[int, ...]) -> Any:
    """Every state of a device's replicas, ``[models, states]``; models that are not used hold none."""
    sizes = [
        np.r_[0.0, np.geomspace(0.5, of.max_num_seqs, BATCHES[len(models)])] if i in models else np.zeros(1)
        for i, of in enumerate(system.speeds)
    ]
    return np.array(list(itertools.product(*sizes))).T


def kept(system: System, rule: Rule, most: float) -> float:
    """Highest rate up to ``most`` at which the rule earns the goal, as at all lower ones; 0 for none."""
    rates = np.geomspace(most / 30, most, RATES)
    for _ in range(2):  # among all, then between two of those
        found = at_rates(system, rule, rates.tolist(), replicas=2, seed=SEED, limits=LIMITS)
        later = [served.reward[served.arrival_s > LIMITS / 2 * float(system.limit_s.max())] for served in found]
        fails = [rate for rate, reward in zip(rates, later, strict=True) if reward.mean() < GOAL]
        high = min(fails, default=most)
        low = max((rate for rate in rates if rate < high), default=0.0)
        rates = np.linspace(low, high, RATES)[1:] if low else rates
    return float(low)


def rules(system: System) -> Iterator[tuple[str, Rule]]:
    yield from ((model, always(i)) for i, model in enumerate(system.models))
    yield "greedy", masked_greedy(system)
    path = Path(str(resources.files("sloserve.fleet.router") / "data" / SHIPPED_FILE))
    yield "shipped", learned(system, load_network(path, Schema(len(system.models)).as_text(), system.models))


def runs() -> list[dict[str, Any]]:
    system, _ = system_called("opt")
    every = tuple(range(len(system.models)))
    most = ceiling(system, GOAL, every)
    rows: list[dict[str, Any]] = [
        {"rule": "any, without chance", "rate": round(most, 1)},
        {"rule": f"{system.models[-1]}, without chance", "rate": round(ceiling(system, 1.0, every[-1:]), 1)},
    ]
    return rows + [{"rule": name, "rate": round(kept(system, rule, most), 1)} for name, rule in rules(system)]


def table(rows: list[dict[str, Any]]) -> str:
    """Rates, and each in times of what the largest model alone keeps."""
    rates = {row["rule"]: float(row["rate"]) for row in rows}
    large = rates[[*rates][1].partition(",")[0]]
    lines = [f"requests/s at a mean quality of {GOAL} in time; in times of what the largest model alone keeps", ""]
    return "\n".join(lines + [f"{rule:27}{rate:7.1f}{rate / large:7.2f}" for rule, rate in rates.items()]) + "\n"


def main() -> None:
    rows = runs()
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_runs(RESULTS / "runs.csv", rows)
    (RESULTS / "table.txt").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
