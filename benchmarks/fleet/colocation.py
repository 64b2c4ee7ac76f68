"""What do batches cost interactive requests on the same engine, and what does control cost the batch? In virtual time.

The scenario of llm-d-batch-gateway #491: one Llama 3 8B on one H100, Poisson arrivals of interactive requests, and a
batch that is there from the start and fills the engine by itself for as long as they come. All runs of a seed see the
same requests:

- ``alone``: interactive requests without a batch, vLLM's own scheduler.
- ``uncontrolled``: every line is sent at once, vLLM's own scheduler.
- ``bounded``: no more than 256 lines are sent at a time, vLLM's own scheduler.
- ``priority``: streams go past a queue that sends no more lines than the engine has seats.
- ``ours``: every line is sent at once and the engine's policy orders them; ``held``: a fleet's dispatcher (qlm) holds
  lines back as agents do. ``swap``: the engine has swap space for KV. ``100 ms``: that TTFT target, all others 500 ms;
  ``late first``: and late requests keep their place.

    python -m benchmarks.fleet.colocation [--lines long] [--seeds 3] [--out FOLDER]

Lines are ShareGPT's like the interactive requests, or long: then few seats come free, and KV is short. Writes
runs.csv.gz and table.txt to results/fleet-colocation-LINES/: interactive requests that meet their class's targets (TTFT
and TPOT), TTFT p50 and p99, output tokens a second of the batch and of both while interactive requests came.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, read_runs, write_runs, write_table
from sloserve.core.goodput import attainment, by_class
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import SLO
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatcher import Dispatcher, Operation, SimulatedView, WaitingRequest
from sloserve.fleet.simulated.dispatchers.assigned import Static
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.experiment import MODEL, engine_class
from sloserve.sim.workloads.length_models import sharegpt
from sloserve.sim.workloads.seeding import stream

INTERACTIVE_PER_S, SECONDS = 8.0, 30.0
LINES = {"chat": 2_400, "long": 700}
"""Their number, enough to outlast the interactive requests."""
LONG_PROMPT, LONG_REPLY = 1_000, (1_000, 2_000)
SEQS, TOKENS, CONTEXT_TOKENS = 256, 2_048, 500
FLEET = """
models:
  m:
    profile: h100-llama3-8b
    active_on: [a/0]
    flags: {{max_num_seqs: {seqs}, max_num_batched_tokens: {tokens}, max_model_len: 8192}}
hosts:
  a: {{device: h100, devices: 1, host_memory_gib: 64, swap_space_gib: {swap_gib}}}
settings:
  policy: edf
  classes:
    interactive: {{rank: 1, ttft_ms: {ttft_ms}, tpot_ms: 50}}
    batch: {{rank: 2, e2e_ms: 3600000, aged_after_s: 60}}
"""
SWAP_GIB = 64
INTERACTIVE, BATCH = "interactive", "batch"


class Bounded(Static):
    """No more than SEQS lines at a time, as a client with so many connections sends them."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[WaitingRequest] = []

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        if request.rank == 1:
            super().arrived(request, view)
        else:
            self._lines.append(request)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        in_flight = sum(one.rank != 1 for instance in view.instances for one in instance.in_flight)
        free = max(SEQS - in_flight, 0)
        for line in self._lines[:free]:
            super().arrived(line, view)
        del self._lines[:free]
        return super().tick(view)


@dataclass(frozen=True, slots=True)
class Seated(Options):
    """seats: that an agent counts with, whatever its engine has."""

    seats: int = SEQS

    def places(self, max_num_seqs: int) -> EnginePlaces:
        return EnginePlaces(self.seats)


def priority() -> Dispatcher:
    """Streams first, and no more lines than the engine has seats."""
    return LiveFleet(options=Seated(seats=round(SEQS / 1.25)))


@dataclass(frozen=True, slots=True)
class ColocationVariant:
    """policy: of the engine, ``None`` for stock's scheduler. ttft_ms: target of the interactive class."""

    dispatcher: Callable[[], Dispatcher]
    policy: str | None
    batch: bool = True
    swap: bool = False
    ttft_ms: int = 500


EDF, AUTO = "edf:step_budget=true", "auto"
UNCONTROLLED, ALONE = "uncontrolled", "alone"
VARIANTS = {
    ALONE: ColocationVariant(Static, None, batch=False),
    UNCONTROLLED: ColocationVariant(Static, None),
    "bounded": ColocationVariant(Bounded, None),
    "priority": ColocationVariant(priority, None),
    "ours, edf": ColocationVariant(Static, EDF),
    "ours, edf, swap": ColocationVariant(Static, EDF, swap=True),
    "ours, edf, 100 ms": ColocationVariant(Static, EDF, ttft_ms=100),
    "same, late first": ColocationVariant(Static, EDF + ":late_last=false", ttft_ms=100),
    "ours, edf, held": ColocationVariant(LiveFleet, EDF),
    "ours, auto": ColocationVariant(Static, AUTO),
    "ours, auto, swap": ColocationVariant(Static, AUTO, swap=True),
}


def make_fleet(variant: ColocationVariant) -> Fleet:
    swap_gib = SWAP_GIB if variant.swap else 0
    return parse_fleet(FLEET.format(seqs=SEQS, tokens=TOKENS, swap_gib=swap_gib, ttft_ms=variant.ttft_ms))


