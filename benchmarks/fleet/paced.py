"""A fleet of paced engines in real processes, beside the simulator's prediction of the same run.

Real API servers, schedulers, sockets and the whole of `sloserve fleet`: store, gateway, planner, agent, launcher. Only
the computation is not there: engines wait for a step's time of the profile, and for a swap's (``PacedWorker``).

    python -m benchmarks.fleet.paced --real-time --section NAME [--rows NAME,...] [--seeds 0,1,2]

- ``colocation``: llm-d-batch-gateway #491's scenario as in ``colocation.py``: 8 interactive requests/s of
  ShareGPT's lengths for 30 s on one H100 with Llama 3 8B, beside a batch that has run for 5 s. ``alone``: without it;
  ``uncontrolled``: lines are sent at once, as requests; ``priority``: no more lines than the engine has seats;
  the others: the Batch API, and an engine that runs this policy.
- ``models``: QLM's W_A, six models on four H100s: a third of the requests interactive (whole reply within 20 s), the
  others lines of batches due in 2 minutes, a file every 5 s. A row for each planner.
- ``streams``: the same with 70 % interactive requests, and half of all for seldom used models.
- ``crowded``: ``streams`` at 15 requests/s. ``mixed``: half interactive, at 17 requests/s. Both are chosen so that
  simple rules have 50 to 95 % of the interactive requests in time, where predictions can be wrong in both directions.
- ``nodes``: one model on three hosts that join by themselves, each with an agent, a state folder and a door on TCP of
  its own; more requests than they can serve, so that many are late.
- ``lines``: long lines fill the places of an engine for two minutes, and files come that are due in one. Running lines
  give way under ``qlm`` alone.
- ``rounds``: conversations on four H100s with prefix caches; the gateway sends a prompt where its prefix is, or not.

Writes runs.csv.gz (a real and a predicted row for each run) and table.txt to results/fleet-paced-SECTION/; rows that
are there already are not run again.
"""

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.fleet import paced_colocation as colocation
from benchmarks.fleet import paced_lines as lines
from benchmarks.fleet import paced_models as models
from benchmarks.fleet.paced_fleet import PREDICTED, REAL, PacedFleet, load
from benchmarks.publish import RESULTS, RUNS, read_runs, write_runs, write_table

Row = dict[str, Any]
SECTIONS: dict[
    str,
    tuple[
        Callable[[], str],
        tuple[str, ...],
        Callable[..., Any],
        Callable[[str, int], Row],
        Callable[[Sequence[Row], Callable[[str, str], float]], str],
    ],
] = {
    "colocation": (
        colocation.colocation_file,
        tuple(colocation.ROWS),
        colocation.colocation_real,
        colocation.colocation_predicted,
        colocation.colocation_table,
    ),
    **{
        section: (
            partial(models.models_file, section, joining=bool(models.CELLS[section].nodes)),
            models.PLANNERS,
            partial(models.models_real, section),
            partial(models.models_predicted, section),
            partial(models.models_table, section),
        )
        for section in models.CELLS
    },
    "lines": (lines.lines_file, lines.PLANNERS, lines.lines_real, lines.lines_predicted, lines.lines_table),
    "rounds": (
        models.rounds_file,
        tuple(models.ROUTING),
        models.rounds_real,
        models.rounds_predicted,
        models.rounds_table,
    ),
}


def means(rows: Sequence[Row]) -> Callable[[str, str], float]:
    def mean(name: str, key: str) -> float:
        found = [float(row[key]) for row in rows if row["policy"] == name and row.get(key) is not None]
        return statistics.fmean(found) if found else float("nan")

    return mean


def rounded(row: Row) -> Row:
    return {key: round(float(value), 4) for key, value in row.items()}


async def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--section", choices=SECTIONS, required=True)
    parser.add_argument("--rows", help="separated by commas; all if not given")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--real-time", action="store_true", help="priority of the fleet over all other work; needs root"
    )
    parser.add_argument("--predict", action="store_true", help="only predict anew the rows that are there")
    parser.add_argument("--keep-logs", type=Path, help="a folder that is not there, for the fleet's logs")
    args = parser.parse_args()
    file, names, real, predicted, table = SECTIONS[args.section]
    names = names if args.rows is None else tuple(args.rows.split(","))
    out = args.out or RESULTS / f"fleet-paced-{args.section}"
    rows = read_runs(out / RUNS)
    there = {(row["policy"], int(row["seed"])) for row in rows}
    wanted = [(name, seed) for seed in map(int, args.seeds.split(",")) for name in names if (name, seed) not in there]
    folder = args.keep_logs or Path(tempfile.mkdtemp(prefix="paced-"))
    if args.predict:
        of_name = {(row["policy"], int(row["seed"])): row for row in rows}
        for name, seed in there:
            if (name + PREDICTED, seed) in of_name:
                of_name[name + PREDICTED, seed].update(rounded(predicted(name, seed)))
        write_runs(out / RUNS, rows)
        write_table(out, table(rows, means(rows)))
    elif wanted:
        nodes = models.CELLS[args.section].nodes if args.section in models.CELLS else ()
        async with PacedFleet(folder, file(), real_time=args.real_time, nodes=nodes) as fleet:
            for name, seed in wanted:
                made = {REAL: await real(fleet, name, seed), PREDICTED: predicted(name, seed)}
                for kind, row in made.items():
                    named = {"policy": name + kind, "seed": seed, "machine_load": load() if kind == REAL else None}
                    rows.append(named | rounded(row))
                    print(rows[-1], flush=True)
                write_runs(out / RUNS, rows)
                write_table(out, table(rows, means(rows)))
    print(table(rows, means(rows)))
    if args.keep_logs is None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
