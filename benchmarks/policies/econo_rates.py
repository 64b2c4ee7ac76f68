"""How much load does each system carry at equal latency per token, if no target tells how long a reply will be?

EconoServe's Fig. 9, on the engine model. Every request of a workload has one and the same e2e
target: EconoServe's rule for the mean reply, 2 x (t_p + t_g x mean tokens). ``distserve`` is one engine that computes
prompts and one that decodes, so it has twice the GPUs, as in the paper; what it gets for free is listed in
econo_engines. All others run on one. Ageing is on, planning is charged. Writes results/econo_rates.json.gz.

    python -m benchmarks.policies.econo_rates [--quick] [--out FILE]
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from benchmarks.arguments import quick_and_out
from benchmarks.policies.econo_engines import EngineCase, Offered
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLOClass, Targets
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.experiments import experiment_flags
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.compare import load_of
from sloserve.sim.report.latency_capacity import KEY, LEVEL_MULTIPLE
from sloserve.sim.report.load_capacity import LoadCapacity, load_capacity
from sloserve.sim.report.summary import Run, summarize
from sloserve.sim.run_name import STOCK
from sloserve.sim.workloads.slo_assignment import ClassRule, ScaledDeadline, SLOAssignment

ROWS = {
    "econo-sharegpt": 300,
    "econo-alpaca": 600,
    "econo-bookcorpus": 40,
    "econo-llama-33b": 300,
    "econo-opt-175b": 300,
}
"""Rows of the experiments' registry, and requests a run."""
SYSTEMS = {
    "stock,sarathi,sjf:step_budget=true,econo,econo:length=oracle,auto": "0.25,0.75,1,1.25,1.5,2,3",
    "orca": "0.1,0.25,0.5",
}
"""Policies, and multiples of stock's capacity. ORCA, with its batches of 8, falls behind long before it."""
DISTSERVE, LINK = "distserve", "100 Gb/s"
KEPT = (
    "policy", "load", "seed", "normalized_latency_ms", "slo_attainment", "output_throughput",
    "preemptions_per_request", "kv_utilization_mean", "step_token_utilization_mean", "completion_split",
)  # fmt: skip


def fixed_deadline(experiment: Experiment) -> SLOAssignment:
    """One e2e target for all: what the row's rule gives the mean reply."""
    assert experiment.slos is not None
    (rule,) = experiment.slos.rules
    assert isinstance(rule.deadline, ScaledDeadline)
    lengths = [request.output_tokens for request in experiment.workload.requests(4000, 0, 1.0)]
    e2e_s = rule.deadline.e2e_s(round(sum(lengths) / len(lengths)))
    return SLOAssignment("fixed", (ClassRule(SLOClass("fixed", 0, Targets(e2e_s=round(e2e_s, 2)))),), default="fixed")


@dataclass(frozen=True)
class Rates:
    """What is run of one row."""

    row: str
    requests: int
    systems: Mapping[str, str] = field(default_factory=lambda: SYSTEMS)
    seeds: int = 3

    def experiment(self, policies: str) -> Experiment:
        """Of some of the policies, at their loads."""
        flags = experiment_flags(self.row) | {"max_requests": self.requests}
        flags |= {"load": self.systems[policies], "policy": policies}
        built = replace(build_experiment(SimulateOptions(**flags, seeds=self.seeds)), engine_kind=MODEL)
        return replace(built, slos=fixed_deadline(built))


class SplitCase(EngineCase):
    """The split of a row's engine in two, on the requests of an experiment."""

    def __init__(self, row: str, experiment: Experiment, points: list[Point]) -> None:
        super().__init__(row)
        self._of, self._rps = experiment, {(point.seed, point.load): point.rps for point in points}
        self.asked = lru_cache(maxsize=1)(self._asked)

    def _asked(self, load: float, seed: int) -> list[WorkloadRequest]:
        return self._of.requests(seed, rps=self._rps[seed, load])

    def requests(self, offered: Offered, seed: int) -> list[WorkloadRequest]:
        return self.asked(offered.load, seed)

    def records(self) -> Iterator[Run]:
        for seed, load in self._rps:
            assert load is not None
            logs = self.split(1, 1, Offered(2, load), seed, LINK, 1)
            log = RunLog(logs, ModelEngine(self.engine, self.profile, None).log([]).steps)
            yield summarize(log, policy=DISTSERVE, seed=seed, rps=self._rps[seed, load], load=load)


def capacities(records: Sequence[Run]) -> list[LoadCapacity]:
    """What each system carries at twice stock's latency per token at its own least load; others may begin below it."""
    unloaded = min(load_of(run) for run in records if run["policy"] == STOCK)
    level = [run[KEY] for run in records if run["policy"] == STOCK and load_of(run) == unloaded]
    return load_capacity(records, KEY, LEVEL_MULTIPLE * sum(level) / len(level), rising=True)


def measured(rates: Rates) -> dict[str, Any]:
    records: list[Run] = []
    for policies in rates.systems:
        experiment = rates.experiment(policies)
        points = measured_points(experiment)
        records += [run.record() for run in run_experiment(experiment, points=points)]
        if STOCK in experiment.policies:
            records += SplitCase(rates.row, experiment, points).records()
    assert experiment.slos is not None
    found = {
        "row": rates.row,
        "requests": rates.requests,
        "e2e_s": experiment.slos.rules[0].slo_class.targets.e2e_s,
        "capacity": [one.as_dict() for one in capacities(records)],
        "runs": [{key: record.get(key) for key in KEPT} for record in records],
    }
    for one in found["capacity"]:
        print(json.dumps({"row": rates.row, **one}), flush=True)
    return found


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_rates.json.gz")
    small = Rates("econo-sharegpt", 40, {"stock,econo": "0.5,1,1.5"}, 1)
    cases = []
    for rates in [small] if quick else [Rates(row, requests) for row, requests in ROWS.items()]:
        cases.append(measured(rates))
        if out is not None:
            write_result(out, {"systems": SYSTEMS, "link": LINK, "cases": cases})


if __name__ == "__main__":
    main()
