"""What do QLM's virtual queues gain over simple dispatchers of a fleet, in virtual time? A section for each figure.

    python -m benchmarks.fleet.fleet_qlm --section throughput [--seconds 60] [--seeds 3] [--bound 10] [--out FOLDER]

Every engine has stock's scheduler, so that dispatchers alone differ. All dispatchers see the same requests of a seed.
The bound of ``collate`` is the best of BOUNDS at the section's first cell, on a seed that is not shown; ``static`` is
the best of all placements, on the seeds shown. Writes runs.csv and table.txt to results/fleet-qlm-SECTION/ after every
run, so that what is stopped early leaves whole rows, and a plot at the end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import parser_for
from benchmarks.fleet.cells import STATIC, Cell, Plant, Row, at, ladder, tuned_bound
from benchmarks.fleet.fleet_tables import figure, table
from benchmarks.publish import RESULTS, write_table
from sloserve.report.runs_csv import write_runs

SEEDS, TUNING_SEED = 3, 100
BOUNDS = (2.0, 5.0, 10.0, 20.0)
COLLATE = "collate:max_wait_s={}/stock"

H100, A100 = "h100-llama3-8b", "a100-llama2-7b"
SWITCHING = {"min_active_s": 2.0, "max_wait_s": 30.0, "drain_max_s": 20.0}
SIX = Plant(
    {
        "chat": {"profile": H100, "share": 0.5},
        "code": {"profile": H100, "share": 0.3},
        "legal": {"profile": "h100-llama2-7b", "share": 0.05, "tail": True},
        "medical": {"profile": "h100-llama2-7b", "share": 0.05, "tail": True},
        "poems": {"profile": "h100-llama2-7b", "share": 0.05, "tail": True},
        "translate": {"profile": H100, "share": 0.05, "tail": True},
    },
    {"h100": 4},
    SWITCHING | {"min_active_s": 5.0},
)
"""The models of configs/fleet.yaml."""
EIGHT = Plant(
    {name: {"profile": H100, "share": share} for name, share in (("chat", 0.3), ("code", 0.2), ("search", 0.1))}
    | {
        name: {"profile": H100, "share": 0.08, "tail": True}
        for name in ("legal", "medical", "poems", "tickets", "translate")
    },
    {"h100": 2},
    SWITCHING,
)
V100 = Plant({"chat": {"profile": "v100x2-qwen2.5-7b", "share": 1.0}}, {"v100": 4}, SWITCHING, width=2)
V100_32B = Plant({"chat": {"profile": "v100x4-qwen2.5-32b", "share": 1.0}}, {"v100": 2}, SWITCHING, width=4)
"""Of the simulated-annealing paper: instances of two V100 each, and of four with the larger model (derived)."""
ONE = Plant({"chat": {"profile": A100, "share": 1.0}}, {"a100": 2}, SWITCHING)
MIXED = {
    name: {"profile": {"h100": "h100-llama2-7b", "a100": A100}, "share": share, "tail": share < 0.2}
    for name, share in (("chat", 0.4), ("code", 0.3), ("legal", 0.1), ("medical", 0.1), ("poems", 0.1))
}
MANY_REQUESTS = Cell(SIX, "req/s", 120.0, rps=120.0, seconds=90.0)
MANY_MODELS = Cell(EIGHT, "req/s", 20.0, rps=20.0, seconds=180.0)
SHORTER = replace(MANY_MODELS, seconds=120.0)
ONE_MODEL = Cell(ONE, "req/s", 20.0, workload="w-b", rps=20.0, seconds=120.0)

RIVALS = ("fifo", "on-demand", COLLATE, "edf/stock")
QLM, PAPER = "qlm/stock", "qlm-paper/stock"
ALL = (STATIC, *RIVALS, "least-loaded/stock", QLM, PAPER)
W_A_ONLY = ("random/stock", "shepherd/stock", "qlm-paper:lengths=oracle/stock")
ROUTERS = ("least-loaded/stock", "edf/stock", QLM)
ANNEALING = ("on-demand", "sa/stock", "edf/stock", QLM, "least-loaded/stock", "random/stock")
OPERATIONS = ("pull", "preempt", "swap", "warm", "balance")
SHEPHERD = "shepherd/stock"
SCARCE = "a100-opt-13b-12gb"
FOUR_SCARCE = Plant(
    {name: {"profile": SCARCE, "share": share} for name, share in (("chat", 0.4), ("code", 0.3))}
    | {name: {"profile": SCARCE, "share": 0.15, "tail": True} for name in ("legal", "medical")},
    {"a100": 2},
    SWITCHING,
)
ONE_SCARCE = Plant({"chat": {"profile": SCARCE, "share": 1.0}}, {"a100": 2}, SWITCHING)
"""Engines whose KV is short, so that operations on requests have something to do."""


def without_each(engine: str, *operations: str) -> tuple[str, ...]:
    """The published rule and the live one whole, and the published one without each operation. engine: its policy."""
    off = (f"qlm-paper:{name}=false/{engine}" for name in operations or OPERATIONS)
    return (f"qlm-paper/{engine}", *off, f"qlm/{engine}")


@dataclass(frozen=True)
class FigureSection:
    """A figure. names: COLLATE among them stands for the tuned one. rates: a ladder; cells stand at a rate without."""

    question: str
    cells: tuple[Cell, ...]
    names: tuple[str, ...] = (*RIVALS, QLM, PAPER)
    rates: tuple[float, ...] = ()
    shows: tuple[str, ...] = ("in_time", "interactive")

    def lasting(self, seconds: float) -> "FigureSection":
        """The section with so many virtual seconds of arrivals in every cell."""
        return replace(self, cells=tuple(replace(cell, seconds=seconds) for cell in self.cells))

    def rows(self, seeds: Sequence[int], bound: float | None = None) -> Iterator[Row]:
        """Every run's. bound: of the wait under collate, in seconds; tuned here if None."""
        names = self.names
        if COLLATE in names:
            tried = BOUNDS if bound is None else (bound,)
            tuned = tuned_bound(self.cells[0], tried, TUNING_SEED, COLLATE)
            names = tuple(tuned if name == COLLATE else name for name in names)
        for cell in self.cells:
            yield from ladder(cell, self.rates, names, seeds) if self.rates else at(cell, names, seeds)


