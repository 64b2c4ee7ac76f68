"""Runs of fleets in virtual time for ``fleet_qlm.py``: cells, the best static placement, ladders of rates, rows."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml

from sloserve.core.request import WorkloadRequest
from sloserve.core.spans import Phase
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatcher import SimulatedView, Switch
from sloserve.fleet.simulated.dispatchers.assigned import Static
from sloserve.fleet.simulated.dispatchers.by_name import FleetRunName
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment, FleetResult
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.fleet.simulated.simulate_fleet import IN_TIME, record
from sloserve.scheduler.virtual_queues.model_swap import model_swap
from sloserve.sim.experiment import engine_class
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.workloads.multi_model import FleetWorkload

Row = dict[str, Any]

STATIC = "static"
INTERACTIVE_S, BATCH_S = 20.0, 120.0
"""Deadlines. Batch jobs have minutes in the paper, and here no more than the queue of a run can cost them."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A fleet to be made: models with their shares and profiles, instances by device, switching.

    devices: ``a100x4`` for instances of four A100s each. slo_scale: of the deadlines.
    """

    models: Mapping[str, Mapping[str, Any]]
    devices: Mapping[str, int]
    switching: Mapping[str, float]
    host_memory_gib: float = 256.0
    swap_space_gib: float = 64.0
    swap_cost_factor: float = 1.0
    slo_scale: float = 1.0

    def fleet(self) -> Fleet:
        """It, as from a file."""
        classes = {
            "interactive": {"rank": 1, "e2e_ms": 1e3 * INTERACTIVE_S * self.slo_scale, "aged_after_s": 60.0},
            "batch": {"rank": 2, "e2e_ms": 1e3 * BATCH_S * self.slo_scale, "aged_after_s": 600.0},
        }
        kinds = {kind: (kind.partition("x")[0], int(kind.partition("x")[2] or 1)) for kind in self.devices}
        there = {kinds[kind][0] for kind, n in self.devices.items() if n}
        models = {
            name: dict(entry) | {"profile": {d: p for d, p in entry["profile"].items() if d in there}}
            if isinstance(entry["profile"], Mapping)
            else dict(entry)
            for name, entry in self.models.items()
        }
        host = {"host_memory_gib": self.host_memory_gib, "swap_space_gib": self.swap_space_gib}
        hosts = {
            f"node-{kind}": {"device": kinds[kind][0], "devices": n * kinds[kind][1], "width": kinds[kind][1]} | host
            for kind, n in self.devices.items()
            if n
        }
        made = parse_fleet(
            yaml.safe_dump(
                {
                    "models": models,
                    "hosts": hosts,
                    "switching": dict(self.switching),
                    "settings": {"policy": "edf", "classes": classes},
                }
            )
        )
        scaled = {
            name: replace(model, profiles={d: self._dearer(profile) for d, profile in model.profiles.items()})
            for name, model in made.models.items()
        }
        return replace(made, models=scaled)

    def _dearer(self, profile: Profile) -> Profile:
        cost, factor = model_swap(profile), self.swap_cost_factor
        times = {"sleep_s": cost.sleep_s, "wake_s": cost.wake_s, "reload_s": cost.reload_s}
        return profile.model_copy(update={name: factor * seconds for name, seconds in times.items()})


@dataclass(frozen=True, slots=True)
class Cell:
    """What runs: ``seconds`` of arrivals at ``rps``, behind ``queued`` requests that are there at the start.

    axis, value: what is varied, and where the cell stands on it.
    """

    plant: Plant
    axis: str
    value: float
    workload: str = "w-a"
    rps: float = 0.0
    seconds: float = 240.0
    queued: int = 0

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """What arrives."""
        arriving = self._drawn(seed, self.rps, round(self.rps * self.seconds))
        there = self._drawn(seed + 1000, 1.0, self.queued)
        return [replace(r, request_id=f"q{i}", arrival_s=0.0) for i, r in enumerate(there)] + arriving

    def _drawn(self, seed: int, rps: float, count: int) -> list[WorkloadRequest]:
        if not count:
            return []
        experiment = FleetExperiment(
            self.plant.fleet(), FleetWorkload.parse(self.workload), ("qlm",), (rps,), (seed,), max_requests=count
        )
        return experiment.requests(seed, rps)


class Placed(Static):
    """Static, with the placement given: models by instance, in the order of the file."""

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__()
        self._models = models

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return [Switch(i.name, model) for i, model in zip(view.instances, self._models, strict=True)]


def placements(plant: Plant) -> list[str]:
    """Names of static runs, ``static:2-1-1``: instances of the most asked-for models. No more of a model that is asked
    for less: models of one kind of device take alike.
    """

    def parts(total: int, most: int) -> Iterator[tuple[int, ...]]:
        if not total:
            yield ()
        for first in range(min(total, most), 0, -1):
            for rest in parts(total - first, first):
                yield (first, *rest)

    instances = sum(plant.devices.values())
    found = [p for p in parts(instances, instances) if len(p) <= len(plant.models)]
    return [f"{STATIC}:{'-'.join(map(str, p))}" for p in found]


def run(cell: Cell, name: str, seed: int) -> Row:
    """One run in virtual time: its row."""
    fleet, requests = cell.plant.fleet(), cell.requests(seed)
    engine = engine_class("model")
    if name.startswith(STATIC + ":"):
        counts = [int(n) for n in name.partition(":")[2].split("-")]
        models = sorted(cell.plant.models, key=lambda m: -cell.plant.models[m]["share"])
        placed = [model for model, count in zip(models, counts, strict=False) for _ in range(count)]
        made = FleetRun(fleet, Placed(placed), engine, policy=None, seed=seed)
    else:
        parsed = FleetRunName.parse(name)
        made = FleetRun(
            fleet, parsed.make(seed), engine, policy=parsed.engine_policy("edf"), seed=seed, oracle=parsed.oracle
        )
    began_s = time.process_time()
    log = made.run(requests)
    spent_s = time.process_time() - began_s
    found = record(FleetResult(name, seed, cell.rps, log))
    by_class = found["slo_attainment_by_class"]
    steps, spans = log.run.steps, log.spans
    until_s = found["duration_s"]  # spans last until the loop ends, a little longer
    in_all_s = until_s * len({span.instance for span in spans}) or 1.0
    serving_s = sum(min(s.end_s, until_s) - min(s.start_s, until_s) for s in spans if s.phase is Phase.SERVING)
    urgent = [r for r in log.run.requests if r.request.slo.slo_class.name == "interactive" and r.token_times_s.size]
    waits_s = [float(r.token_times_s[0]) - r.request.arrival_s for r in urgent]
    figures = {
        "in_time": found["slo_attainment"],
        "interactive": by_class.get("interactive", 1.0),
        "batch": by_class.get("batch", 1.0),
        "served_per_s": found["request_throughput"],
        "done_s": found["duration_s"],
        "hol_s": float(np.mean(waits_s)) if waits_s else 0.0,
        "preemptions_per_request": found["preemptions_per_request"],  # by engines, the fleet and switches together
        "swaps_per_request": found.get("swaps_per_request", 0.0),
        "preempted_by_fleet_per_request": log.run.counters.get("preempted_for_others", 0) / len(requests),
        "kv_used": float((steps.kv_utilization * steps.duration_s).sum()) / in_all_s,
        "swaps": found["swaps"],
        "swapping": found["swapping_share"],
        "draining": found["draining_share"],
        "serving": serving_s / in_all_s,
        "left": found["evicted_on_switch"],
        "lost": found["lost"],
        "cpu_s": spent_s,
    }
    return {"policy": name, "rps": cell.rps, "seed": seed, "value": cell.value} | {
        key: round(float(value), 4) for key, value in figures.items()
    }


def best_static(rows: Sequence[Row], cell: Cell) -> list[Row]:
    """Returns the cell's runs of the placement that has most requests in time, under the policy name ``static``."""
    names = [name for name in placements(cell.plant) if any(row["policy"] == name for row in rows)]
    means = {name: _mean([row for row in rows if row["policy"] == name]) for name in names}
    best = max(names, key=lambda name: means[name])
    return [row | {"policy": STATIC} for row in rows if row["policy"] == best]


