"""Section ``colocation`` of ``paced.py``: what runs, really and in virtual time, and what it shows."""

import asyncio
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.fleet.colocation import INTERACTIVE, Seated, full_step_ms
from benchmarks.fleet.colocation import requests as colocation_requests
from benchmarks.fleet.fleet_processes import PACED_ENGINE
from benchmarks.fleet.paced_fleet import PREDICTED, REAL, PacedFleet, StreamResult, of_log
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.experiment import MODEL, engine_class

Row = dict[str, Any]

SEQS, BEGIN_S, SECONDS, LINES = 256, 5.0, 30.0, 2_000
"""Slots of the engine; when streams begin and for how long they come, in seconds; lines of the batch."""
DRAIN_LIMIT_S = 90.0
STEP_BUDGET = "edf:step_budget=true"
ROWS = {
    "alone": ("fcfs", SEQS),
    "uncontrolled": ("fcfs", 16 * SEQS),
    "fcfs": ("fcfs", SEQS),
    "priority": ("fcfs", round(SEQS / 1.25)),
    "edf": (STEP_BUDGET, SEQS),
    "auto": ("auto", SEQS),
}
"""The engine's policy, and how many slots its agent counts with: 1.25 times as many lines are sent."""


def colocation_file() -> str:
    common = (*PACED_ENGINE, "--no-enable-prefix-caching", "--max-num-seqs", str(SEQS), "--policy")
    models = {
        name: {
            "profile": "h100-llama3-8b",
            "model": "builtin:tiny",
            "flags": {"max_num_seqs": seats, "max_num_batched_tokens": 2048, "max_model_len": 8192},
            "arguments": [*common, policy],
        }
        for name, (policy, seats) in ROWS.items()
    }
    classes = {
        "interactive": {"rank": 1, "ttft_ms": 500, "tpot_ms": 50},
        "batch": {"rank": 2, "e2e_ms": 3_600_000, "aged_after_s": 60},
    }
    made = {
        "models": models,
        "hosts": {"a": {"device": "h100", "devices": 1, "host_memory_gib": 200}},
        "switching": {"min_active_s": 1, "max_wait_s": 10, "drain_max_s": 30},
        "settings": {"classes": classes},
        "gateway": {"max_held": 4096, "max_requests": 8192, "hold_max_s": 300.0},
    }
    return json.dumps(made, indent=1)


def colocated(name: str, seed: int, model: str) -> list[WorkloadRequest]:
    """Lines at 0, interactive requests from BEGIN_S on; the same for every row of a seed but for the model's name."""
    fleet = parse_fleet(colocation_file())
    made = colocation_requests(fleet, seed, "chat", batch=name != "alone")
    lines = [r for r in made if r.slo.slo_class.name != INTERACTIVE][:LINES]
    streams = [replace(r, arrival_s=r.arrival_s + BEGIN_S) for r in made if r.slo.slo_class.name == INTERACTIVE]
    return [replace(r, model=model) for r in (*lines, *streams)]


def colocation_row(streams: Sequence[StreamResult], batch_tokens_per_s: float) -> Row:
    ttft_ms = np.array([1e3 * one.ttft_s for one in streams])
    in_time = [one.status == 200 and one.ttft_s <= 0.5 and one.tpot_s <= 0.05 for one in streams]
    tpot_ms = [1e3 * one.tpot_s for one in streams if one.request.output_tokens > 1 and one.status == 200]
    return {
        "in_time": statistics.fmean(in_time),
        "ttft_p50_ms": float(np.quantile(ttft_ms, 0.5)),
        "ttft_p99_ms": float(np.quantile(ttft_ms, 0.99)),
        "tpot_ms": statistics.fmean(tpot_ms),
        "batch_tokens_per_s": batch_tokens_per_s,
        "unanswered": sum(one.status != 200 for one in streams),
    }


