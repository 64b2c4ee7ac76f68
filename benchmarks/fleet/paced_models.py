"""Sections of ``paced.py`` with several models or nodes, and ``rounds``: what runs, really and in virtual time."""

import asyncio
import json
import math
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.fleet.fleet_processes import PACED_ENGINE
from benchmarks.fleet.paced_fleet import PacedFleet, StreamResult, of_log
from sloserve.core.request import WorkloadRequest
from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup, to_json
from sloserve.fleet.contract.reports import agent_report
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatchers.by_name import FleetRunName
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.fleet.store.records import StoredPlan
from sloserve.fleet.store.store import Store, open_store
from sloserve.sim.experiment import MODEL, engine_class
from sloserve.sim.workloads.multi_model import FleetWorkload

Row = dict[str, Any]
INTERACTIVE = "interactive"
H100, LLAMA2 = "h100-llama3-8b", "h100-llama2-7b"
MODELS = {
    "chat": (H100, 0.5),
    "code": (H100, 0.3),
    "legal": (LLAMA2, 0.05),
    "medical": (LLAMA2, 0.05),
    "poems": (LLAMA2, 0.05),
    "translate": (H100, 0.05),
}
"""Those of configs/fleet.yaml: profile, and share of the requests."""
BEGIN_WITH = ("chat", "chat", "code", "legal")
SEATS, SECONDS, FILE_EVERY_S, BATCH_S, INTERACTIVE_S = 8, 60.0, 5.0, 120.0, 20.0
"""Few seats, so that 10 requests/s fill four engines: two cores do no more."""
STREAMS = "w-a:latency_share=0.7:tail_share=0.5"


@dataclass(frozen=True, slots=True)
class Cell:
    """A section: requests a second, the workload, its models as in :data:`MODELS`, which of them the engines begin
    with, and the hosts, with one engine each, if not one has them all.
    """

    rps: float
    workload: str
    models: Mapping[str, tuple[str, float]] = field(default_factory=lambda: MODELS)
    begin_with: tuple[str, ...] = BEGIN_WITH
    nodes: tuple[str, ...] = ()

    @property
    def instances(self) -> list[str]:
        return [f"{node}/0" for node in self.nodes] or [f"a/{k}" for k in range(len(self.begin_with))]


NODES = ("n1", "n2", "n3")
CELLS = {
    "models": Cell(10.0, "w-a"),
    "streams": Cell(11.0, STREAMS),
    "crowded": Cell(15.0, STREAMS),
    "mixed": Cell(17.0, "w-a:latency_share=0.5"),
    "nodes": Cell(16.0, "w-a:latency_share=0.8", {"chat": (H100, 1.0)}, ("chat",) * len(NODES), NODES),
}
END_LIMIT_S = 100.0
PLANNERS = ("on-demand", "collate:max_wait_s=5", "collate:max_wait_s=10", "edf", "qlm")
ROUNDS, ROUNDS_RPS, ROUNDS_SECONDS, ROUNDS_ENGINES = 12, 12.0, 45.0, 4
ROUNDS_ON = [f"a/{i}" for i in range(ROUNDS_ENGINES)]
ROUTING = {"affinity": True, "without": False}


def _models(named: Mapping[str, tuple[str, float]], seats: int, active_on: dict[str, list[str]], caching: bool) -> Row:
    flag = "--enable-prefix-caching" if caching else "--no-enable-prefix-caching"
    return {
        name: {
            "profile": profile,
            "share": share,
            "tail": share < 0.1,
            "model": "builtin:tiny",
            "flags": {"max_num_seqs": seats, "max_num_batched_tokens": 2048, "max_model_len": 8192},
            "arguments": [*PACED_ENGINE, flag, "--policy", "fcfs"],
            "active_on": active_on.get(name, []),
        }
        for name, (profile, share) in named.items()
    }


def models_file(section: str, planner: str = "qlm", *, joining: bool = False) -> str:
    """joining: nodes stand in no section, and announce themselves, which no simulation knows."""
    cell = CELLS[section]
    placed: dict[str, list[str]] = {}
    for instance, name in zip(cell.instances, cell.begin_with, strict=True):
        placed.setdefault(name, []).append(instance)
    one = {"device": "h100", "devices": 1, "host_memory_gib": 400}
    hosts: Row = {"hosts": {node: one for node in cell.nodes} or {"a": one | {"devices": len(cell.begin_with)}}}
    if joining:
        placed, hosts = {}, {"pool": {"devices": {"h100": {"devices": 1, "host_memory_gib": 400}}}}
    classes = {
        "interactive": {"rank": 1, "e2e_ms": 1e3 * INTERACTIVE_S},
        "batch": {"rank": 2, "e2e_ms": 1e3 * BATCH_S, "aged_after_s": 60},
    }
    return json.dumps(
        {
            "models": _models(cell.models, SEATS, placed, caching=False),
            **hosts,
            "switching": {"min_active_s": 2.0, "max_wait_s": 15.0, "drain_max_s": 20.0},
            "settings": {"classes": classes},
            "gateway": {"max_held": 4096, "max_requests": 8192, "hold_max_s": 300.0},
            "planner": planner,
        },
        indent=1,
    )