def _mean(rows: Sequence[Row], key: str = "in_time") -> float:
    found = mean_interval([row[key] for row in rows])
    assert found is not None
    return found.value


def at(cell: Cell, names: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """The cell under every name; ``static`` stands for the best placement."""
    for name in names:
        if name == STATIC:
            tried = [run(cell, placed, seed) for placed in placements(cell.plant) for seed in seeds]
            yield from best_static(tried, cell)
        else:
            yield from (run(cell, name, seed) for seed in seeds)


def ladder(cell: Cell, rates: Sequence[float], names: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """The cell at ascending rates, each name with all seeds up to the first at which too few are in time with any;
    ``static`` is the placement that carries most.
    """
    for name in names:
        best: list[Row] = []
        for tried in placements(cell.plant) if name == STATIC else (name,):
            rows: list[Row] = []
            for rps in rates:
                rows += [run(replace(cell, rps=rps), tried, seed) | {"policy": name} for seed in seeds]
                if all(row["in_time"] < IN_TIME for row in rows[-len(seeds) :]):
                    break
            best = max(best, rows, key=_carried)
        yield from best


def _carried(rows: Sequence[Row]) -> tuple[int, float]:
    return len(rows), sum(row["in_time"] for row in rows)


def tuned(cell: Cell, form: str, values: Sequence[float], seed: int) -> float:
    """The value with which most are in time; form: a run's name with ``{}`` in its place."""
    if len(values) == 1:
        return values[0]
    return max(values, key=lambda value: run(cell, form.format(f"{value:g}"), seed)["in_time"])
