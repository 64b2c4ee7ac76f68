"""How many instance hours does a fleet need whose hosts come and go, and what does that cost in deadlines?

A generated day in an hour: requests of one model, the rate between a tenth of its peak at night and the peak in the
afternoon, with two bursts of half as many again for 20 minutes of the day. A fleet in virtual time (``simulate
--fleet``'s engines, the live fleet's own gateway, planner and agents) with ``MOST`` hosts of one instance; a host takes
requests START_S after it was asked for. The rules, with the same hold times (``pool.scaling``):

- ``want``: what ``sloserve fleet`` asks Ray's autoscaler for (``fleet/planning/scaling.py``);
- ``utilisation``: as KEDA or a HorizontalPodAutoscaler: instances times the share of places in use, over a target;
- ``fixed N``: N hosts all day.

    python -m benchmarks.fleet.scaling [--seeds 3] [--quick]

Prints and writes benchmarks/results/fleet_scaling.json.gz: share of requests that met their target, by class, instance
hours, and those over the hours of the smallest fixed fleet whose attainment is within a point of the largest's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.fleet.scaled_fleet import Hosts, Needed, ScaledFleet
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.contract.plan_in_force import Plan
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.scaling import instances_needed
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import duration_s, summarize
from sloserve.sim.workloads.multi_model import FleetWorkload
from sloserve.sim.workloads.seeding import stream

MOST, PLACES, PEAK_RPS, DAY_S = 6, 8, 2.0, 3600.0
"""MOST hosts all day keep 99 % of the requests at this peak; at 3 they keep 77, and no rule could use fewer hosts."""
START_S, UP_S, DOWN_S = 60.0, 30.0, 300.0
NIGHT, BURST, BURST_S = 0.1, 1.5, DAY_S / 72.0
QUICK_S = 120.0
FIXED = (6, 4, 5, 3)
TARGETS = (0.7, 0.5, 0.9)
"""Of the share of places in use, under ``utilisation``."""
FILE = """
models: {{chat: {{profile: a800-qwen2.5-32b, flags: {{max_num_seqs: {places}}}}}}}
hosts:
{hosts}
switching: {{min_active_s: 5, max_wait_s: 30, drain_max_s: 30}}
settings:
  policy: edf
  classes:
    interactive: {{rank: 1, ttft_ms: 5000, aged_after_s: 60}}
    batch: {{rank: 2, e2e_ms: 600000, aged_after_s: 600}}
"""


def fleet_of(hosts: int) -> Fleet:
    lines = [f"  n{k}: {{device: a800, devices: 1}}" for k in range(hosts)]
    return parse_fleet(FILE.format(places=PLACES, hosts="\n".join(lines)))


def day(seed: int, day_s: float) -> list[WorkloadRequest]:
    """What arrives: Poisson arrivals of rate 1, at the times at which so many are expected."""
    at_s = np.linspace(0.0, day_s, 2001)
    part = at_s / day_s
    rate = NIGHT + (1.0 - NIGHT) * (1.0 - np.cos(2.0 * np.pi * (part - 3.0 / 24.0))) / 2.0  # least at 3, most at 15
    burst = BURST_S * day_s / DAY_S
    for begin_s in stream(seed, "scaling/bursts").random(2) * (day_s - burst):
        rate[(at_s >= begin_s) & (at_s < begin_s + burst)] *= BURST
    expected = np.concatenate([[0.0], np.cumsum(PEAK_RPS * rate[1:] * np.diff(at_s))])
    workload = FleetWorkload("w-b", latency_share=0.5)
    made = FleetExperiment(fleet_of(1), workload, ("qlm",), (1.0,), max_requests=int(expected[-1])).requests(seed, 1.0)
    return [
        replace(one, arrival_s=float(np.interp(one.arrival_s, expected, at_s)))
        for one in made
        if one.arrival_s < expected[-1]
    ]


def want(plan: Plan, reports: Sequence[AgentReport]) -> int:
    return instances_needed(plan)


def utilisation(target: float, plan: Plan, reports: Sequence[AgentReport]) -> int:
    """The formula of a HorizontalPodAutoscaler."""
    instances = [one for report in reports for one in report.instances]
    used = sum(one.running.requests for one in instances) / PLACES
    return max(math.ceil(used / target), 1)


def run(name: str, needed: Needed, hosts: Hosts, most: int, seed: int, day_s: float) -> dict[str, Any]:
    """One day under one rule."""
    dispatcher = ScaledFleet(needed, hosts, seed=seed)
    log = FleetRun(fleet_of(most), dispatcher, ModelEngine, policy=None, seed=seed).run(day(seed, day_s)).run
    found = summarize(log, policy=name, seed=seed, rps=PEAK_RPS)
    by_class = found["slo_attainment_by_class"]
    return {
        "rule": name,
        "seed": seed,
        "requests": found["requests"],
        "lost": found["lost"],
        "attainment": found["slo_attainment"],
        "interactive": by_class["interactive"],
        "batch": by_class["batch"],
        "hours": dispatcher.used_s(max(duration_s(log), day_s)) / 3600.0,
        "most_hosts": dispatcher.most_hosts,
    }


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Means over seeds."""
    rules = list(dict.fromkeys(run["rule"] for run in runs))

    def mean(rule: str, key: str) -> float:
        return float(np.mean([run[key] for run in runs if run["rule"] == rule]))

    fixed = [rule for rule in rules if rule.startswith("fixed")]
    best = max(mean(rule, "attainment") for rule in fixed)
    enough = min(
        (rule for rule in fixed if mean(rule, "attainment") >= best - 0.01), key=lambda rule: mean(rule, "hours")
    )
    rows = [["rule", "in time %", "interactive %", "batch %", "hosts at most", "instance h", f"of {enough} %"]]
    for rule in rules:
        shares = [f"{100.0 * mean(rule, key):.1f}" for key in ("attainment", "interactive", "batch")]
        hours = mean(rule, "hours")
        part = 100.0 * hours / mean(enough, "hours")
        rows.append([rule, *shares, f"{mean(rule, 'most_hosts'):.1f}", f"{hours:.2f}", f"{part:.0f}"])
    return aligned(rows).splitlines()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two rules, one seed, two minutes; writes nothing")
    args = parser.parse_args()
    scaled = Hosts(1, START_S, UP_S, DOWN_S)
    rules: dict[str, tuple[Needed, Hosts, int]] = {"want": (want, scaled, MOST)}
    rules |= {f"fixed {n}": (want, replace(scaled, least=n), n) for n in ((3,) if args.quick else FIXED)}
    if not args.quick:
        rules |= {f"utilisation {one:g}": (partial(utilisation, one), scaled, MOST) for one in TARGETS}
    conditions = {"start_s": START_S, "up_s": UP_S, "down_s": DOWN_S, "peak_rps": PEAK_RPS, "places": PLACES}
    runs: list[dict[str, Any]] = []
    for seed in range(1 if args.quick else args.seeds):
        for name, rule in rules.items():
            runs.append(run(name, *rule, seed, QUICK_S if args.quick else DAY_S))
            print(runs[-1], flush=True)
            if len(runs) > 1 and not args.quick:  # what is there stays if it is stopped
                write_result(
                    RESULTS / "fleet_scaling.json.gz", {"conditions": conditions, "table": table(runs), "runs": runs}
                )
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