def w_a(section: str, fleet: Fleet, seed: int) -> list[WorkloadRequest]:
    """Lines arrive with the file that they are in, every FILE_EVERY_S."""
    cell = CELLS[section]
    workload, count = FleetWorkload.parse(cell.workload), round(cell.rps * SECONDS)
    experiment = FleetExperiment(fleet, workload, ("qlm",), (cell.rps,), (seed,), max_requests=count)
    made = [
        r if r.slo.slo_class.name == INTERACTIVE else replace(r, arrival_s=_next_file_s(r.arrival_s))
        for r in experiment.requests(seed, cell.rps)
    ]
    return sorted(made, key=lambda r: r.arrival_s)


def _next_file_s(arrival_s: float) -> float:
    return FILE_EVERY_S * math.ceil(arrival_s / FILE_EVERY_S)


async def models_real(section: str, fleet: PacedFleet, name: str, seed: int) -> Row:
    await _to_begin(fleet, CELLS[section], models_file(section, name, joining=bool(CELLS[section].nodes)))
    requests = w_a(section, parse_fleet(models_file(section)), seed)
    loop = asyncio.get_running_loop()
    came = _swaps(fleet)
    with fleet.hurried():
        begun_s, cpu_s = loop.time() + 0.5, fleet.cpu_s()
        streams = [r for r in requests if r.slo.slo_class.name == INTERACTIVE]
        asked = [asyncio.create_task(fleet.stream(one, begun_s, seed)) for one in streams]
        batches: dict[str, float] = {}
        for at_s in sorted({r.arrival_s for r in requests if r.slo.slo_class.name != INTERACTIVE}):
            of_file = [r for r in requests if r.arrival_s == at_s and r.slo.slo_class.name != INTERACTIVE]
            await asyncio.sleep(max(begun_s + at_s - loop.time(), 0.0))
            batches[await fleet.batch(of_file, seed, f"{round(BATCH_S / 60)}m")] = at_s
        limit_s = begun_s + SECONDS + END_LIMIT_S
        await asyncio.wait(asked, timeout=max(limit_s - loop.time(), 0.1))
        while loop.time() < limit_s and line_ends(fleet, batches)[1]:
            await asyncio.sleep(0.5)
        cpus = (fleet.cpu_s() - cpu_s) / (loop.time() - begun_s)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    found = [task.result() for task in asked if not task.cancelled()]
    found += [StreamResult(one, 0.0) for one in streams[len(found) :]]
    ends_s, left = line_ends(fleet, batches)
    took_s = [end_s for end_s in ends_s if end_s is not None]
    row = models_row(found, [s if s is not None else math.inf for s in ends_s] + [math.inf] * left)
    return row | {
        "swaps": _swaps(fleet) - came,
        "unanswered": sum(one.status != 200 for one in found),
        "lines_left": left,
        "lines_expired": len(ends_s) - len(took_s),
        "cpus": cpus,
        "sent_late_ms": 1e3 * max(one.sent_s - one.request.arrival_s for one in found),
    }


def line_ends(fleet: PacedFleet, batches: Iterable[str]) -> tuple[list[float | None], int]:
    """Seconds that each line took that has ended, ``None`` for one without a reply; and how many have not ended."""
    with sqlite3.connect(f"file:{fleet.state / 'store.sqlite'}?mode=ro", uri=True, timeout=10.0) as opened:
        rows = [
            row
            for batch in batches
            for row in opened.execute(
                "SELECT state, finished_s - created_s FROM request WHERE batch = ?", (batch,)
            ).fetchall()
        ]
    ended = [float(s) if state == "done" else None for state, s in rows if state not in ("queued", "claimed")]
    return ended, len(rows) - len(ended)


def _swaps(fleet: PacedFleet) -> int:
    logs = [log.read_text(encoding="utf-8") for log in fleet.folder.glob("agent*.log")]
    return sum(" by method " in line for log in logs for line in log.splitlines())


async def _to_begin(fleet: PacedFleet, cell: Cell, text: str) -> None:
    """Brings the models to begin with by a plan of our own, and every model on each instance once; then the planner."""
    fleet.stop("planner")
    names, on, store = list(cell.models), cell.instances, open_store(fleet.store)
    try:
        if not fleet.warmed:
            for turn in range(1, len(names)):
                await _bring(store, {one: names[(i + turn) % len(names)] for i, one in enumerate(on)})
            fleet.warmed = True
        await _bring(store, dict(zip(on, cell.begin_with, strict=True)))
        store.members.lead("benchmark", 0.1)
    finally:
        store.close()
    fleet.file.write_text(text, encoding="utf-8")
    fleet.start("planner")
    await asyncio.sleep(4.0)


