"""How much CPU does a step cost in the engine model, and in vLLM's real scheduler, at about 100 running requests?

Writes benchmarks/results/model_speed.json.gz. One process; the two take turns, each run is the same on both; the median
of the repeats is reported. CPU seconds of the process, so other load on the machine counts little.
"""

import json
import statistics
import time
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.registry import main_policies
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.run_name import STOCK
from sloserve.vllm_plugin.virtual.engine import VirtualEngine

REPEATS = 5
REQUESTS, RUNNING = 300, 100
POLICIES = (STOCK, *main_policies())
SETTINGS = EngineSettings(kv_blocks=20_000, max_num_seqs=RUNNING, max_num_batched_tokens=2048, max_model_len=2048)


def workload() -> list[WorkloadRequest]:
    """Keeps RUNNING requests running: max_num_seqs holds them there, all arrive at once."""
    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=0.5, tpot_s=0.05))
    return [WorkloadRequest(f"r{i}", 0.0, 500, 400, slo) for i in range(REQUESTS)]


def measure(engine_class: Any, policy: str) -> dict[str, float]:
    """One run: CPU us a step in all, and the plans' part of it. Building the engine is not counted."""
    config = None if policy == "stock" else {"sloserve": {"policy": policy}}
    engine = engine_class(SETTINGS, load_profile("h100-llama3-8b"), config)
    began = time.process_time()
    log = engine.run(workload())
    spent_s = time.process_time() - began
    steps = log.steps.end_s.size
    plans = log.counters.get("plans", 0)
    return {
        "us_per_step": spent_s / steps * 1e6,
        "plan_us_per_step": log.timing["plan_us_mean"] * plans / steps,
        "steps": steps,
        "running_mean": float(log.steps.running.mean()),
    }


def main() -> None:
    parser_for(__doc__).parse_args()
    engines = {"vllm": VirtualEngine, "model": ModelEngine}
    runs: dict[str, dict[str, list[dict[str, float]]]] = {p: {name: [] for name in engines} for p in POLICIES}
    for _ in range(REPEATS):
        for policy in POLICIES:
            for name, engine_class in engines.items():
                runs[policy][name].append(measure(engine_class, policy))
    medians = {
        policy: {name: {k: statistics.median(r[k] for r in of) for k in of[0]} for name, of in by_engine.items()}
        for policy, by_engine in runs.items()
    }
    for policy, of in medians.items():
        assert of["vllm"]["steps"] == of["model"]["steps"], f"{policy}: the two make different steps"
        vllm_us, model_us = (of[name]["us_per_step"] for name in ("vllm", "model"))
        of["model"]["times_less_cpu"] = vllm_us / model_us
    write_result(RESULTS / "model_speed.json.gz", {"repeats": REPEATS, "median": medians})
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
