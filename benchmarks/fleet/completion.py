"""How well does the plan of a fleet foresee when requests end (QLM, Fig. 3 and 17), and are 90 % within its p90?

Usage: python -m benchmarks.fleet.completion [--quick] [--out FILE]

All requests are there at once and due late, so that the first plan stays: each request is foreseen from that plan, by
the start of its group, its place in it, and what one request takes. ``deep``: one model on one instance. ``swaps``:
four models on two instances, of configs/fleet.yaml's profiles. Waiting by work, and by Eq. 2 (output tokens over a
constant throughput, that of the same run, as good as a profile can be). Lengths are learnt from other requests of the
workload. Engines have stock's scheduler, in the engine model. R2 and coverage are of completion; of waiting, R2 alone.
Writes results/fleet_completion.json.gz.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.fleet.group_spans import group_spans
from benchmarks.publish import RESULTS, write_result
from sloserve.core.arrays import FloatArray
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.snapshot import LiveMembers, fleet_state, serving_of
from sloserve.fleet.planning.waiting_groups import Group
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import AT_ONCE, Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.scheduler.virtual_queues.problem import PlanSettings, ProblemMaker
from sloserve.scheduler.virtual_queues.swaps import swap_table
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.multi_model import FleetWorkload

SEEDS = (0, 1, 2)
CHANCE, ERROR = 0.9, 0.03
TEXT = """
models:
{models}
hosts: {{n: {{device: h100, devices: {devices}, host_memory_gib: 256}}}}
switching: {{min_active_s: 5, max_wait_s: 3000, drain_max_s: 600}}
settings: {{classes: {{all: {{rank: 0, e2e_ms: 36000000}}}}}}
"""
CASES = {"deep": (("h100-llama3-8b",), 1, 5000), "swaps": (("h100-llama3-8b", "h100-llama2-7b") * 2, 2, 4000)}
"""Profile of each model, instances, requests."""


def fleet_of(profiles: Sequence[str], devices: int) -> Fleet:
    lines = "\n".join(f"  m{i}: {{profile: {name}}}" for i, name in enumerate(profiles))
    return parse_fleet(TEXT.format(models=lines, devices=devices))


class Foreseeing(LiveFleet):
    """Notes of each request what the first plan with its group foresees. tokens_per_s: for Eq. 2, by model."""

    def __init__(self, tokens_per_s: dict[str, float] | None = None) -> None:
        super().__init__(options=Options(one_queue=True, periods=AT_ONCE))
        self._tokens_per_s = tokens_per_s
        self.foreseen: dict[str, tuple[float, float, float]] = {}

    def _planned(self, now_s: float, durable: Sequence[Group], members: LiveMembers) -> PlanInForce:
        plan = super()._planned(now_s, durable, members)
        if self.foreseen or not durable or not members.agents:
            return plan
        fleet = self._view.fleet
        state, _ = fleet_state(now_s, durable, members, swap_table(fleet.swaps()), None)
        sums, order = list(state.groups), plan.order
        serving = {
            key: one if self._tokens_per_s is None else replace(one, tokens_per_s=self._tokens_per_s[key[0]])
            for key, one in serving_of(fleet).items()
        }
        found = []
        for chance, error in ((0.5, 0.0), (CHANCE, ERROR)):
            settings = PlanSettings(chance, error, fleet.switching.min_active_s)
            problem = ProblemMaker(serving, settings).problem(state, sums)
            at = {group.ref: k for k, group in enumerate(sums)}
            queues = [[at[ref] for ref in order[instance.name]] for instance in state.instances]
            found.append((group_spans(problem, queues), problem))
        for k, group in enumerate(sums):
            for place, request_id in enumerate(self._store.waiting(group.ref, group.requests)):
                ends = []
                for spans, problem in found:
                    part = place / group.requests
                    wait = spans.start_s[k] + part * (spans.end_s[k] - spans.start_s[k])
                    ends += [wait, wait + problem.own_s[problem.kind[spans.instance[k]], k]]
                self.foreseen[request_id] = ends[0], ends[1], ends[3]
        return plan


def r2(actual: FloatArray, foreseen: FloatArray) -> float:
    return 1.0 - float(((actual - foreseen) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())


def run(case: str, seed: int, requests: int, tokens_per_s: dict[str, float] | None) -> tuple[dict[str, float], Any]:
    profiles, devices, _ = CASES[case]
    fleet = fleet_of(profiles, devices)
    workload = FleetWorkload.parse("w-a")
    given, others = (
        FleetExperiment(fleet, workload, ("qlm",), (1.0,), (s,), max_requests=requests).requests(s, 1.0)
        for s in (seed, 1000 + seed)
    )
    burst: list[WorkloadRequest] = [replace(request, arrival_s=0.0) for request in given]
    dispatcher = Foreseeing(tokens_per_s)
    of = FleetRun(fleet, dispatcher, ModelEngine, policy=None, seed=seed)
    of.learn(others)
    log = of.run(burst).run
    ids = [r.request.request_id for r in log.requests]
    first = np.array([r.token_times_s[0] for r in log.requests])
    last = np.array([r.token_times_s[-1] for r in log.requests])
    wait, mean, p90 = np.array([dispatcher.foreseen[i] for i in ids]).T
    figures = {
        "r2_waiting": r2(first, wait),
        "r2_completion": r2(last, mean),
        "p90_coverage": float((last <= p90).mean()),
        "bias": float((mean - last).mean() / last.mean()),
    }
    return figures, log


def throughputs(log: Any, devices: int, models: int) -> dict[str, float]:
    """Output tokens a second of one busy engine; the same for each model."""
    tokens = sum(r.token_times_s.size for r in log.requests)
    busy_s = devices * max(r.token_times_s[-1] for r in log.requests)
    return {f"m{i}": tokens / busy_s for i in range(models)}


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "fleet_completion.json.gz")
    result: dict[str, Any] = {}
    for case, (profiles, devices, requests) in CASES.items():
        rows: dict[str, list[dict[str, float]]] = {"work": [], "eq2": []}
        for seed in SEEDS[:1] if quick else SEEDS:
            figures, log = run(case, seed, 300 if quick else requests, None)
            rows["work"].append(figures)
            rows["eq2"].append(run(case, seed, len(log.requests), throughputs(log, devices, len(profiles)))[0])
        result[case] = {
            kind: {name: round(float(np.mean([row[name] for row in of])), 4) for name in of[0]}
            for kind, of in rows.items()
        }
        print(case, json.dumps(result[case]), flush=True)
    if out is not None:
        settings = {"seeds": SEEDS, "chance": CHANCE, "relative_error": ERROR}
        write_result(out, {"settings": settings, **result})


if __name__ == "__main__":
    main()
