"""What does a step cost beside vLLM's own part of it, part by part, with a fresh plan and with the last one reused?

Usage: python -m benchmarks.serving.step_overhead [--quick] [--hot] [--beside PYTHON] [--policies NAME ...]

A virtual engine is held at so many requests, of which so many run: another comes as one ends. Every second step makes a
plan, the others reuse it. Timed is thread CPU time, policies in turn; between two steps the caches are filled with
other data, as a server's other threads do, unless ``--hot``. Writes results/step-overhead.json.gz: medians and p99 over
the steps in µs, of ``ours`` in all, of each part, and of ``vllm``: its schedule() and update_from_output(); parts are
told apart in every second pair of steps, the whole is that of the others, since telling takes time too; and
of what is added to each request that comes (``add``, in no step) and that ends (``free``, in ``ours`` of its step too).
``--beside`` takes the interpreter of an environment with another commit: turns of the two alternate, since the speed of
a machine that others use changes, and the other's rows go into ``beside``.
"""

import itertools
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.serving.held_engine import CALLS, Stopwatch, engine_of, hold, requests_to_come

POLICIES = ("fcfs", "auto", *(f"{name}:step_budget=true" for name in ("edf", "econo", "andes", "sjf")))
MIXES = ((32, 32), (40, 32), (500, 250), (2000, 1000))
"""Requests in all, and how many may run."""
REPEATS = 2
STEPS = 200
"""Timed in each run."""

PARTS = {
    "snapshot": "rows, engine facts and ageing",
    "plan": "the policy's plan",
    "checks": "check and guards",
    "step_budget": "the tokens that the step may compute",
    "carry_out": "queues, pauses and limits",
    "booking": "admissions, counters, new tokens",
    "pace": "load of the step and how long it took",
    "told": "the policy is told of new tokens",
    "glue": "all else in schedule() and update_from_output()",
}
"""``adapter`` is the sum of all but ``plan`` and ``told``, which are the policy's own; ``planning`` of PLANNING."""
PLANNING = ("snapshot", "plan", "checks", "step_budget", "carry_out")
"""What a step's decision takes, all in."""
Cells = dict[str, dict[str, list[float]]]
"""Samples by what was measured, of each cell: policy, requests, how many may run, kind of plan."""


def watch(scheduler: Any, clock: Stopwatch) -> None:
    """Times all that is ours in a step, and has every second one make a plan."""
    from sloserve.engine import planner as planner_module
    from sloserve.vllm_plugin.engine import scheduler as scheduler_module
    from sloserve.vllm_plugin.engine.step_load import step_load

    def time_of(owner: Any, name: str, what: str) -> None:
        is_part = what != "glue" and what not in CALLS
        setattr(owner, name, clock.times(what, getattr(owner, name), is_part=is_part))

    clock.times_vllm(("schedule", "update_from_output", *CALLS.values()))
    for name in ("schedule", "update_from_output"):
        time_of(scheduler, name, "glue")
    for what, name in CALLS.items():
        time_of(scheduler, name, what)
    time_of(scheduler, "_count_step", "booking")
    time_of(scheduler, "_clock_output", "pace")
    time_of(scheduler.step_clock, "scheduled", "pace")
    scheduler_module.step_load = clock.times("pace", step_load, is_part=True)
    planner = scheduler.planner
    if planner is not None:
        toggle = itertools.cycle((True, False))
        planner.budget.allows = lambda now_s: next(toggle)
        time_of(planner, "_snapshot", "snapshot")
        time_of(planner.policy, "plan", "plan")
        time_of(planner.policy, "progressed", "told")
        time_of(planner, "next_step", "checks")
        time_of(planner_module, "limit_tokens", "step_budget")
        time_of(planner, "apply_plan", "carry_out")
        time_of(planner, "admitted", "booking")
        time_of(planner, "progressed", "booking")


