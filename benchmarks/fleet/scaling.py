"""How many instance hours does a fleet need whose hosts come and go, and what does that cost in deadlines?

Three days of ``days-with-shocks`` (``days_with_shocks.py``), each in an hour and a half. A fleet in virtual time
(``simulate --fleet``'s engines with stock's scheduler, the live fleet's own gateway, planner and agents) with at most
``MOST`` hosts of one instance; a host takes requests START_S after it was asked for. Hold times are UP_S and DOWN_S.
The rules:

- ``counterfactual OBJECTIVE``: replays (``fleet/planning/counterfactual.py``) every REPLAY_S, and more hosts at once
  where there are more streams than the replicas had at their busiest. Its need does not flicker, so that its hold times
  are REPLAYED_UP_S and REPLAYED_DOWN_S;
- ``want``: the plan's pressure, by which a fleet without replays is scaled (``fleet/planning/scaling.py``);
- ``utilisation TARGET``: as a HorizontalPodAutoscaler: the share of places in use over a target;
- ``queue TARGET``: as KEDA's AverageValue: waiting and running requests for each host;
- ``latency TARGET``: more while the worst class's P90 over its target is above this, fewer below a third of it;
- ``fixed N``: N hosts all day.

Targets were chosen on a day of their own (``--tune``).

    python -m benchmarks.fleet.scaling [--rules queue 7,want] [--seeds 3] [--tune] [--quick]

Prints and writes benchmarks/results/fleet_scaling.json.gz: share of requests that met their target, by class, instance
hours, and those over the hours of the smallest fixed fleet whose attainment is within a point of the largest's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.fleet.days_with_shocks import DAY_S, NAME, PEAK_RPS, day
from benchmarks.fleet.scaled_fleet import Hosts, Needed, Observed, ScaledFleet
from benchmarks.publish import RESULTS, aligned, read_json, write_result
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.counterfactual import MOST_PER_REPLICA, Failures, replay_of, replicas_needed
from sloserve.fleet.planning.replayed_model import ReplayedModel
from sloserve.fleet.planning.scaling import instances_needed
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import duration_s, summarize

MOST, PLACES = 8, 8
START_S, UP_S, DOWN_S = 60.0, 30.0, 300.0
REPLAY_S, REPLAYED_UP_S, REPLAYED_DOWN_S = 60.0, 5.0, 120.0
"""A need that replays find is steady, so that its hold times may be shorter."""
QUICK_S = 120.0
RULES = (
    "fixed 6",
    "fixed 7",
    "counterfactual 0.97",
    "want",
    "utilisation 0.8",
    "queue 7",
    "latency 0.6",
)
TUNED = [
    f"{kind} {target:g}"
    for kind, targets in (
        ("utilisation", (0.6, 0.8, 1.0)),
        ("queue", (5.0, 7.0, 9.0)),
        ("latency", (0.3, 0.5, 0.8)),
    )
    for target in targets
]
TUNING_SEED = 100
RESULT = RESULTS / "fleet_scaling.json.gz"
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


def want(observed: Observed) -> int:
    return instances_needed(observed.plan)


def utilisation(target: float, observed: Observed) -> int:
    """The formula of a HorizontalPodAutoscaler."""
    return max(math.ceil(observed.running / PLACES / target), 1)


def latency(high: float, observed: Observed) -> int:
    """More hosts in proportion while the worst P90 over its target is above ``high``, one fewer below a third of it."""
    if observed.worst > high:
        return max(math.ceil(observed.hosts * min(observed.worst / high, 2.0)), observed.hosts + 1)
    return max(observed.hosts - (observed.worst < high / 3.0), 1)


def queue_length(target: float, observed: Observed) -> int:
    """KEDA's AverageValue: ``target`` requests for each host, of those that wait or run."""
    return max(math.ceil((observed.waiting + observed.running) / target), 1)


