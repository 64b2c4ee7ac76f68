"""What does OpenTelemetry tracing cost the engine's steps: the way of each request, kept for its span?

Usage: python -m benchmarks.serving.trace_cost [--quick] [--steps N]

A virtual engine is held at 500 requests, of which half run, as held_engine says. Timed is thread CPU time of all that
sloserve adds for traces, with caches filled with other data between steps, in all and before the device has its step.
Writes results/trace_cost.json.gz.
"""

import json
import logging
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.serving.held_engine import Stopwatch, engine_of, hold, requests_to_come

POLICIES = ("fcfs", "edf", "auto")
REQUESTS, STEPS = 500, 300
PARTS = ("stepped", "preempting", "preempted", "ended")


def measure(policy: str, requests: int, steps: int) -> dict[str, Any]:
    engine, clock = engine_of(policy, requests // 2), Stopwatch()
    scheduler = engine.scheduler
    traced = scheduler.trace()
    for name in PARTS:
        setattr(traced, name, clock.times("traced", getattr(traced, name)))
    clock.times_vllm()
    schedule, early = scheduler.schedule, 0.0

    def scheduled(*args: Any, **kwargs: Any) -> Any:
        nonlocal early
        before_s = clock.spent["traced"]
        try:
            return schedule(*args, **kwargs)
        finally:
            early = clock.spent["traced"] - before_s

    scheduler.schedule = scheduled
    found: dict[str, list[float]] = {"vllm": [], "traced": [], "early": []}

    def stepped(number: int) -> None:
        if number >= 0:
            for what, spent_s in (("vllm", clock.spent["vllm"]), ("traced", clock.spent["traced"]), ("early", early)):
                found[what].append(spent_s * 1e6)

    hold(engine, clock, requests_to_come(requests * 60, 0), requests, steps, stepped)
    vllm_us = float(np.mean(found["vllm"]))
    return {
        "policy": policy,
        "requests": requests,
        "steps": len(found["vllm"]),
        "vllm_us": round(vllm_us, 1),
        "traced_us_median": round(float(np.median(found["traced"])), 1),
        "traced_us_mean": round(float(np.mean(found["traced"])), 1),
        "traced_share_of_vllm": round(float(np.mean(found["traced"])) / vllm_us, 4),
        "held_up_us_mean": round(float(np.mean(found["early"])), 1),
        "held_up_share_of_vllm": round(float(np.mean(found["early"])) / vllm_us, 4),
    }


def main() -> None:
    given = parser_for(__doc__, quick=False, steps=STEPS).parse_args()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    rows = []
    for policy in POLICIES:
        rows.append(measure(policy, 50 if given.quick else REQUESTS, 60 if given.quick else given.steps))
        print(json.dumps(rows[-1]), flush=True)
    if not given.quick:
        write_result(RESULTS / "trace_cost.json.gz", {"rows": rows})


if __name__ == "__main__":
    main()
