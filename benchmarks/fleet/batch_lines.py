"""What would request groups by deadline and length, and eviction of running lines, gain in a live fleet?

    python -m benchmarks.fleet.batch_lines --section groups|eviction [--seeds 3] [--out FOLDER]

Fleets run in virtual time with the live fleet's planner and agents. Engines have stock's scheduler unless a row says
otherwise. Batches come as files: all lines of a file are due with its window, and ask for one of several models and
for short or long replies. Streams come beside them.

- ``groups``: rows differ in the groups that the planner sees. ``files``: a group for each file, model and 256 lines,
  as in a live fleet. ``clusters``: QLM's groups of like deadlines and lengths, of all files together (Algorithm 1).
  ``known``: with the lengths of replies known in advance. ``edf``: lines of the earliest deadline first, without a
  plan. ``on-demand``: in the order of arrival. No running line gives way.
- ``eviction``: long lines that are due late fill all places, and files that are due soon come after them. Running
  lines give way when a group that is due earlier becomes the first of the queue; ``stays``: they do not. The engines'
  policy follows the slash.

Writes rows.csv.gz and table.txt to results/fleet-lines-SECTION/: requests in time of all, of streams, of the lines of
each window, and means of the paired differences from the first row with 95 % intervals.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, aligned, write_rows, write_table
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.fleet.simulated.fleet_experiment import FleetResult
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.live.simulated_store import SimulatedStore
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.fleet.simulated.simulate_fleet import record
from sloserve.sim.experiment import MODEL, engine_class

Row = dict[str, Any]
H100 = "h100-llama3-8b"
ROWS = "rows.csv.gz"
STREAMS, STREAM_S = "streams", 20.0
DELTA = 4.0
"""Largest size of a cluster's group in mean batches, as published."""
ONE_FILE_S = 1e-6
"""Files of a cell come at different times, so that lines of one file alone are one group."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths of prompts and replies, in tokens, by their medians; ``limit`` is what lines state."""

    prompt: float
    output: float
    limit: int | None = None
    spread: float = 0.6


SHORT, LONG, CHAT = Lengths(300.0, 30.0, 64), Lengths(150.0, 500.0, 2048), Lengths(150.0, 120.0)


@dataclass(frozen=True, slots=True)
class Files:
    """A kind of files.

    Args:
        every_s: Mean seconds between two of them; 0 for one file at the begin.
        lines: Mean number of lines.
        window_s: Windows, of which each file has one.
        lengths: Lengths, of which each line has one.
    """

    every_s: float
    lines: int
    window_s: Sequence[int]
    lengths: Sequence[Lengths]


@dataclass(frozen=True, slots=True)
class Cell:
    """Models by their shares on ``instances`` devices, ``seconds`` of streams and files."""

    name: str
    models: Mapping[str, float]
    instances: int
    files: Sequence[Files]
    streams_per_s: float = 0.0
    seconds: float = 240.0
    seats: int = 64
    profile: str = H100

    @property
    def windows_s(self) -> list[int]:
        return sorted({one for files in self.files for one in files.window_s})

    def fleet(self) -> Fleet:
        models = "\n".join(
            f"  {name}: {{profile: {self.profile}, share: {share}, flags: {{max_num_seqs: {self.seats}}}}}"
            for name, share in self.models.items()
        )
        width = load_profile(self.profile).tensor_parallel
        classes = "\n".join(f"    w{window_s}: {{rank: 2, e2e_ms: {1000 * window_s}}}" for window_s in self.windows_s)
        return parse_fleet(
            f"models:\n{models}\n"
            f"hosts: {{a: {{device: {self.profile.partition('-')[0]}, devices: {self.instances * width}, "
            f"width: {width}, host_memory_gib: 400}}}}\n"
            "switching: {min_active_s: 2, max_wait_s: 30, drain_max_s: 20}\n"
            "settings:\n  policy: edf\n  classes:\n    batch: null\n"
            f"    {STREAMS}: {{rank: 1, e2e_ms: {1e3 * STREAM_S}}}\n{classes}\n"
        )

    def requests(self, fleet: Fleet, seed: int) -> list[WorkloadRequest]:
        rng = np.random.default_rng([seed, *self.name.encode()])
        names, shares = list(self.models), np.array(list(self.models.values()))
        shares = shares / shares.sum()
        found: list[WorkloadRequest] = []

        def add(kind: str, at_s: float, slo_class: str, lengths: Lengths) -> None:
            of_class = fleet.settings.classes[slo_class]
            prompt, output = rng.lognormal(np.log([lengths.prompt, lengths.output]), lengths.spread).tolist()
            output = min(output, lengths.limit or 4096)
            found.append(
                WorkloadRequest(
                    f"{kind}{len(found)}",
                    at_s,
                    max(min(int(prompt), 4096), 1),
                    max(int(output), 1),
                    SLO(of_class, of_class.targets),
                    model=names[int(rng.choice(len(names), p=shares))],
                    max_tokens=lengths.limit,
                )
            )

        for at_s in (self.seconds * rng.random(round(self.streams_per_s * self.seconds))).tolist():
            add("s", at_s, STREAMS, CHAT)
        for files in self.files:
            count = 1 if files.every_s == 0.0 else round(self.seconds / files.every_s)
            for at_s in sorted((self.seconds * rng.random(count)).tolist()) if files.every_s else [0.0]:
                window_s = files.window_s[int(rng.integers(len(files.window_s)))]
                for _ in range(round(files.lines * rng.uniform(0.5, 1.5)) if files.every_s else files.lines):
                    add("l", at_s, f"w{window_s}", files.lengths[int(rng.integers(len(files.lengths)))])
        return sorted(found, key=lambda one: one.arrival_s)