class Counterfactual:
    """The rule of ``fleet/planning/counterfactual.py``, every REPLAY_S seconds.

    Args:
        objective: Share of the requests that shall meet their targets.
    """

    def __init__(self, objective: float) -> None:
        self._objective = objective
        self._due_s = REPLAY_S
        self._needed, self._wanted, self._in_flight, self._failures = 1, 1, math.inf, Failures()
        fleet = fleet_of(1)
        self._classes = fleet.settings.classes
        # Engines of this benchmark have stock's scheduler.
        self._model = replace(ReplayedModel.of(fleet, "chat", "a800"), config=None)

    def __call__(self, observed: Observed) -> int:
        now_s = observed.now_s
        if now_s >= self._due_s:
            self._due_s = now_s + REPLAY_S
            most = MOST_PER_REPLICA * max(self._needed, 4)
            replay = replay_of(observed.traffic(), self._classes, lead_s=START_S + REPLAYED_UP_S, most=most)
            found = replicas_needed(
                replay,
                self._model.serve,
                self._needed,
                MOST,
                self._objective,
                misses=lambda count: self._failures.misses(count, replay.load, now_s),
            )
            self._failures.note(found, replay.load, self._objective, now_s)
            self._needed, self._wanted = found.expected, found.high
            self._in_flight = found.in_flight or self._in_flight
        return max(self._wanted, math.ceil(observed.streams / self._in_flight))


BY_TARGET: dict[str, Callable[[float, Observed], int]] = {
    "utilisation": utilisation,
    "queue": queue_length,
    "latency": latency,
}


def run(name: str, needed: Needed, hosts: Hosts, most: int, seed: int, day_s: float) -> dict[str, Any]:
    """One day under one rule."""
    dispatcher = ScaledFleet(needed, hosts, seed=seed)
    log = (
        FleetRun(fleet_of(most), dispatcher, ModelEngine, policy=None, seed=seed).run(day(fleet_of(1), seed, day_s)).run
    )
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

    fixed = [rule for rule in rules if rule.startswith("fixed")] or rules[:1]
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


def rules_of(names: Sequence[str]) -> dict[str, tuple[Needed, Hosts, int]]:
    """Return the rules of these names, each with its hosts and the most of them."""
    scaled = Hosts(1, START_S, UP_S, DOWN_S)
    found: dict[str, tuple[Needed, Hosts, int]] = {}
    for name in names:
        kind, _, value = name.rpartition(" ")
        if name == "want":
            found[name] = want, scaled, MOST
        elif kind == "fixed":
            found[name] = want, replace(scaled, least=int(value)), int(value)
        elif kind == "counterfactual":
            found[name] = (
                Counterfactual(float(value)),
                replace(scaled, up_s=REPLAYED_UP_S, down_s=REPLAYED_DOWN_S),
                MOST,
            )
        else:
            found[name] = partial(BY_TARGET[kind], float(value)), scaled, MOST
    return found


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--rules", default=",".join(RULES), help="names with a comma between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", action="store_true", help="the rules with a target, several, on a day of their own")
    parser.add_argument("--quick", action="store_true", help="two rules, one seed, two minutes; writes nothing")
    args = parser.parse_args()
    names = args.rules.split(",")
    names, seeds = (TUNED, [TUNING_SEED]) if args.tune else (names, list(range(args.seeds)))
    if args.quick:
        names, seeds = ["want", "fixed 3"], [0]
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        for name, rule in rules_of(names).items():
            runs.append(run(name, *rule, seed, QUICK_S if args.quick else DAY_S))
            print(runs[-1], flush=True)
            if not args.quick:  # what is there stays if it is stopped
                write(runs[-1])
    print("\n".join(table(runs)))


def write(run: dict[str, Any]) -> None:
    """Write a run beside the others, in the place of an earlier one of its rule and seed."""
    kept = [one for one in read_json(RESULT)["runs"]] if RESULT.exists() else []
    runs = [one for one in kept if (one["rule"], one["seed"]) != (run["rule"], run["seed"])] + [run]
    of_days = [one for one in runs if one["seed"] != TUNING_SEED]
    conditions = {"days": NAME, "start_s": START_S, "up_s": UP_S, "down_s": DOWN_S, "places": PLACES}
    write_result(RESULT, {"conditions": conditions, "table": table(of_days) if of_days else [], "runs": runs})


if __name__ == "__main__":
    main()
