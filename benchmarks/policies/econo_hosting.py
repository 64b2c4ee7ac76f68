"""Why does EconoServe as published lose to stock here? Counts of guests, of reserved KV and of prompts that must wait.

Usage: python -m benchmarks.policies.econo_hosting [--quick] [--out FILE]

ShareGPT-like lengths, OPT-13B with 12 GB of KV, one target of 12 s for all requests, engine model. Each form of
``econo-paper`` runs with predicted and with known lengths. ``edges`` are other limits in seconds of the three ranges of
time left (Sec. 3.4); ``unconfined`` lets prompts have all free KV, not only the reserve, while a generation waits.

``guests``: requests at a time that grow in a host's span, and ``guest_grants``: the share of grants that go to guests.
``reserved``: the share of KV blocks that hold nothing and cannot be granted. ``held_back``: the share of steps with a
waiting prompt in which more prompts would be admitted if they were not confined. ``prompts_s``: seconds for which a
request waits to be admitted, ``confined_s``: those of them in which a generation waits. ``one_range``: the share of
waiting tasks that are in the fullest range.

Writes results/econo_hosting.json.gz; ``--quick`` writes nothing without ``--out``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.core.arrays import IntArray
from sloserve.estimator.planning_cost import planning_costs
from sloserve.scheduler.papers import paper_order
from sloserve.scheduler.papers.econo_paper import EconoPaper
from sloserve.scheduler.papers.generation_queue import GenerationTasks
from sloserve.scheduler.papers.grants import NO_GROUP
from sloserve.scheduler.papers.prompt_queue import AdmittedPrompts
from sloserve.scheduler.papers.reservations import Hosting
from sloserve.scheduler.papers.variants import PaperSettings
from sloserve.scheduler.policy import NO_SLOTS, Plan, Policy, Snapshot
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, measured_points, task_of
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import summarize
from sloserve.sim.run_name import STOCK

FLAGS: Final[dict[str, Any]] = {
    "workload": "sharegpt-poisson",
    "profile": "a100-opt-13b-12gb",
    "slo": "configs/slo-fixed-12s.yaml",
    "load": "1,1.5",
    "aged_share": 0.05,
    "policy": STOCK,
}
SEEDS, REQUESTS = 3, 400
FORMS: Final[dict[str, dict[str, Any]]] = {
    "-D": {"parts": "d"},
    "-D, hosting": {"parts": "d", "pipeline": "hosting"},
    "-D, future": {"parts": "d", "pipeline": "future"},
    "-SDO": {"parts": "sdo"},
    "whole": {},
    "whole, edges 3, 6, 9": {"edges": (3.0, 6.0, 9.0)},
    "whole, by arrival": {"order": "fcfs"},
    "whole, unconfined": {"unconfined": True},
    "-D, hosting, unconfined": {"parts": "d", "pipeline": "hosting", "unconfined": True},
    "-D, future, unconfined": {"parts": "d", "pipeline": "future", "unconfined": True},
}
OVERLOAD: Final = ("-D", "-D, hosting", "-D, future")
"""Forms that run at the second load as well."""
RIVALS: Final = ("econo", "auto")
LENGTHS: Final = ("predicted", "oracle")
KEPT: Final = (
    "normalized_latency_ms", "slo_attainment", "output_throughput", "preemptions_per_request", "kv_utilization_mean",
)  # fmt: skip


@dataclass
class Counts:
    """Sums over the plans of a run; ``seconds`` are of all requests together."""

    plans: int = 0
    guests: int = 0
    grants: int = 0
    guest_grants: int = 0
    reserved: float = 0.0
    with_prompts: int = 0
    held_back: int = 0
    prompts_s: float = 0.0
    confined_s: float = 0.0
    tasks: int = 0
    fullest_range: int = 0
    groups: dict[int, int] = field(default_factory=dict)

    def figures(self, requests: int) -> dict[str, float]:
        return {
            "guests": self.guests / max(self.plans, 1),
            "guest_grants": self.guest_grants / max(self.grants, 1),
            "reserved": self.reserved / max(self.plans, 1),
            "held_back": self.held_back / max(self.with_prompts, 1),
            "prompts_s": self.prompts_s / requests,
            "confined_s": self.confined_s / requests,
            "one_range": self.fullest_range / max(self.tasks, 1),
        }


class Counted(EconoPaper):
    """EconoServe in the form of its paper, which counts what it does.

    Args:
        settings: The policy's settings.
        unconfined: Whether prompts may have all free KV while a generation waits.
    """

    def __init__(self, settings: PaperSettings, *, seed: int, unconfined: bool = False) -> None:
        super().__init__(settings, seed=seed)
        self._unconfined = unconfined
        self._before: tuple[float, int, bool] = (0.0, 0, False)
        self.counts = Counts()

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        counts, (before_s, prompts, confined) = self.counts, self._before
        counts.prompts_s += prompts * (now_s - before_s)
        counts.confined_s += prompts * (now_s - before_s) * confined
        made = super().plan(snapshot, now_s)
        self._before = (now_s, snapshot.waiting.size, made.pause.size > 0)
        if self._tasks is not None and made is not Plan.IDENTITY:
            self._count(self._tasks, snapshot, made, now_s)
        return made

    def _admit(
        self,
        tasks: GenerationTasks,
        snapshot: Snapshot,
        pts: AdmittedPrompts,
        queue: IntArray,
        served: int,
        now_s: float,
    ) -> tuple[IntArray, int]:
        free = super()._admit(tasks, snapshot, pts, NO_SLOTS, served, now_s)
        confined = super()._admit(tasks, snapshot, pts, queue, served, now_s)
        if snapshot.waiting.size:
            self.counts.with_prompts += 1
            self.counts.held_back += free[1] > confined[1]
        return free if self._unconfined else confined

    def _count(self, tasks: GenerationTasks, snapshot: Snapshot, made: Plan, now_s: float) -> None:
        counts, engine, group = self.counts, snapshot.engine, self._grants.group
        granted = snapshot.running[group[snapshot.running] != NO_GROUP]
        guest = tasks.ledger._guest[granted] if isinstance(tasks.ledger, Hosting) else np.zeros(granted.size, np.bool_)
        is_new = np.array([counts.groups.get(slot) != group[slot] for slot in granted.tolist()], np.bool_)
        counts.groups.update(zip(granted.tolist(), group[granted].tolist(), strict=True))
        counts.plans += 1
        counts.guests += int(guest.sum())
        counts.grants += int(is_new.sum())
        counts.guest_grants += int((guest & is_new).sum())
        counts.reserved += max(engine.free_blocks - max(tasks.ledger.free_blocks, 0), 0) / engine.capacity_blocks
        for waiting in (made.pause, snapshot.waiting):
            if waiting.size > 1:
                ranges = np.bincount(paper_order.deadline_ranges(snapshot.rows, waiting, now_s))
                counts.tasks += waiting.size
                counts.fullest_range += int(ranges.max())


def run(ours: Experiment, point: Point, form: Mapping[str, Any] | None, name: str) -> dict[str, float]:
    """Return the figures of one run.

    Args:
        ours: Workload, engine and targets.
        point: Seed and load.
        form: Settings of ``econo-paper``; ``None`` runs the policy ``name`` as it is.
        name: Name of the policy, with its options.
    """
    task = task_of(ours, name, point)
    policy: Policy | None = None
    if form is not None:
        rest = {key: value for key, value in form.items() if key not in ("edges", "unconfined")}
        settings = PaperSettings(**rest, length=name.partition("length=")[2])
        policy = Counted(settings, seed=point.seed, unconfined=form.get("unconfined", False))
    elif name != STOCK:
        policy = make_policy(*parse_policy(name), seed=point.seed)
    edges = np.array((form or {}).get("edges", paper_order.DEADLINE_EDGES_S))
    with patch.object(paper_order, "DEADLINE_EDGES_S", edges):
        engine = ModelEngine(task.engine, task.profile, task.config, planning_costs=planning_costs(), policy=policy)
        log = engine.run(task.requests)
    found = summarize(log, policy=name, seed=point.seed, rps=point.rps, load=point.load)
    counted = policy.counts.figures(len(task.requests)) if isinstance(policy, Counted) else {}
    split = {key: found["completion_split"][key] for key in ("waiting_s", "paused_s")}
    return {key: found[key] for key in KEPT} | counted | split


def measured(
    ours: Experiment, points: Sequence[Point], forms: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each form and way to know lengths: the means over ``points``, rounded to four digits."""
    runs: list[tuple[str, Mapping[str, Any] | None, str]] = [(STOCK, None, STOCK)]
    runs += [(rival, None, f"{rival}:length={length}") for rival in RIVALS for length in LENGTHS]
    runs += [(form, of, f"econo-paper:length={length}") for form, of in forms.items() for length in LENGTHS]
    for form, of, name in runs:
        found = [run(ours, point, of, name) for point in points]
        figures = {key: round(float(np.mean([one[key] for one in found])), 4) for key in found[0]}
        yield {"form": form, "lengths": name.partition("length=")[2] or "-", "load": points[0].load, **figures}


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_hosting.json.gz")
    loads = {1.0: FORMS, 1.5: {form: FORMS[form] for form in OVERLOAD}}
    options = SimulateOptions(**FLAGS, seeds=1 if quick else SEEDS, max_requests=60 if quick else REQUESTS)
    ours = replace(build_experiment(options), engine_kind=MODEL)
    points = measured_points(ours)
    rows = []
    for load, forms in {1.5: {"whole": FORMS["whole"]}}.items() if quick else loads.items():
        for row in measured(ours, [point for point in points if point.load == load], forms):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if out is not None:
        write_result(out, {"flags": FLAGS, "requests": REQUESTS, "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