class GroupedFleet(LiveFleet):
    """A live fleet with other groups of lines.

    Args:
        clusters: Whether groups are QLM's, of like deadlines and lengths; else those of files.
        known: Whether the lengths of replies are known in advance.
    """

    def __init__(
        self, planner: str = "qlm", options: Options | None = None, seed: int = 0, *, clusters: bool, known: bool
    ) -> None:
        super().__init__(planner, options, seed)
        self._store = _Store(DELTA if clusters else None, known)


class _Store(SimulatedStore):
    def __init__(self, delta: float | None, known: bool) -> None:
        super().__init__(delta, file_s=ONE_FILE_S)
        self._known = known

    def accept(self, request: WaitingRequest, output_tokens: float, deviation: float) -> None:
        if self._known and request.most_tokens is not None:
            output_tokens = float(max(request.most_tokens - request.generated_tokens, 1))
        super().accept(request, output_tokens, deviation)


@dataclass(frozen=True, slots=True)
class Variant:
    """A row.

    Args:
        planner: Planner of the fleet.
        clusters, known: See :class:`GroupedFleet`.
        evict: Whether running lines give way, if they do under the planner.
        policy: Policy of the engines; ``None`` for stock's scheduler.
    """

    planner: str = "qlm"
    clusters: bool = False
    known: bool = False
    evict: bool = True
    policy: str | None = None

    def run(self, cell: Cell, seed: int) -> Row:
        fleet = cell.fleet()
        dispatcher = GroupedFleet(
            self.planner, Options(preempt=self.evict), seed, clusters=self.clusters, known=self.known
        )
        made = FleetRun(fleet, dispatcher, engine_class(MODEL), policy=self.policy, seed=seed, oracle=self.known)
        began_s = time.process_time()
        log = made.run(cell.requests(fleet, seed))
        spent_s = time.process_time() - began_s
        found = record(FleetResult("", seed, 0.0, log))
        by_class = found["slo_attainment_by_class"]
        counters = log.run.counters
        figures = {"all": found["slo_attainment"], STREAMS: by_class.get(STREAMS)}
        figures |= {f"w{window_s}": by_class.get(f"w{window_s}") for window_s in cell.windows_s}
        figures |= {
            "done_s": found["duration_s"],
            "swaps": found["swaps"],
            "evicted": counters.get("preempted_for_others", 0),
            "cpu_s": spent_s,
        }
        return {key: None if value is None else round(float(value), 4) for key, value in figures.items()}


WINDOWS_S = (60, 180, 600)
"""The first is the shortest that the Batch API takes."""
ONE_MODEL, FOUR_MODELS = {"chat": 1.0}, {"chat": 0.4, "code": 0.3, "legal": 0.2, "poems": 0.1}
GROUPS_S = 80.0
LONGEST = Lengths(150.0, 4000.0, 8192, 0.3)
LARGE = "a100-llama3-70b-tp4"


