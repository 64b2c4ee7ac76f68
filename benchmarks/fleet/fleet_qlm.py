"""What do QLM's virtual queues gain over simple dispatchers of a fleet, in virtual time? A section for each figure.

    python -m benchmarks.fleet.fleet_qlm --section throughput [--seconds 60] [--seeds 3] [--untuned] [--out FOLDER]

Engines have stock's scheduler where no policy is named, so that dispatchers alone differ. All dispatchers see the same
requests of a seed. The bound of ``collate`` and the batch of ``shepherd`` are the best of TUNED at the section's first
cell, on a seed that is not shown; ``static`` is the best of all placements, on the seeds shown. Writes runs.csv.gz and
table.txt to results/fleet-qlm-SECTION/ after every run, so that what is stopped early leaves whole rows, and a plot at
the end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import parser_for
from benchmarks.fleet.cells import BATCH_S, INTERACTIVE_S, STATIC, Cell, Plant, Row, at, ladder, tuned
from benchmarks.fleet.fleet_tables import RATE, gains, table
from benchmarks.publish import RESULTS, RUNS, caption, write_runs, write_table

SEEDS, TUNING_SEED = 3, 100
COLLATE, SHEPHERD = "collate/stock", "shepherd/stock"
TUNED = {
    COLLATE: ("collate:max_wait_s={}/stock", (2.0, 5.0, 10.0, 20.0)),
    SHEPHERD: ("shepherd:batch={}/stock", (32.0, 64.0, 128.0, 256.0)),
}
"""What each of these names stands for in a section, and the values of which the best is taken."""

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
V100 = Plant({"chat": {"profile": "v100x2-qwen2.5-7b", "share": 1.0}}, {"v100x2": 4}, SWITCHING)
V100_32B = Plant({"chat": {"profile": "v100x4-qwen2.5-32b", "share": 1.0}}, {"v100x4": 2}, SWITCHING)
"""Of the simulated-annealing paper: instances of two V100 each, and of four with the larger model (derived)."""
ONE = Plant({"chat": {"profile": A100, "share": 1.0}}, {"a100": 2}, SWITCHING)
MIXED = {
    name: {"profile": {"h100": "h100-llama2-7b", "a100": A100}, "share": share, "tail": share < 0.2}
    for name, share in (("chat", 0.4), ("code", 0.3), ("legal", 0.1), ("medical", 0.1), ("poems", 0.1))
}
FIVE_MISTRALS = {
    name: {"profile": {"a10": "a10-mistral-7b", "a100": "a100-mistral-7b"}, "share": share, "tail": share < 0.2}
    for name, share in (("chat", 0.4), ("code", 0.3), ("legal", 0.1), ("medical", 0.1), ("poems", 0.1))
}
"""Of QLM, Fig. 14; both profiles are derived from data sheets. An A10 decodes at a third of the speed, and has a
twelfth of the KV."""
SIZES = Plant(
    {
        "chat": {"profile": "a100-mistral-7b", "share": 0.35},
        "code": {"profile": "a100-vicuna-13b", "share": 0.25},
        "legal": {"profile": "a100-mistral-7b", "share": 0.1, "tail": True},
        "write": {"profile": "a100-llama3-70b-tp4", "share": 0.2},
        "medical": {"profile": "a100-llama3-70b-tp4", "share": 0.1, "tail": True},
    },
    {"a100": 2, "a100x4": 1},
    SWITCHING,
    host_memory_gib=512.0,
)
"""QLM's three sizes of models: 7B and 13B on two instances of one A100 each, two 70B models on one of four."""
MANY_REQUESTS = Cell(SIX, "req/s", 120.0, rps=120.0, seconds=90.0)
MANY_MODELS = Cell(EIGHT, "req/s", 20.0, rps=20.0, seconds=180.0)
SHORTER = replace(MANY_MODELS, seconds=120.0)
ONE_MODEL = Cell(ONE, "req/s", 20.0, workload="w-b", rps=20.0, seconds=120.0)