def requests(fleet: Fleet, seed: int, kind: str, *, batch: bool) -> list[WorkloadRequest]:
    """Arrivals and lengths of interactive requests do not depend on whether there is a batch."""
    rng = stream(seed, "colocation")
    arrivals = np.cumsum(rng.exponential(1.0 / INTERACTIVE_PER_S, int(INTERACTIVE_PER_S * SECONDS)))
    made = []
    for name, times in ((INTERACTIVE, arrivals), (BATCH, np.zeros(LINES[kind] if batch else 0))):
        slo_class = fleet.settings.classes[name]
        drawn = sharegpt().draw(len(times), stream(seed, name))
        prompts, outputs = np.clip(drawn[0], 1, 4_000), np.clip(drawn[1], 1, 2_000)
        if (name, kind) == (BATCH, "long"):
            prompts = np.full(len(times), LONG_PROMPT)
            outputs = stream(seed, "long").integers(*LONG_REPLY, len(times))
        made += [
            WorkloadRequest(f"{name}-{i}", float(at), int(p), int(o), SLO(slo_class, slo_class.targets), model="m")
            for i, (at, p, o) in enumerate(zip(times, prompts, outputs, strict=True))
        ]
    return sorted(made, key=lambda one: one.arrival_s)


def measure(name: str, seed: int, kind: str) -> dict[str, str | float]:
    """One run. Its batch must outlast the interactive requests, or its rate would say nothing."""
    variant, begin_s = VARIANTS[name], time.process_time()
    fleet = make_fleet(variant)
    run = FleetRun(fleet, variant.dispatcher(), engine_class(MODEL), policy=variant.policy, seed=seed)
    log = run.run(requests(fleet, seed, kind, batch=variant.batch)).run
    found = by_class(log.requests)
    streams, batch = found[INTERACTIVE], found.get(BATCH, [])
    if variant.batch and sum(float(one.token_times_s[0]) > SECONDS for one in batch) < SEQS:
        raise SystemExit(f"{name}: the batch ended within {SECONDS:g} s: give it more lines than {LINES[kind]}")
    ttft_s = np.array([one.latency.ttft_s if one.latency else np.inf for one in streams])
    return {
        "policy": name,
        "seed": seed,
        "in_time": attainment(streams).ratio or 0.0,
        "ttft_p50_ms": float(np.quantile(ttft_s, 0.5)) * 1e3,
        "ttft_p99_ms": float(np.quantile(ttft_s, 0.99)) * 1e3,
        "batch_tokens_per_s": output_rate(batch),
        "tokens_per_s": output_rate(log.requests),
        "batch_done_s": max((float(one.token_times_s[-1]) for one in batch), default=0.0),
        "preemptions": sum(one.num_preemptions for one in log.requests),
        "cpu_s": round(time.process_time() - begin_s, 1),
    }


def output_rate(logs: list[RequestLog]) -> float:
    """Output tokens a second while interactive requests came."""
    return sum(int((one.token_times_s <= SECONDS).sum()) for one in logs) / SECONDS


def full_step_ms() -> float:
    """Predicted, of a step in which all slots but one decode and the rest is prompt."""
    profile = make_fleet(VARIANTS[ALONE]).models["m"].profiles["h100"]
    return 1e3 * profile.step_s(StepLoad.of([(TOKENS - SEQS + 1, 0)], [CONTEXT_TOKENS] * (SEQS - 1)))


def table(rows: Sequence[dict[str, str | float]]) -> str:
    """Means over seeds; the batch as a share of ``uncontrolled``."""

    def mean(name: str, key: str) -> float:
        return statistics.mean(float(row[key]) for row in rows if row["policy"] == name)

    names = list(dict.fromkeys(str(row["policy"]) for row in rows))
    seeds = len({row["seed"] for row in rows})
    lines = [
        f"{INTERACTIVE_PER_S:g} interactive requests/s for {SECONDS:g} s beside a batch; {seeds} seeds; "
        f"a full step is predicted to take {full_step_ms():.1f} ms",
        "",
        f"{'':20}{'in time %':>10}{'TTFT p50 ms':>13}{'p99 ms':>9}{'- alone, steps':>16}{'batch tok/s':>13}"
        f"{'% of unc.':>11}{'all tok/s':>11}{'batch done s':>14}{'preemptions':>13}",
    ]
    for name in names:
        p99 = mean(name, "ttft_p99_ms")
        over = (p99 - mean(ALONE, "ttft_p99_ms")) / full_step_ms()
        batch = mean(name, "batch_tokens_per_s")
        share = 100.0 * batch / mean(UNCONTROLLED, "batch_tokens_per_s") if UNCONTROLLED in names else float("nan")
        lines.append(
            f"{name:20}{100 * mean(name, 'in_time'):10.1f}{mean(name, 'ttft_p50_ms'):13.0f}{p99:9.0f}{over:16.1f}"
            f"{batch:13.0f}{share:11.0f}{mean(name, 'tokens_per_s'):11.0f}{mean(name, 'batch_done_s'):14.1f}"
            f"{mean(name, 'preemptions'):13.0f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lines", choices=LINES, default="chat")
    parser.add_argument("--only", help="rows to run again, separated by semicolons; the others stay")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / f"fleet-colocation-{arguments.lines}"
    only = list(VARIANTS) if arguments.only is None else arguments.only.split(";")
    rows = [row for row in read_runs(out / RUNS) if row["policy"] not in only] if arguments.only else []
    for name in only:
        for seed in range(arguments.seeds):
            rows.append(measure(name, seed, arguments.lines))
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
            rows.sort(key=lambda row: (list(VARIANTS).index(row["policy"]), int(row["seed"])))
            write_runs(out / RUNS, rows)
        write_table(out, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
