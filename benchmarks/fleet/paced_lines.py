"""Section ``lines`` of ``paced.py``: files that are due in a minute beside long lines that fill an engine's places."""

import asyncio
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from benchmarks.fleet.batch_lines import ONE_MODEL, SHORT, Cell, Files, Lengths, Variant
from benchmarks.fleet.fleet_processes import PACED_ENGINE
from benchmarks.fleet.paced_fleet import PacedFleet
from benchmarks.fleet.paced_models import line_ends, serves

Row = dict[str, Any]
CELL = Cell(
    "lines",
    ONE_MODEL,
    1,
    (Files(0.0, 24, (1800,), (Lengths(150.0, 6000.0, 8000, 0.1),)), Files(20.0, 8, (60,), (SHORT,))),
    0.0,
    60.0,
    seats=8,
    profile="b200-llama3-70b-fp8",
)
"""A long line takes two minutes, so that no place becomes free while the other files are due."""
END_S = 125.0
"""Seconds from the begin to the end of a row, when the last file is due."""
PLANNERS = ("qlm", "edf", "on-demand")


def lines_file(planner: str = "qlm") -> str:
    flags = {"max_num_seqs": CELL.seats, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    arguments = [*PACED_ENGINE, "--no-enable-prefix-caching", "--policy", "fcfs"]
    chat = {"profile": CELL.profile, "model": "builtin:tiny", "flags": flags, "arguments": arguments}
    return json.dumps(
        {
            "models": {"chat": chat | {"active_on": ["a/0"]}},
            "hosts": {"a": {"device": "b200", "devices": 1, "host_memory_gib": 400}},
            "settings": {"classes": {"batch": {"rank": 2, "e2e_ms": 86_400_000, "aged_after_s": 60}}},
            "planner": planner,
        },
        indent=1,
    )


async def lines_real(fleet: PacedFleet, name: str, seed: int) -> Row:
    fleet.stop("planner")
    fleet.file.write_text(lines_file(name), encoding="utf-8")
    fleet.start("planner")
    async with asyncio.timeout(240.0):
        while [serves(one) for one in await fleet.reports()] != ["chat"]:
            await asyncio.sleep(0.5)
    loop, batches = asyncio.get_running_loop(), {}
    requests = CELL.requests(CELL.fleet(), seed)
    with fleet.hurried():
        begun_s = loop.time()
        for at_s, of_file in groupby(requests, key=lambda one: one.arrival_s):
            await asyncio.sleep(max(begun_s + at_s - loop.time(), 0.0))
            lines = list(of_file)
            window_s = int(lines[0].slo.slo_class.name.removeprefix("w"))
            batches[await fleet.batch(lines, seed, f"{window_s // 60}m")] = window_s
        await asyncio.sleep(begun_s + END_S - loop.time())
    ends_s, left = line_ends(fleet, [batch for batch, window_s in batches.items() if window_s == 60])
    for batch in batches:
        await fleet.cancel(batch)
    async with asyncio.timeout(120.0):
        while any(one["running"]["requests"] for one in await fleet.reports()):
            await asyncio.sleep(0.2)
    done_s = [end_s for end_s in ends_s if end_s is not None]
    row = {"w60": len(done_s) / (len(ends_s) + left), "lines": len(ends_s) + left}
    return row | ({"mean_s": statistics.fmean(done_s)} if done_s else {})


def lines_predicted(name: str, seed: int) -> Row:
    row = Variant(name).run(CELL, seed)
    return {"w60": row["w60"]}


def lines_table(rows: Sequence[Row], mean: Callable[[str, str], float]) -> str:
    long, urgent = CELL.files
    lines = [
        f"{long.lines} lines of some {long.lengths[0].output:g} tokens on an engine of {CELL.seats} seats, and files "
        f"of some {urgent.lines} lines that are due in a minute",
        "",
        f"{'':24}{'in time %':>10}{'mean s':>8}",
    ]
    for name in dict.fromkeys(row["policy"] for row in rows):
        lines.append(f"{name:24}{100 * mean(name, 'w60'):10.1f}{mean(name, 'mean_s'):8.1f}")
    return "\n".join(lines) + "\n"