RIVALS = ("fifo", "on-demand", COLLATE, "edf/stock")
QLM, PAPER = "qlm/stock", "qlm-paper/stock"
ALL = (STATIC, *RIVALS, "least-loaded/stock", QLM, PAPER)
W_A_ONLY = ("random/stock", SHEPHERD, "qlm-paper:lengths=oracle/stock")
ROUTERS = ("least-loaded/stock", "edf/stock", QLM)
ANNEALING = ("on-demand", "sa/stock", "edf/stock", QLM, "least-loaded/stock", "random/stock")
AT_RANDOM = "qlm-paper:balance=random/stock"
ACTED = (
    "in_time",
    "interactive",
    "preemptions_per_request",
    "swaps_per_request",
    "preempted_by_fleet_per_request",
)
"""Whether operations on requests do anything at all."""
OPERATIONS = ("pull", "preempt", "swap", "warm", "balance")
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
    """A figure.

    names: those in TUNED stand for the tuned ones. rates: a ladder; cells stand at a rate without. baseline: to which
    the rates of a ladder are relative. gains: whether the table tells how much mixed devices add to them.
    """

    question: str
    cells: tuple[Cell, ...]
    names: tuple[str, ...] = (*RIVALS, QLM, PAPER)
    rates: tuple[float, ...] = ()
    shows: tuple[str, ...] = ("in_time", "interactive")
    baseline: str = "on-demand"
    gains: bool = False

    def lasting(self, seconds: float) -> "FigureSection":
        """The section with so many virtual seconds of arrivals in every cell."""
        return replace(self, cells=tuple(replace(cell, seconds=seconds) for cell in self.cells))

    def rows(self, seeds: Sequence[int], *, untuned: bool = False) -> Iterator[Row]:
        """Every run's. untuned: with the first value of what is tuned."""
        chosen, meant = {}, {}
        for name in self.names:
            if name in TUNED:
                form, values = TUNED[name]
                chosen[name] = tuned(self.cells[0], form, values[:1] if untuned else values, TUNING_SEED)
                meant[form.format(f"{chosen[name]:g}")] = name
        runs = tuple(TUNED[name][0].format(f"{chosen[name]:g}") if name in TUNED else name for name in self.names)
        for cell in self.cells:
            for row in ladder(cell, self.rates, runs, seeds) if self.rates else at(cell, runs, seeds):
                name = meant.get(row["policy"], row["policy"])
                yield row | {"policy": name, "tuned": chosen.get(name)}

    def table(self, rows: Sequence[Row]) -> str:
        """What ``rows`` come to."""
        axis, carried = self.cells[0].axis, self.baseline if self.rates else None
        text = table(self.question, axis, rows, self.shows, carried)
        return text + (gains(axis, rows, self.baseline) if self.gains else "")


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
    """The cell with deadlines of so many times their length; it lasts at least one and a half times as long as the
    latency-sensitive one, since in a shorter run no queue could make them late.
    """

    def scaled(c: Cell, scale: float) -> Cell:
        seconds = max(c.seconds, 1.5 * INTERACTIVE_S * scale)
        return replace(c, plant=replace(c.plant, slo_scale=scale), seconds=seconds)

    return vary(cell, "slo scale", values, scaled)


def at_swap_cost(cell: Cell, values: Sequence[float]) -> tuple[Cell, ...]:
    """The cell with swaps that take so many times as long."""
    return vary(cell, "swap cost", values, lambda c, v: replace(c, plant=replace(c.plant, swap_cost_factor=v)))


def mixed(a100s: int, h100s: int) -> Cell:
    """As many requests/s more as H100s are faster."""
    plant = Plant(MIXED, {"h100": h100s, "a100": a100s}, SWITCHING)
    rps = 8.0 * a100s + 16.0 * h100s
    return Cell(plant, f"H100s of {a100s + h100s}", h100s, rps=rps, seconds=120.0)