def vary(cell: Cell, axis: str, values: Sequence[float], change: Callable[[Cell, float], Cell]) -> tuple[Cell, ...]:
    """The cell at each value of ``axis``."""
    return tuple(replace(change(cell, value), axis=axis, value=value) for value in values)


def option(cell: Cell, name: str, values: Sequence[float]) -> tuple[Cell, ...]:
    """The cell with each value of an option of its workload."""
    return vary(cell, name, values, lambda c, v: replace(c, workload=f"{c.workload}:{name}={v:g}"))


def at_rates(cell: Cell, values: Sequence[float]) -> tuple[Cell, ...]:
    """The cell at each rate."""
    return vary(cell, "req/s", values, lambda c, v: replace(c, rps=v))


def at_slo_scale(cell: Cell, values: Sequence[float]) -> tuple[Cell, ...]:
    """The cell with deadlines of so many times their length."""
    return vary(cell, "slo scale", values, lambda c, v: replace(c, plant=replace(c.plant, slo_scale=v)))


def at_swap_cost(cell: Cell, values: Sequence[float]) -> tuple[Cell, ...]:
    """The cell with swaps that take so many times as long."""
    return vary(cell, "swap cost", values, lambda c, v: replace(c, plant=replace(c.plant, swap_cost_factor=v)))


def mixes(total: int) -> tuple[Cell, ...]:
    """From A100s alone to H100s alone."""
    base = Cell(Plant(MIXED, {}, SWITCHING), "H100s", 0.0, rps=0.0, seconds=120.0)
    return vary(
        base,
        "H100s of 4",
        (0, 2, 4),
        lambda c, v: replace(
            c, rps=8.0 * total + 8.0 * v, plant=replace(c.plant, devices={"h100": int(v), "a100": total - int(v)})
        ),
    )