async def _bring(store: Store, wanted: Mapping[str, str]) -> None:
    """wanted: by instance."""
    async with asyncio.timeout(200.0):
        while True:
            term = store.members.lead("benchmark", 30.0)
            stored = store.members.plan()
            version = 1 if stored is None or stored.term != term else stored.version + 1
            queues = {
                instance: (PlannedGroup(-1 - i, model, INTERACTIVE),)
                for i, (instance, model) in enumerate(wanted.items())
            }
            if term is not None:
                plan = StoredPlan(term, version, to_json(PlanInForce(store.now_s(), queues)))
                store.members.write_plan("benchmark", plan)
            said = [one for row in store.members.agents() if (one := agent_report(row.state)) is not None]
            serving = [one for agent in said for one in agent.instances if one.phase is Phase.SERVING]
            if {one.name: one.active for one in serving} == wanted:
                return
            await asyncio.sleep(1.0)


def models_row(streams: Sequence[StreamResult], lines_s: Sequence[float]) -> Row:
    in_time = [one.status == 200 and one.e2e_s <= INTERACTIVE_S for one in streams]
    lines = [seconds <= BATCH_S for seconds in lines_s]
    return {
        "in_time": statistics.fmean([*in_time, *lines]),
        "interactive": statistics.fmean(in_time),
        "batch": statistics.fmean(lines),
        "hol_s": statistics.fmean([min(one.ttft_s, END_LIMIT_S) for one in streams]),
        "e2e_p95_s": float(np.quantile([min(one.e2e_s, END_LIMIT_S) for one in streams], 0.95)),
        "line_s": statistics.fmean([min(seconds, BATCH_S) for seconds in lines_s]),
    }


def models_predicted(section: str, name: str, seed: int) -> Row:
    fleet = parse_fleet(models_file(section, name))
    requests = w_a(section, fleet, seed)
    # Engines have stock's order, and limits say how long replies will be, as those of the real requests do.
    run = FleetRun(fleet, FleetRunName.parse(name).make(seed), engine_class(MODEL), policy=None, seed=seed, oracle=True)
    log = run.run(requests)
    logs = [of_log(r) for r in log.run.requests]
    streams = [one for one in logs if one.request.slo.slo_class.name == INTERACTIVE]
    lines_s = [one.e2e_s for one in logs if one.request.slo.slo_class.name != INTERACTIVE]
    return models_row(streams, lines_s) | {"swaps": sum(span.phase is Phase.SWITCHING for span in log.spans)}


def models_table(section: str, rows: Sequence[Row], mean: Callable[[str, str], float]) -> str:
    cell, hosts = CELLS[section], ", each on a host of its own" if CELLS[section].nodes else ""
    lines = [
        f"{len(cell.models)} models on {len(cell.begin_with)} engines of {SEATS} seats{hosts}, {cell.rps:g} requests/s "
        f"of {cell.workload} for {SECONDS:g} s; interactive within {INTERACTIVE_S:g} s, lines within {BATCH_S:g} s",
        "",
        f"{'':32}{'in time %':>10}{'interactive':>12}{'lines':>7}{'TTFT s':>8}{'e2e p95 s':>11}{'line s':>8}"
        f"{'swaps':>7}{'no reply':>10}{'cores':>7}",
    ]
    for name in dict.fromkeys(row["policy"] for row in rows):
        lines.append(
            f"{name:32}{100 * mean(name, 'in_time'):10.1f}{100 * mean(name, 'interactive'):12.1f}"
            f"{100 * mean(name, 'batch'):7.1f}{mean(name, 'hol_s'):8.1f}{mean(name, 'e2e_p95_s'):11.1f}"
            f"{mean(name, 'line_s'):8.1f}{mean(name, 'swaps'):7.0f}{mean(name, 'unanswered'):10.0f}"
            f"{mean(name, 'cpus'):7.2f}"
        )
    return "\n".join(lines) + "\n"


# Conversations.


def serves(report: Row) -> str | None:
    if report["phase"] != "serving":
        return None
    return next((model for model, state in report["models"].items() if state == "active"), None)


def rounds_file(affinity: bool = True) -> str:
    return json.dumps(
        {
            "models": _models({"chat": (H100, 1.0)}, 64, {"chat": ROUNDS_ON}, caching=True),
            "hosts": {"a": {"device": "h100", "devices": ROUNDS_ENGINES, "host_memory_gib": 64}},
            "settings": {"classes": {"interactive": {"rank": 1, "ttft_ms": 2000}}},
            "gateway": {"affinity": affinity, "max_requests": 8192},
        },
        indent=1,
    )


