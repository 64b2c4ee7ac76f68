"""How many requests per second can any router serve at a mean quality of 0.9, and how near do ours come?

The ceiling knows no chance: requests flow evenly, batches are what is best in the mean, and what would be late costs
nothing. A linear program over shares of time in which a device's replicas hold given batches: a replica that holds n
requests ends n / stay per second, and requests stay no longer than their guarantee in the mean (Little's law). So no
router, whatever it knows, is above it for long. What rules keep is the rate up to which the simulator of
``gain.py`` earns 0.9: two systems each, of 16 guarantees of arrivals (31 s) the later half.

    python -m benchmarks.router.ceiling
"""

import itertools
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, write_runs, write_table
from benchmarks.router.gain import SEED, system_called
from sloserve.fleet.router.choose import SHIPPED_FILE
from sloserve.fleet.router.environment import System
from sloserve.fleet.router.evaluation import at_rates
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy

FOLDER = RESULTS / "router-ceiling"
GOAL = 0.9
LIMITS = 16.0
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


def kept(system: System, rule: Rule, rates: tuple[float, ...]) -> float:
    """Up to which rate the rule earns the goal, between two of ``rates`` in proportion."""
    found = at_rates(system, rule, rates, replicas=2, seed=SEED, limits=LIMITS)
    later = [served.reward[served.arrival_s > LIMITS / 2 * float(system.limit_s.max())].mean() for served in found]
    after = next((i for i, reward in enumerate(later) if reward < GOAL), len(rates))
    if not 0 < after < len(rates):
        raise ValueError(f"earns {later} at {rates}: no rate between them is the last that will do")
    part = (later[after - 1] - GOAL) / (later[after - 1] - later[after])
    return float(rates[after - 1] + part * (rates[after] - rates[after - 1]))


def rules(system: System) -> Iterator[tuple[str, Rule, tuple[float, ...]]]:
    """And rates around where each falls below the goal; opt-125m earns 0.69 at all."""
    path = Path(str(resources.files("sloserve.fleet.router") / "data" / SHIPPED_FILE))
    shipped = load_network(path, Schema(len(system.models)).as_text(), system.models)
    yield "opt-6.7b", always(2), (68.0, 72.0, 76.0, 80.0, 84.0, 88.0)
    yield "opt-1.3b", always(1), (600.0, 660.0, 690.0, 720.0, 740.0, 780.0, 820.0)
    yield "greedy", masked_greedy(system), (400.0, 480.0, 540.0, 580.0, 620.0, 660.0, 700.0, 760.0)
    yield "shipped", learned(system, shipped), (620.0, 660.0, 690.0, 720.0, 750.0, 780.0, 820.0)


def runs() -> list[dict[str, Any]]:
    system, _ = system_called("opt")
    every = tuple(range(len(system.models)))
    most = ceiling(system, GOAL, every)
    rows: list[dict[str, Any]] = [
        {"rule": "any, without chance", "rate": round(most, 1)},
        {"rule": f"{system.models[-1]}, without chance", "rate": round(ceiling(system, 1.0, every[-1:]), 1)},
    ]
    return rows + [{"rule": name, "rate": round(kept(system, rule, rates), 1)} for name, rule, rates in rules(system)]


def table(rows: list[dict[str, Any]]) -> str:
    """Rates, and each in times of what the largest model alone keeps."""
    rates = {row["rule"]: float(row["rate"]) for row in rows}
    large = rates[[*rates][1].partition(",")[0]]
    lines = [f"requests/s at a mean quality of {GOAL} in time; in times of what the largest model alone keeps", ""]
    return "\n".join(lines + [f"{rule:27}{rate:7.1f}{rate / large:7.2f}" for rule, rate in rates.items()]) + "\n"


def main() -> None:
    parser_for(__doc__).parse_args()
    rows = runs()
    write_runs(FOLDER / RUNS, rows)
    write_table(FOLDER, table(rows), shown=True)


if __name__ == "__main__":
    main()