WAITS = ("hol_s", "interactive", "draining")
SECTIONS = {
    "throughput": FigureSection(
        "Fig. 8: the rate at which 90 % are in time, 8 models on 2 instances, by the share of tail models",
        option(MANY_MODELS, "tail_share", (0.1, 0.6)),
        (*ALL, *W_A_ONLY),
        (4.0, 8.0, 16.0, 32.0, 64.0),
        ("in_time",),
    ),
    "rates": FigureSection(
        "W_A above 80 req/s, 6 models on 4 instances",
        at_rates(MANY_REQUESTS, (120.0,)),
        (*RIVALS, QLM, PAPER, SHEPHERD),
    ),
    "shares": FigureSection(
        "Fig. 9: attainment by the share of latency-sensitive requests, 6 models on 4 instances, 120 req/s",
        option(MANY_REQUESTS, "latency_share", (0.05, 0.5)),
        (*RIVALS, QLM, PAPER, SHEPHERD),
    ),
    "w-b": FigureSection(
        "Fig. 11, 12: one model on 2 instances", at_rates(ONE_MODEL, (16.0, 22.0)), (*ROUTERS, SHEPHERD)
    ),
    "w-c": FigureSection(
        "Fig. 15: mega prompts, 6 models on 4 instances, 40 req/s",
        option(replace(MANY_REQUESTS, workload="w-c", rps=40.0), "mega_share", (0.01, 0.03)),
    ),
    "devices": FigureSection(
        "Fig. 14: A100s and H100s, 5 models on 4 instances, as many req/s more as H100s are faster",
        mixes(4),
        (*RIVALS, QLM, "least-loaded/stock", "random/stock"),
    ),
    "bursts": FigureSection(
        "Fig. 16: one model on 2 instances, 18 req/s, by the burstiness of arrivals",
        option(replace(ONE_MODEL, rps=18.0), "cv", (1.0, 8.0)),
        (*RIVALS, "least-loaded/stock", QLM),
    ),
    "queue": FigureSection(
        "Fig. 16: one model on 2 instances, 14 req/s, behind a queue at the start",
        vary(replace(ONE_MODEL, rps=14.0), "queued", (0, 400), lambda c, v: replace(c, queued=int(v))),
        (*RIVALS, "least-loaded/stock", QLM),
    ),
    "slo-scale": FigureSection(
        "Fig. 20: deadlines of 20 and 120 s times a factor, 8 models on 2 instances, 20 req/s",
        at_slo_scale(SHORTER, (0.5, 1.0, 2.0)),
        (*RIVALS, QLM, PAPER, SHEPHERD),
    ),
    "memory": FigureSection(
        "Fig. 21, W_A: KV blocks in use over all time, 8 models on 2 instances, 20 req/s",
        (MANY_MODELS,),
        (*RIVALS, QLM),
        shows=("kv_used", "serving", "draining"),
    ),
    "hol": FigureSection(
        "Fig. 1: mean wait of a latency-sensitive request for its first token, 8 models on 2 instances",
        (MANY_MODELS,),
        shows=WAITS,
    ),
    "drain": FigureSection(
        "Fig. 5: time to drain 400 requests that are there at once, 8 models on 2 instances",
        (replace(MANY_MODELS, axis="queued", value=400, rps=0.0, queued=400),),
        (*RIVALS, QLM, PAPER, "qlm-paper:pull=false/stock", "qlm-paper:warm=false/stock"),
        shows=("done_s", "in_time", "swaps"),
    ),
    "annealing": FigureSection(
        "SA, Fig. 11: annealing over 4 instances of 2 V100 each, Qwen2.5-7B",
        at_rates(Cell(V100, "req/s", 8.0, workload="w-b", rps=12.0, seconds=90.0), (12.0, 16.0)),
        ANNEALING,
        shows=("in_time", "interactive", "done_s"),
    ),
    "annealing-32b": FigureSection(
        "SA, Fig. 13: annealing over 2 instances of 4 V100 each, Qwen2.5-32B",
        at_rates(Cell(V100_32B, "req/s", 4.0, workload="w-b", rps=5.0, seconds=90.0), (5.0, 8.0)),
        ANNEALING,
        shows=("in_time", "interactive", "done_s"),
    ),
    "operations": FigureSection(
        "Fig. 10: qlm without each of its operations, 8 models on 2 instances, 20 req/s",
        (MANY_MODELS,),
        (
            PAPER,
            *(f"qlm-paper:{name}=false/stock" for name in OPERATIONS),
            "qlm-paper:park=true/stock",
            QLM,
            "qlm:preempt=true/stock",
            "qlm:warm=false/stock",
            "qlm:balance=false/stock",
        ),
        shows=("in_time", "interactive"),
    ),
    "operations-w-b": FigureSection(
        "Fig. 13: the same with one model on 2 instances, 26 req/s",
        at_rates(ONE_MODEL, (26.0,)),
        (PAPER, *(f"qlm-paper:{name}=false/stock" for name in OPERATIONS), QLM, "qlm:preempt=true/stock"),
        shows=("in_time", "interactive"),
    ),
    "operations-scarce": FigureSection(
        "Fig. 10 where KV is short: qlm without each of its operations, 4 models on 2 instances, OPT-13B, 12 GB of KV",
        at_rates(Cell(FOUR_SCARCE, "req/s", 14.0, rps=14.0, seconds=60.0), (14.0,)),
        (*without_each("auto"), *without_each("fcfs"), "on-demand", "least-loaded/auto"),
        shows=("in_time", "interactive"),
    ),
    "operations-scarce-w-b": FigureSection(
        "Fig. 13 where KV is short: the same with one model on 2 instances, so that switching models does nothing",
        at_rates(Cell(ONE_SCARCE, "req/s", 14.0, workload="w-b", rps=14.0, seconds=60.0), (14.0,)),
        (*without_each("auto"), *without_each("fcfs"), "on-demand", "least-loaded/auto"),
        shows=("in_time", "interactive"),
    ),
    "delta": FigureSection(
        "Fig. 18: size of request groups in mean batches, 8 models on 2 instances, 20 req/s",
        (SHORTER,),
        tuple(f"qlm-paper:delta={delta:g}/stock" for delta in (0.5, 4, 16)),
        shows=("in_time", "interactive", "cpu_s"),
    ),
    "swap-cost": FigureSection(
        "Swaps at a third and at three times what is assumed, 8 models on 2 instances, 20 req/s",
        at_swap_cost(SHORTER, (1 / 3, 3.0)),
    ),
}


