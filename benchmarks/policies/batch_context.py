"""Does the batch size say how many tokens of context a step reads? Andes' Fig. 19, on its model and rate.

ShareGPT-like requests on OPT-66B, four A100, 2.5 requests/s, stock's rules in the engine model, three seeds. A point is
a step without prompts: its batch size and the contexts' sum, up to the first step at which the KV cache is 99 % full,
as in the paper. Writes results/batch_context.json.gz: Pearson's correlation, and the mean context of each batch size.
"""

import json
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.workload_registry import workload

PROFILE, WORKLOAD, RPS = "a100x4-opt-66b", "sharegpt-poisson", 2.5
SEEDS, REQUESTS = (0, 1, 2), 1000
FULL = 0.99
FEWEST_STEPS = 20
"""Of a batch size whose mean context is shown."""


class Recorded:
    """A latency form that keeps the loads it was asked for."""

    def __init__(self, latency: StepLatency) -> None:
        self._latency = latency
        self.loads: list[StepLoad] = []

    def step_s(self, load: StepLoad) -> float:
        self.loads.append(load)
        return self._latency.step_s(load)


def points(seed: int, requests: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Batch size and tokens of context of each step, ``[steps, 2]``."""
    profile = load_profile(PROFILE)
    recorded = Recorded(profile.latency)
    settings = EngineSettings.of_profile(profile)
    engine = ModelEngine(settings, profile.model_copy(update={"latency": recorded}), None)
    engine.run(workload(WORKLOAD).requests(requests, seed, RPS))
    full = FULL * profile.kv_capacity_tokens
    kept = []
    for load in recorded.loads:
        if load.decode_context_tokens >= full:
            break
        if load.decode_seqs and not load.prefill_tokens:
            kept.append((load.decode_seqs, load.decode_context_tokens))
    return np.array(kept, np.int64)


def measured(seeds: tuple[int, ...], requests: int) -> dict[str, Any]:
    by_seed = [points(seed, requests) for seed in seeds]
    all_ = np.concatenate(by_seed)
    sizes, counts = np.unique(all_[:, 0], return_counts=True)
    means = {
        int(size): round(float(all_[all_[:, 0] == size, 1].mean() / size), 1)
        for size, count in zip(sizes, counts, strict=True)
        if count >= FEWEST_STEPS and size % 10 == 0
    }
    return {
        "pearson": [float(np.corrcoef(of_seed.T)[0, 1]) for of_seed in by_seed],
        "steps": [len(of_seed) for of_seed in by_seed],
        "tokens_a_request_by_batch": means,
    }


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "batch_context.json.gz")
    result = measured(SEEDS[:1], 100) if quick else measured(SEEDS, REQUESTS)
    print(json.dumps(result))
    if out is not None:
        settings = {"profile": PROFILE, "workload": WORKLOAD, "rps": RPS, "seeds": SEEDS, "requests": REQUESTS}
        write_result(out, {"settings": settings, **result})


if __name__ == "__main__":
    main()