async def colocation_real(fleet: PacedFleet, name: str, seed: int) -> Row:
    await fleet.until_served(name)
    requests = colocated(name, seed, name)
    lines = [r for r in requests if r.slo.slo_class.name != INTERACTIVE]
    streams = [r for r in requests if r.slo.slo_class.name == INTERACTIVE]
    loop, batch, sent = asyncio.get_running_loop(), None, []
    if name == "uncontrolled":
        begun_s = loop.time() + 1.0  # to write their bodies
        sent = [asyncio.create_task(fleet.stream(line, begun_s, seed)) for line in lines]
    elif lines:
        batch = await fleet.batch(lines, seed)
        async with asyncio.timeout(60.0):
            while (await fleet.reports())[0]["running"]["requests"] < SEQS:
                await asyncio.sleep(0.05)
        begun_s = loop.time()
    else:
        begun_s = loop.time()
    with fleet.hurried():
        return await _colocated(fleet, _Begun(name, streams, begun_s, seed, batch, sent, contended=bool(lines)))


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A run whose lines are under way, as a batch or as streams sent; its streams are still to come."""

    name: str
    streams: Sequence[WorkloadRequest]
    begun_s: float
    seed: int
    batch: str | None
    sent: "Sequence[asyncio.Task[StreamResult]]"
    contended: bool


async def _colocated(fleet: PacedFleet, run: _Begun) -> Row:
    end_s = run.begun_s + BEGIN_S + SECONDS
    loop, cpu_s = asyncio.get_running_loop(), fleet.cpu_s()
    asked = [asyncio.create_task(fleet.stream(one, run.begun_s, run.seed)) for one in run.streams]
    await asyncio.sleep(run.begun_s + BEGIN_S - loop.time())
    before = (await fleet.counted("vllm:generation_tokens_total")).get(run.name, 0.0)
    await asyncio.sleep(end_s - loop.time())
    tokens = (await fleet.counted("vllm:generation_tokens_total")).get(run.name, 0.0) - before
    cpu_s = fleet.cpu_s() - cpu_s
    await asyncio.wait(asked, timeout=DRAIN_LIMIT_S)
    for task in (*asked, *run.sent):
        task.cancel()
    found = [task.result() for task in await _settled(asked) if not task.cancelled()]
    if run.batch is not None:
        await fleet.cancel(run.batch)
    await until_idle(fleet)
    of_streams = sum(one.tokens_by(BEGIN_S + SECONDS) for one in found)
    late = max(one.sent_s - one.request.arrival_s for one in found)
    row = colocation_row(found, (tokens - of_streams) / SECONDS if run.contended else 0.0)
    return row | {"cpus": cpu_s / (BEGIN_S + SECONDS), "sent_late_ms": 1e3 * late}


async def _settled(tasks: Sequence["asyncio.Task[StreamResult]"]) -> Sequence["asyncio.Task[StreamResult]"]:
    await asyncio.gather(*tasks, return_exceptions=True)
    return tasks


async def until_idle(fleet: PacedFleet) -> None:
    async with asyncio.timeout(120.0):
        while any(one["running"]["requests"] for one in await fleet.reports()):
            await asyncio.sleep(0.2)


def colocation_predicted(name: str, seed: int) -> Row:
    policy, seats = ROWS[name]
    fleet = parse_fleet(colocation_file())
    flags = fleet.models[name].flags.model_copy(update={"max_num_seqs": SEQS})
    one = replace(fleet, models={name: replace(fleet.models[name], flags=flags)}, active={"a/0": name})
    dispatcher = LiveFleet(options=Seated(seats=seats), seed=seed)
    run = FleetRun(one, dispatcher, engine_class(MODEL), policy=None if policy == "fcfs" else policy, seed=seed)
    log = run.run(colocated(name, seed, name)).run
    streams = [of_log(r) for r in log.requests if r.request.slo.slo_class.name == INTERACTIVE]
    lines = [r for r in log.requests if r.request.slo.slo_class.name != INTERACTIVE]
    within = sum(int(((r.token_times_s > BEGIN_S) & (r.token_times_s <= BEGIN_S + SECONDS)).sum()) for r in lines)
    return colocation_row(streams, within / SECONDS)


def colocation_table(rows: Sequence[Row], mean: Callable[[str, str], float]) -> str:
    step_ms = full_step_ms()
    lines = [
        f"8 interactive requests/s for {SECONDS:g} s beside a batch; a full step is predicted to take {step_ms:.1f} ms",
        "",
        f"{'':24}{'in time %':>10}{'TTFT p50 ms':>13}{'p99 ms':>9}{'- alone, steps':>16}{'TPOT ms':>9}"
        f"{'batch tok/s':>13}{'% of unc.':>11}{'no reply':>10}{'cores':>7}",
    ]
    for name in dict.fromkeys(row["policy"].removesuffix(PREDICTED) for row in rows):
        for kind in (REAL, PREDICTED):
            alone, whole = mean("alone" + kind, "ttft_p99_ms"), mean("uncontrolled" + kind, "batch_tokens_per_s")
            name = name.removesuffix(PREDICTED) + kind
            over, batch = (mean(name, "ttft_p99_ms") - alone) / step_ms, mean(name, "batch_tokens_per_s")
            lines.append(
                f"{name:24}{100 * mean(name, 'in_time'):10.1f}{mean(name, 'ttft_p50_ms'):13.0f}"
                f"{mean(name, 'ttft_p99_ms'):9.0f}{over:16.1f}{mean(name, 'tpot_ms'):9.1f}{batch:13.0f}"
                f"{100 * batch / whole if whole else float('nan'):11.0f}{mean(name, 'unanswered'):10.1f}"
                f"{mean(name, 'cpus'):7.2f}"
            )
    return "\n".join(lines) + "\n"
