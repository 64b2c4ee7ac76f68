"""Does a late request come in time if what `sloserve explain` names is changed in the system itself?

Requests are served under fcfs and edf, in one run with a stall of 2 s now and then, by the engine model, with a profile
and noise that `explain` does not know, and recorded. Late requests are drawn; `explain` is asked for each, from the
recording alone. Then the same requests are served again by the true system, with the same noise, once for each change
that `explain` tried, and it is seen whether the request came in time. The whole run is served again, not the window
that `explain` replays.

    python -m benchmarks.simulator.explain_check [--only 2 3] [--quick]

Prints and writes benchmarks/results/explain_check.json.gz.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, read_json, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.noise import STALL_FACTOR, StepNoise
from sloserve.scheduler.settings import KEY
from sloserve.sim.replay.engine_of import fitted_steps
from sloserve.sim.replay.explain import explain
from sloserve.sim.replay.explain_changes import Change
from sloserve.sim.replay.explain_course import Course, late_courses
from tests.sim.replay.played import CLASSES, ENGINE, EPOCH_S, PROFILE, RecordedModel, recording_of, workload

RUNS = (
    ("fcfs", 15.0, 0, 1, 12),
    ("fcfs", 18.0, 1, 1, 12),
    ("fcfs", 10.0, 2, 200, 14),
    ("edf", 40.0, 3, 1, 15),
    ("edf", 34.0, 4, 1, 14),
    ("fcfs", 12.0, 5, 1, 14),
)
"""Policy, requests per second, seed and length of stalls in steps of each recorded run; late requests asked about."""
COUNT = 400
NOISE = 0.1
STALL_EVERY = 700
"""Steps between two stalls."""


@dataclass(slots=True)
class StalledNoise:
    """Noise with a long stall now and then.

    Args:
        noise: The noise of the run.
        stall: Factor of the step that stalls; 1 for none.
        usual: Numbers of steps that do not stall.
    """

    noise: StepNoise
    stall: float
    usual: frozenset[int] = frozenset()

    def factor(self, step: int, now_s: float) -> float:
        """Return the factor of a step."""
        factor = self.noise.factor(step, now_s)
        if step in self.usual:
            return factor / STALL_FACTOR if factor > STALL_FACTOR / 2.0 else factor
        return factor * self.stall if step % STALL_EVERY == STALL_EVERY - 1 else factor


@dataclass(frozen=True, slots=True)
class System:
    """The system that is recorded: its requests, policy, noise and stalls, as in :data:`RUNS`."""

    policy: str
    rps: float
    seed: int
    stall: float

    @property
    def items(self) -> list[WorkloadRequest]:
        """The requests."""
        return workload(COUNT, self.rps, self.seed)

    def serve(
        self,
        items: Sequence[WorkloadRequest],
        policy: str | None = None,
        engine: EngineSettings = ENGINE,
        *,
        usual: frozenset[int] = frozenset(),
    ) -> tuple[RunLog, RecordedModel]:
        """Serve requests and return the log of the run, and the engine."""
        config = {KEY: {"policy": policy or self.policy, **CLASSES.as_config()}}
        noise = StalledNoise(StepNoise(self.seed, NOISE), self.stall, usual)
        model = RecordedModel(engine, PROFILE, config, noise=noise)
        return model.run(items), model


def beside(ran: RunLog, course: Course) -> frozenset[int]:
    """Return the numbers of the steps that ran while a request was there."""
    end_s, begin_s = ran.steps.end_s + EPOCH_S, ran.steps.end_s - ran.steps.duration_s + EPOCH_S
    return frozenset(np.flatnonzero((end_s > course.request.at_s) & (begin_s < course.ended_s)).tolist())


def truth(system: System, ran: RunLog, course: Course, change: Change | None) -> bool:
    """Return whether a request is in time in the true system with a change; it keeps the targets that it had."""
    own, served = f"r{course.request.number}", system.items
    if change is None:
        log = ran
    else:
        gone = {f"r{one}" for one in change.without}
        served = [one for one in served if one.request_id not in gone]
        if change.slo_class is not None:
            other = CLASSES[change.slo_class]
            served = [replace(one, slo=SLO(other, one.slo.targets)) if one.request_id == own else one for one in served]
        seats, blocks = change.max_num_seqs or ENGINE.max_num_seqs, change.kv_blocks or ENGINE.kv_blocks
        engine = replace(ENGINE, max_num_seqs=seats, kv_blocks=blocks)
        usual = beside(ran, course) if change.usual_steps else frozenset()
        log, _ = system.serve(served, change.policy, engine, usual=usual)
    (found,) = [one for one in log.requests if one.request.request_id == own]
    return bool(found.good)


def checked(system: System, wanted: int) -> list[dict[str, Any]]:
    """Return the check of ``wanted`` late requests of one recorded run."""
    log, model = system.serve(system.items)
    recording = recording_of(log, model.loads, system.policy)
    fitted = fitted_steps(recording)
    late = [one.request.number for one in late_courses(recording)]
    rows: list[dict[str, Any]] = []
    for number in np.random.default_rng(system.seed).permutation(late)[:wanted].tolist():
        found = explain(recording, number, fitted=fitted)
        assert not truth(system, log, found.course, None)
        row: dict[str, Any] = asdict(system) | {
            "request": number,
            "late_by_s": found.course.late_by_s,
            "mistrust": found.mistrust,
            "points": found.points,
            "claims": [
                {
                    "kind": change.kind,
                    "in_time": fate.in_time,
                    "of": fate.of,
                    "true": truth(system, log, found.course, change),
                }
                for change, fate in found.tried
            ],
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how often what explain said was true."""
    claims = [one for row in rows for one in row["claims"]]
    yes = [one for one in claims if one["in_time"] == one["of"]]
    no = [one for one in claims if not one["in_time"]]
    named = [row for row in rows if any(one["in_time"] == one["of"] for one in row["claims"])]
    return {
        "requests": len(rows),
        "explained": sum(row["mistrust"] is None for row in rows),
        "with_a_cause": len(named),
        "all_causes_true": sum(
            all(one["true"] for one in row["claims"] if one["in_time"] == one["of"]) for row in named
        ),
        "causes": len(yes),
        "causes_true": sum(one["true"] for one in yes),
        "not_causes": len(no),
        "not_causes_true": sum(not one["true"] for one in no),
        "undecided": len(claims) - len(yes) - len(no),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row for each kind of change."""
    claims = [one for row in rows for one in row["claims"]]
    lines = [["change", "would save it", "of them true", "would not", "of them true", "undecided"]]
    for kind in Counter(one["kind"] for one in claims):
        found = figures([{"mistrust": None, "claims": [one for one in claims if one["kind"] == kind]}])
        keys = ("causes", "causes_true", "not_causes", "not_causes_true", "undecided")
        lines.append([kind, *(str(found[key]) for key in keys)])
    return aligned(lines).splitlines()


def main() -> None:
    """Run the check."""
    parser = parser_for(__doc__)
    parser.add_argument("--only", type=int, nargs="+", help="places of runs to make again; the file keeps the others")
    parser.add_argument("--quick", action="store_true", help="two requests of one run; writes nothing")
    args = parser.parse_args()
    path = RESULTS / "explain_check.json.gz"
    kept = read_json(path)["rows"] if args.only else []
    rows: list[dict[str, Any]] = []
    for place, (policy, rps, seed, stall, wanted) in enumerate(RUNS[: 1 if args.quick else None]):
        system = System(policy, rps, seed, stall)
        if args.only and place not in args.only:
            rows += [one for one in kept if asdict(system).items() <= one.items()]
            continue
        rows += checked(system, 2 if args.quick else wanted)
    print("\n".join([*table(rows), json.dumps(figures(rows))]))
    if not args.quick:
        about = {"runs": RUNS, "noise": NOISE}
        write_result(path, about | figures(rows) | {"table": table(rows), "rows": rows})


if __name__ == "__main__":
    main()