def _long_then_urgent(name: str, profile: str, window_s: int, streams_per_s: float = 0.0) -> Cell:
    """Long lines that fill all places for minutes, and files that are due ``window_s`` seconds after they come."""
    files = (Files(0.0, 60, (1800,), (LONGEST,)), Files(20.0, 20, (window_s,), (SHORT, CHAT)))
    return Cell(name, ONE_MODEL, 1, files, streams_per_s, 180.0, 32, profile)


@dataclass(frozen=True, slots=True)
class Section:
    """What is compared in which cells; the first variant is the baseline of the differences."""

    cells: Sequence[Cell]
    variants: Mapping[str, Variant]


SECTIONS = {
    "groups": Section(
        (
            Cell("one model", ONE_MODEL, 1, (Files(10.0, 120, WINDOWS_S, (SHORT, LONG)),), 1.0, GROUPS_S, 16),
            Cell("four models", FOUR_MODELS, 2, (Files(10.0, 160, WINDOWS_S, (SHORT, LONG)),), 1.0, GROUPS_S, 16),
            Cell("small files", FOUR_MODELS, 2, (Files(0.2, 3, WINDOWS_S, (SHORT, LONG)),), 1.0, GROUPS_S, 16),
        ),
        {
            "files": Variant(evict=False),
            "clusters": Variant(clusters=True, evict=False),
            "clusters, known": Variant(clusters=True, known=True, evict=False),
            "edf": Variant("edf"),
            "on-demand": Variant("on-demand"),
        },
    ),
    "eviction": Section(
        (
            _long_then_urgent("70B", LARGE, 60),
            _long_then_urgent("70B, streams", LARGE, 60, 0.2),
            _long_then_urgent("8B", H100, 60),
        ),
        {
            "qlm/stock, stays": Variant(evict=False),
            "qlm/stock": Variant(),
            "qlm/auto, stays": Variant(evict=False, policy="auto"),
            "qlm/auto": Variant(policy="auto"),
            "on-demand/stock": Variant("on-demand"),
        },
    ),
}
COUNTS = ("done_s", "swaps", "evicted", "cpu_s")


def table(section: Section, rows: Sequence[Row]) -> str:
    """Means in percent, with differences from the first variant of the same seed in brackets."""
    parts = []
    for cell in section.cells:
        of_cell = [row for row in rows if row["cell"] == cell.name]
        if not of_cell:
            continue
        keys = [key for key in of_cell[0] if key not in ("cell", "policy", "seed")]
        lines = [[cell.name, *keys]]
        base = [row for row in of_cell if row["policy"] == next(iter(section.variants))]
        for name in section.variants:
            own = [row for row in of_cell if row["policy"] == name]
            lines.append([name, *(_shown(key, base, own) for key in keys)])
        parts.append(aligned(lines))
    return "\n".join(parts)


def _shown(key: str, base: Sequence[Row], own: Sequence[Row]) -> str:
    if not own or own[0][key] is None:
        return ""
    values = np.array([row[key] for row in own])
    if key in COUNTS:
        return f"{values.mean():.1f}"
    mean = f"{100.0 * values.mean():.1f}"
    if own[0]["policy"] == base[0]["policy"] or len(own) != len(base):
        return mean
    less = 100.0 * (values - np.array([row[key] for row in base]))
    return f"{mean} ({less.mean():+.1f} ± {half_95(less):.1f})"


def main() -> None:
    """Run a section, print and write it."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--section", required=True, choices=SECTIONS)
    parser.add_argument("--cells", type=int, help="only the first of them")
    parser.add_argument("--out", type=Path, help="a folder; results/fleet-lines-SECTION if not given")
    given = parser.parse_args()
    section, rows = SECTIONS[given.section], []
    out = given.out or RESULTS / f"fleet-lines-{given.section}"
    for cell in section.cells[: given.cells]:
        for seed in range(given.seeds):
            for name, variant in section.variants.items():
                rows.append({"cell": cell.name, "policy": name, "seed": seed, **variant.run(cell, seed)})
                print(rows[-1], flush=True)
            write_rows(out / ROWS, rows)
            write_table(out, table(section, rows))
    print(table(section, rows), end="")


if __name__ == "__main__":
    main()
