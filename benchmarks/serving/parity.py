"""Does SLOScheduler under fcfs decide what stock vLLM decides, step by step, and what does it add to schedule()?

Replays 2,000 requests of each trace with arrivals at about 1.5 times the engine's capacity through stock and fcfs, and
compares every SchedulerOutput; and through edf, without targets: equal up to the first request that resumes, since edf
then serves in order of arrival and stock in order of admission. Then times 400 of the requests, stock and fcfs in turn,
REPEATS times each, in CPU time of the thread, so that other work on the machine counts less. Writes
benchmarks/results/parity.json.gz. Argument: the folder of traces, by default SLOSERVE_DATA.
"""

import json
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.traces import AZURE_CODE, AZURE_CONV, MOONCAKE, SERVEGEN_10H, SERVEGEN_19H
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.workload_registry import trace_workload

REPEATS = 5
REQUESTS = 2000
TIMED_REQUESTS = 400
SEED = 0
PROFILE = "h100-llama3-8b"


@dataclass(frozen=True)
class Case:
    """A trace, 1.5 times the rate at which stock serves 500 of its requests that arrive at once, and the engine's size.

    KV is scarce enough that stock preempts; where prefixes are cached it is the profile's own.
    """

    trace: str
    rate_per_s: float
    kv_blocks: int
    max_model_len: int
    prefix_caching: bool = False

    def requests(self, folder: Path, n: int) -> list[WorkloadRequest]:
        """The first ``n`` requests of a window of the trace."""
        trace = read_trace(folder / f"{self.trace}.csv.gz")
        return trace_workload(trace).requests(n, SEED, self.rate_per_s)

    def engine(self) -> EngineSettings:
        return EngineSettings(
            kv_blocks=self.kv_blocks,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=2048,
            enable_prefix_caching=self.prefix_caching,
        )


CASES = (
    Case(AZURE_CODE, 24.0, 1024, 16384),
    Case(AZURE_CONV, 20.0, 8000, 16384),
    Case(SERVEGEN_10H, 30.0, 4096, 32768),
    Case(SERVEGEN_19H, 20.0, 4096, 32768),
    Case(MOONCAKE, 2.1, 27767, 131072, prefix_caching=True),
)


@dataclass
class Decisions:
    """What one run decided. first_resumption: the first step that admits a preempted request again."""

    steps: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    first_resumption: int | None = None

    def note(self, output: Any) -> None:
        if self.first_resumption is None and output.scheduled_cached_reqs.resumed_req_ids:
            self.first_resumption = len(self.steps)
        self.steps.append(decision(output))
        self.admitted.extend(r.req_id for r in output.scheduled_new_reqs)


def decision(output: Any) -> str:
    """Everything that a SchedulerOutput decides: who computes how many tokens in which order, on which blocks."""
    cached = output.scheduled_cached_reqs
    new = [(r.req_id, r.num_computed_tokens, r.block_ids) for r in output.scheduled_new_reqs]
    again = (cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, sorted(cached.resumed_req_ids))
    ended = (sorted(output.preempted_req_ids or ()), sorted(output.finished_req_ids))
    return repr((list(output.num_scheduled_tokens.items()), new, again, ended))


def decide(settings: EngineSettings, workload: list[WorkloadRequest], policy: str | None) -> tuple[Decisions, RunLog]:
    """Every step's decision, and the log. policy: ``None`` is stock."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    config = None if policy is None else {"sloserve": {"policy": policy}}
    engine = VirtualEngine(settings, load_profile(PROFILE), config)
    decisions = Decisions()
    engine.on_step = decisions.note
    return decisions, engine.run(workload)


def without_targets(workload: list[WorkloadRequest]) -> list[WorkloadRequest]:
    slo = DEFAULT_CLASSES.slo(None, Targets())
    return [replace(request, slo=slo) for request in workload]


def schedule_us(log: RunLog) -> float:
    """Mean time of one schedule(), planning included."""
    return log.timing["vllm_schedule_us_mean"] + log.timing["plan_us_mean"]


def compare(case: Case, folder: Path) -> dict[str, object]:
    workload, settings = case.requests(folder, REQUESTS), case.engine()
    expected, stock = decide(settings, workload, None)
    fcfs, _ = decide(settings, workload, "fcfs")
    edf, _ = decide(settings, without_targets(workload), "edf")
    until = expected.first_resumption
    return {
        "trace": case.trace,
        "requests": len(workload),
        "steps": len(expected.steps),
        "preemptions": sum(r.num_preemptions for r in stock.requests),
        "running_mean": round(float(stock.steps.running.mean()), 1),
        "fcfs_same_decisions": fcfs.steps == expected.steps,
        "edf_without_targets_same_decisions": edf.steps == expected.steps,
        "edf_without_targets_same_until_first_resumption": edf.steps[:until] == expected.steps[:until],
        "edf_without_targets_same_admission_order": edf.admitted == expected.admitted,
        "first_resumption_step": until,
    }


def measure(case: Case, folder: Path) -> dict[str, object]:
    from sloserve.vllm_plugin.virtual import engine

    workload, settings = case.requests(folder, TIMED_REQUESTS), case.engine()
    times_us: dict[str, list[float]] = {"stock": [], "fcfs": []}
    setattr(engine, "time", SimpleNamespace(perf_counter=time.thread_time))  # noqa: B010 - a module to mypy
    try:
        for repeat in range(REPEATS):
            for name, policy in (("stock", None), ("fcfs", "fcfs"))[:: 1 if repeat % 2 else -1]:
                times_us[name].append(schedule_us(decide(settings, workload, policy)[1]))
    finally:
        setattr(engine, "time", time)  # noqa: B010
    ratios = [ours / stock for ours, stock in zip(times_us["fcfs"], times_us["stock"], strict=True)]
    return {
        "schedule_cpu_us": {name: [round(t, 1) for t in times] for name, times in times_us.items()},
        "fcfs_added_percent_median_of_pairs": round((statistics.median(ratios) - 1.0) * 100.0, 2),
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("SLOSERVE_DATA"))
    folder = parser.parse_args().folder
    result: dict[str, object] = {"profile": PROFILE, "seed": SEED, "repeats": REPEATS}
    result["cases"] = cases = []
    decide(CASES[0].engine(), CASES[0].requests(folder, 100), "fcfs")  # imports and warms up
    for case in CASES:
        cases.append(compare(case, folder) | measure(case, folder))
        print(json.dumps(cases[-1]), flush=True)
    path = RESULTS / "parity.json.gz"
    write_result(path, result)
    print(path)


if __name__ == "__main__":
    main()
