"""What does a recording cost the engine's steps?

Usage: python -m benchmarks.serving.record_cost [--quick] [--steps N]

A virtual engine is held at 500 requests, of which half run, as held_engine says. Timed is thread CPU time of all that
sloserve adds to the engine's thread for a recording, and the CPU time of the thread that writes it, with caches filled
with other data between steps; where plans are recorded too, without what the policy itself takes. Writes
results/record_cost.json.gz.
"""

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.serving.held_engine import Stopwatch, engine_of, hold, requests_to_come
from sloserve.engine.recording.recorder import Recorder
from sloserve.vllm_plugin.engine.recorded import Recorded

RUNS = (("fcfs", False), ("edf", False), ("auto", False), ("edf", True), ("auto", True))
"""Policies, and whether plans are recorded as well."""
REQUESTS, STEPS = 500, 300
PARTS = ("arrived", "stepped", "output", "preempting", "preempted", "ended")


def measure(policy: str, plans: bool, requests: int, steps: int, folder: Path) -> dict[str, Any]:
    engine, clock = engine_of(policy, requests // 2), Stopwatch()
    scheduler, written_s = engine.scheduler, [0.0]
    write = Recorder._write

    def timed_write(self: Recorder) -> None:
        before_s = time.thread_time()
        write(self)
        written_s[0] += time.thread_time() - before_s

    Recorder._write = timed_write  # type: ignore[method-assign]
    stem = f"{policy}-{plans}"
    recorded = Recorded(scheduler, folder, stem, 64 << 20, engine._clock)
    for name in PARTS:
        setattr(recorded, name, clock.times("recorded", getattr(recorded, name)))
    scheduler.record(recorded)
    if plans:
        log = recorded.log_of_plans()
        log._contained = clock.times("recorded", log._contained)  # type: ignore[method-assign]
        scheduler.record_plans(log)
    clock.times_vllm()
    found: dict[str, list[float]] = {"vllm": [], "recorded": []}

    def stepped(number: int) -> None:
        if number >= 0:
            for what in found:
                found[what].append(clock.spent[what] * 1e6)

    hold(engine, clock, requests_to_come(requests * 60, 0), requests, steps, stepped)
    recorded.close()
    Recorder._write = write  # type: ignore[method-assign]
    size = sum(path.stat().st_size for path in folder.glob(f"{stem}-*"))
    vllm_us, ours_us = (float(np.mean(found[what])) for what in found)
    return {
        "policy": policy,
        "plans": plans,
        "requests": requests,
        "steps": len(found["vllm"]),
        "vllm_us": round(vllm_us, 1),
        "recorded_us_mean": round(ours_us, 1),
        "recorded_share_of_vllm": round(ours_us / vllm_us, 4),
        "written_us_mean": round(written_s[0] * 1e6 / max(len(found["vllm"]), 1), 1),
        "bytes_a_step": round(size / max(len(found["vllm"]), 1), 1),
    }


def main() -> None:
    given = parser_for(__doc__, quick=False, steps=STEPS).parse_args()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for policy, plans in RUNS:
            size, steps = (50, 60) if given.quick else (REQUESTS, given.steps)
            rows.append(measure(policy, plans, size, steps, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    if not given.quick:
        write_result(RESULTS / "record_cost.json.gz", {"rows": rows})


if __name__ == "__main__":
    main()