def a10s(total: int) -> tuple[Cell, ...]:
    """From A100s alone to A10s alone, the paper's shares of 20 to 50 % between them."""
    base = Cell(Plant(FIVE_MISTRALS, {}, SWITCHING), "A10s", 0.0, rps=8.0, seconds=45.0)
    return vary(
        base,
        f"A10s of {total}",
        (0, total // 4, total // 2, total),
        lambda c, v: replace(c, plant=replace(c.plant, devices={"a10": int(v), "a100": total - int(v)})),
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
        "Fig. 1, 11, 12, 21: one model on 2 instances",
        at_rates(ONE_MODEL, (16.0, 22.0)),
        ("fifo", *ROUTERS, PAPER, SHEPHERD),
        shows=("in_time", "interactive", "hol_s", "kv_used"),
    ),
    "w-b-scarce": FigureSection(
        "Fig. 11, 12 where KV is short: one model on 2 instances, OPT-13B, 12 GB of KV",
        (Cell(ONE_SCARCE, RATE, 12.0, workload="w-b", rps=12.0, seconds=60.0),),
        (
            "fifo",
            *without_each("fcfs"),
            "edf/fcfs",
            "least-loaded/fcfs",
            *(f"{name}/auto" for name in ("qlm-paper", "qlm", "edf", "least-loaded")),
            SHEPHERD,
        ),
        (6.0, 9.0, 12.0, 15.0, 18.0),
        baseline="fifo",
    ),
    "queue-scarce": FigureSection(
        "Fig. 16 where KV is short: the same at 9 req/s, behind a queue at the start",
        vary(
            Cell(ONE_SCARCE, "queued", 0.0, workload="w-b", rps=9.0, seconds=60.0),
            "queued",
            (0, 400),
            lambda c, v: replace(c, queued=int(v)),
        ),
        (
            "fifo",
            *(f"{name}/{engine}" for engine in ("fcfs", "auto") for name in ("qlm-paper", "qlm", "edf")),
            "least-loaded/auto",
            SHEPHERD,
        ),
        shows=ACTED,
    ),
    "sizes": FigureSection(
        "W_A with models of three sizes: 7B and 13B on two A100s, two of 70B on four more",
        at_rates(Cell(SIZES, RATE, 8.0, rps=8.0, seconds=120.0), (6.0, 12.0)),
        (*RIVALS, "least-loaded/stock", QLM, PAPER, SHEPHERD),
    ),
    "w-c": FigureSection(
        "Fig. 15: mega prompts, 6 models on 4 instances, 40 req/s",
        option(replace(MANY_REQUESTS, workload="w-c", rps=40.0), "mega_share", (0.01, 0.03)),
    ),
    "devices-a10": FigureSection(
        "Fig. 14: A100s and A10s (derived), 5 models on 4 instances; groups by load, in turn and at random",
        a10s(4),
        (PAPER, "qlm-paper:balance=false/stock", AT_RANDOM, QLM),
        (1.0, 3.0, 9.0, 27.0, 81.0, 162.0),
        ("in_time",),
        baseline=AT_RANDOM,
        gains=True,
    ),
    "devices": FigureSection(
        "Fig. 14 with other devices: two A100s and two H100s, 5 models, 48 req/s",
        (mixed(2, 2),),
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
        f"Fig. 20: deadlines of {INTERACTIVE_S:g} and {BATCH_S:g} s times a factor, 8 models on 2 instances, 20 req/s",
        at_slo_scale(SHORTER, (0.5, 1.0, 2.0, 3.0, 5.0, 11.0)),
        ("fifo", "edf/stock", QLM, SHEPHERD),
    ),
    "memory": FigureSection(
        "Fig. 21, W_A: KV blocks in use over all time, 8 models on 2 instances, 20 req/s",
        (MANY_MODELS,),
        (*RIVALS, QLM, SHEPHERD),
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
            "qlm:preempt=false/stock",
            "qlm:warm=false/stock",
            "qlm:balance=false/stock",
        ),
        shows=ACTED,
    ),
    "operations-w-b": FigureSection(
        "Fig. 13: the same with one model on 2 instances, 26 req/s",
        at_rates(ONE_MODEL, (26.0,)),
        (PAPER, *(f"qlm-paper:{name}=false/stock" for name in OPERATIONS), QLM, "qlm:preempt=false/stock"),
        shows=ACTED,
    ),
    "operations-scarce": FigureSection(
        "Fig. 10 where KV is short: qlm without each of its operations, 4 models on 2 instances, OPT-13B, 12 GB of KV",
        at_rates(Cell(FOUR_SCARCE, "req/s", 14.0, rps=14.0, seconds=60.0), (14.0,)),
        (*without_each("auto"), *without_each("fcfs"), "on-demand", "least-loaded/auto"),
        shows=ACTED,
    ),
    "operations-scarce-w-b": FigureSection(
        "Fig. 13 where KV is short: the same with one model on 2 instances, so that switching models does nothing",
        at_rates(Cell(ONE_SCARCE, "req/s", 14.0, workload="w-b", rps=14.0, seconds=60.0), (14.0,)),
        (*without_each("auto"), *without_each("fcfs"), "on-demand", "least-loaded/auto"),
        shows=ACTED,
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
    parser.add_argument("--untuned", action="store_true", help="with the first value of what is tuned")
    given = parser.parse_args()
    section, began_s = SECTIONS[given.section], time.process_time()
    if given.seconds is not None:
        section = section.lasting(given.seconds)
    out = given.out or RESULTS / f"fleet-qlm-{given.section}"
    rows, text = [], ""
    for row in section.rows(range(given.seeds), untuned=given.untuned):
        rows.append(row)
        print({key: row[key] for key in ("policy", "value", "rps", "seed", "in_time", "interactive")}, flush=True)
        text = section.table(rows)
        write_runs(out / RUNS, rows)
        write_table(out, text)
    print(text, f"{(time.process_time() - began_s) / 60.0:.1f} minutes of CPU time", sep="")
    from benchmarks.fleet.fleet_figure import draw  # matplotlib: only where runs happen

    draw(section, rows, out / "attainment.png", caption(out))


if __name__ == "__main__":
    main()