def costs_s(policy: str, requests: int, running: int, seed: int, hot: bool) -> dict[bool, dict[str, list[float]]]:
    """Returns the seconds by part, and how many requests ran and waited, of each timed step with (True) or without a
    fresh plan.
    """
    engine = engine_of(policy, running)
    scheduler, clock = engine.scheduler, Stopwatch()
    watch(scheduler, clock)
    found: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    counts = scheduler.slo_counters
    plans = 0

    def stepped(number: int) -> None:
        nonlocal plans
        is_fresh, plans = counts["plans"] > plans, counts["plans"]
        if number >= 0:
            row = found[is_fresh]
            for what, calls in clock.calls.items():
                row.setdefault(what, []).extend(calls)
            now_running, waiting = scheduler.get_request_counts()
            sums = {"running": now_running, "waiting": waiting}
            ours = sum(clock.spent.values()) - clock.spent["vllm"] - clock.spent["add"]
            if clock.tells_parts:
                sums |= {what: clock.spent[what] for what in PARTS}
                sums["adapter"] = ours - clock.spent["plan"] - clock.spent["told"]
                sums["planning"] = sum(clock.spent[what] for what in PLANNING)
            else:
                sums |= {"ours": ours, "vllm": clock.spent["vllm"]}
            for what, value in sums.items():
                row.setdefault(what, []).append(value)
        clock.tells_parts = number // 2 % 2 == 0  # two steps with, a fresh plan and a reused one, and two without

    hold(engine, clock, requests_to_come(requests + 20 * running, seed), requests, STEPS, stepped, hot=hot)
    return found


def one_turn(policies: list[str], mixes: tuple[tuple[int, int], ...], seed: int, hot: bool) -> Cells:
    return {
        json.dumps((policy, requests, running, _KIND[is_fresh])): costs
        for (requests, running), policy in itertools.product(mixes, policies)
        for is_fresh, costs in costs_s(policy, requests, running, seed, hot).items()
    }


def rows_of(turns: list[Cells]) -> list[dict[str, Any]]:
    rows = []
    for cell_name in turns[0]:
        policy, requests, may_run, kind = json.loads(cell_name)
        cell: dict[str, list[float]] = {}
        for what, values in itertools.chain.from_iterable(turn[cell_name].items() for turn in turns):
            cell.setdefault(what, []).extend(values)
        if not cell:
            continue
        row: dict[str, Any] = {"policy": policy, "requests": requests, "may_run": may_run, "plan": kind}
        row |= {"steps": len(cell["ours"])}
        row |= {f"{name}_median": float(np.median(cell[name])) for name in ("running", "waiting")}
        row["share"] = round(float(np.median(cell["ours"]) / np.median(cell["vllm"])), 3)
        for what in ("ours", "vllm", "planning", "adapter", *PARTS, *(what for what in CALLS if cell.get(what))):
            for name, q in (("median", 50), ("p99", 99)):
                row[f"{what}_us_{name}"] = round(float(np.percentile(cell[what], q)) * 1e6, 1)
        rows.append(row)
    return rows


_KIND = {True: "fresh", False: "reused"}


def main() -> None:
    parser = parser_for(__doc__, quick=False)
    parser.add_argument("--out", type=Path, help="instead of step-overhead.json, and with --quick of nothing")
    parser.add_argument("--hot", action="store_true", help="leave the caches as the last step left them")
    parser.add_argument("--beside", metavar="PYTHON", help="interpreter of an environment with another commit")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--turn", type=int, help="prints the samples of one turn, with this seed, and ends")
    given = parser.parse_args()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    mixes, repeats = (((100, 50),), 1) if given.quick else (MIXES, REPEATS)
    if given.turn is not None:
        print(json.dumps(one_turn(given.policies, mixes, given.turn, given.hot)))
        return
    ours: list[Cells] = []
    others: list[Cells] = []
    for seed in range(repeats):
        turns = [(ours, sys.executable)] + ([(others, given.beside)] if given.beside else [])
        for found, python in turns if seed % 2 else turns[::-1]:
            command = [python, "-m", "benchmarks.serving.step_overhead", "--turn", str(seed)]
            command += ["--policies", *given.policies]
            done = subprocess.run(
                command + ["--quick"] * given.quick + ["--hot"] * given.hot,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
    rows = rows_of(ours)
    for row in rows:
        print(json.dumps(row))
    out = given.out or (None if given.quick else RESULTS / "step-overhead.json.gz")
    if out is not None:
        result = {"repeats": repeats, "hot": given.hot, "parts": PARTS, "rows": rows}
        if others:
            result["beside"] = rows_of(others)
        write_result(out, result)


if __name__ == "__main__":
    main()