def main() -> None:
    """Runs a section, prints and writes it."""
    parser = parser_for(__doc__)
    parser.add_argument("--section", required=True, choices=SECTIONS)
    parser.add_argument("--out", type=Path, help="a folder; results/fleet-qlm-SECTION if not given")
    parser.add_argument("--seconds", type=float, help="of arrivals, virtual; the section's if not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0 (default: %(default)s)")
    parser.add_argument("--bound", type=float, help="of the wait under collate, in seconds; tuned if not given")
    given = parser.parse_args()
    section, began_s = SECTIONS[given.section], time.process_time()
    if given.seconds is not None:
        section = section.lasting(given.seconds)
    out = given.out or RESULTS / f"fleet-qlm-{given.section}"
    rows, axis, text = [], section.cells[0].axis, ""
    for row in section.rows(range(given.seeds), given.bound):
        rows.append(row)
        print({key: row[key] for key in ("policy", "value", "rps", "seed", "in_time", "interactive")}, flush=True)
        text = table(section.question, axis, rows, section.shows, ladder=bool(section.rates))
        write_runs(out / "runs.csv", rows)
        write_table(out, text)
    print(text, f"{(time.process_time() - began_s) / 60.0:.1f} minutes of CPU time", sep="")
    if section.rates:  # of the first cell, against the rate
        axis = "req/s"
        rows = [row | {"value": row["rps"]} for row in rows if row["value"] == section.cells[0].value]
    figure(out / "attainment.png", axis, rows, section.question)


if __name__ == "__main__":
    main()