def conversations(fleet: Fleet, seed: int) -> list[WorkloadRequest]:
    workload = FleetWorkload.parse(f"w-b:rounds={ROUNDS}:latency_share=1")
    count = round(ROUNDS_RPS * ROUNDS_SECONDS)
    made = FleetExperiment(fleet, workload, ("qlm",), (ROUNDS_RPS,), (seed,), max_requests=count)
    return [r for r in made.requests(seed, ROUNDS_RPS) if r.prompt_tokens + r.output_tokens < 8192]


async def rounds_real(fleet: PacedFleet, name: str, seed: int) -> Row:
    fleet.file.write_text(rounds_file(ROUTING[name]), encoding="utf-8")
    fleet.start_gateway()
    await fleet.until_served("chat")
    async with asyncio.timeout(60.0):
        while [serves(one) for one in await fleet.reports()] != ["chat"] * ROUNDS_ENGINES:
            await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)
    loop, requests = asyncio.get_running_loop(), conversations(parse_fleet(rounds_file()), seed)
    # Prefixes of a row are its own, so that it finds nothing of another row's in the caches.
    shift = 1_000_003 * (1 + list(ROUTING).index(name))
    own = [replace(r, prefix_ids=tuple(p + shift for p in r.prefix_ids)) for r in requests]
    with fleet.hurried():
        before, begun_s, cpu_s = await _cached(fleet), loop.time() + 0.5, fleet.cpu_s()
        found = await asyncio.gather(*(fleet.stream(one, begun_s, seed) for one in own))
        cpus = (fleet.cpu_s() - cpu_s) / (loop.time() - begun_s)
    hits, asked = (after - was for after, was in zip(await _cached(fleet), before, strict=True))
    return rounds_row(found) | {
        "hits": hits / asked,
        "unanswered": sum(one.status != 200 for one in found),
        "cpus": cpus,
        "sent_late_ms": 1e3 * max(one.sent_s - one.request.arrival_s for one in found),
    }


async def _cached(fleet: PacedFleet) -> tuple[float, float]:
    """Tokens of prompts that were found in prefix caches, and all that were looked for."""
    counted = [await fleet.counted(f"vllm:prefix_cache_{kind}_total") for kind in ("hits", "queries")]
    return counted[0].get("chat", 0.0), counted[1].get("chat", 0.0)


def rounds_row(streams: Sequence[StreamResult]) -> Row:
    ttft_ms = [1e3 * one.ttft_s for one in streams]
    return {
        "ttft_mean_ms": statistics.fmean(ttft_ms),
        "ttft_p50_ms": float(np.quantile(ttft_ms, 0.5)),
        "ttft_p99_ms": float(np.quantile(ttft_ms, 0.99)),
        "tpot_ms": statistics.fmean(1e3 * one.tpot_s for one in streams if one.request.output_tokens > 1),
        "e2e_s": statistics.fmean(one.e2e_s for one in streams),
    }


def rounds_predicted(name: str, seed: int) -> Row:
    fleet = parse_fleet(rounds_file())
    dispatcher = FleetRunName.parse(f"qlm:prefixes={'true' if ROUTING[name] else 'false'}").make(seed)
    run = FleetRun(fleet, dispatcher, engine_class(MODEL), policy=None, seed=seed, prefix_caching=True)
    log = run.run(conversations(fleet, seed)).run
    return rounds_row([of_log(r) for r in log.requests])


def rounds_table(rows: Sequence[Row], mean: Callable[[str, str], float]) -> str:
    lines = [
        f"conversations of {ROUNDS} rounds on {ROUNDS_ENGINES} engines, {ROUNDS_RPS:g} requests/s "
        f"for {ROUNDS_SECONDS:g} s",
        "",
        f"{'':24}{'cached %':>9}{'TTFT mean ms':>14}{'p50':>6}{'p99':>7}{'TPOT ms':>9}{'e2e s':>7}{'no reply':>10}"
        f"{'cores':>7}",
    ]
    for name in dict.fromkeys(row["policy"] for row in rows):
        lines.append(
            f"{name:24}{100 * mean(name, 'hits'):9.1f}{mean(name, 'ttft_mean_ms'):14.1f}"
            f"{mean(name, 'ttft_p50_ms'):6.0f}{mean(name, 'ttft_p99_ms'):7.0f}"
            f"{mean(name, 'tpot_ms'):9.2f}{mean(name, 'e2e_s'):7.2f}{mean(name, 'unanswered'):10.0f}"
            f"{mean(name, 'cpus'):7.2f}"
        )
    return "\n".join(lines) + "\n"
