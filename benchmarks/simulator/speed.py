"""How much faster than real time does the simulator run at about 100 running requests, and where does the time go?

Writes benchmarks/results/simulator_speed.json. Interleaves stock and the policies; reports the median of the repeats.
"""

import json
import statistics
import time

from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.profile import load_profile
from sloserve.virtual.engine_settings import EngineSettings
from sloserve.vllm_plugin.virtual.engine import VirtualEngine

REPEATS = 3
REQUESTS = 300
RUNNING = 100
PROMPT_TOKENS, OUTPUT_TOKENS = 500, 400
PROFILES = ("h100-llama3-8b", "a100-llama3-70b-tp4")
POLICIES = ("stock", "fcfs", "edf")


def workload() -> list[WorkloadRequest]:
    """Keeps RUNNING requests running: max_num_seqs holds them there, all arrive at once."""
    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=0.5, tpot_s=0.05))
    return [WorkloadRequest(f"r{i}", 0.0, PROMPT_TOKENS, OUTPUT_TOKENS, slo) for i in range(REQUESTS)]


def measure(profile_name: str, policy: str) -> dict[str, float]:
    profile = load_profile(profile_name)
    settings = EngineSettings(kv_blocks=20_000, max_num_seqs=RUNNING, max_num_batched_tokens=2048, max_model_len=2048)
    config = None if policy == "stock" else {"sloserve": {"policy": policy, "aged_share": 0.0}}
    engine = VirtualEngine(settings, profile, config)
    spent = {"schedule": 0.0, "update_from_output": 0.0}
    for name in spent:
        setattr(engine.scheduler, name, _timed(getattr(engine.scheduler, name), spent, name))
    log = engine.run(workload())
    wall_s = log.timing["wall_s"]
    steps = len(log.steps.end_s)
    return {
        "speed": float(log.steps.end_s[-1]) / wall_s,
        "running_mean": float(log.steps.running.mean()),
        "virtual_ms_per_step": float(log.steps.duration_s.mean()) * 1e3,
        "wall_us_per_step": wall_s / steps * 1e6,
        "vllm_schedule_us_per_step": log.timing["vllm_schedule_us_mean"],
        "plan_us_per_step": log.timing["plan_us_mean"],
        "vllm_update_us_per_step": spent["update_from_output"] / steps * 1e6,
        "loop_us_per_step": (wall_s - sum(spent.values())) / steps * 1e6,
    }


def _timed(call, spent, name):  # type: ignore[no-untyped-def]
    def timed(*args, **kwargs):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - began

    return timed


def main() -> None:
    results: dict[str, dict[str, list[dict[str, float]]]] = {p: {q: [] for q in POLICIES} for p in PROFILES}
    for _ in range(REPEATS):
        for profile in PROFILES:
            for policy in POLICIES:
                results[profile][policy].append(measure(profile, policy))
    medians = {
        profile: {q: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for q, runs in by_policy.items()}
        for profile, by_policy in results.items()
    }
    write_result(RESULTS / "simulator_speed.json", {"repeats": REPEATS, "median": medians})
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
