"""What does sa gain on the paper's other devices and models? The appendix of the simulated-annealing paper.

The paper's 40 requests at once (sa_paper) on Qwen2.5-32B, four V100 or one A800, and on Qwen2.5-7B on one A800, by
batch limit, on the engine model.
**The profiles are derived from data sheets: no step of them was measured.** Writes results/sa_devices.json.gz: G in
multiples of stock's (none where no request of stock's is in time), and the share in time, by seed.

    python -m benchmarks.policies.sa_devices [--quick] [--out FILE]
"""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.arguments import quick_and_out
from benchmarks.policies.sa_paper import MAX_LEN, at_once, served
from benchmarks.publish import RESULTS, write_result
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.report.summary import Run

PROFILES = ("v100x4-qwen2.5-32b", "a800-qwen2.5-32b", "a800-qwen2.5-7b")
LIMITS = (1, 4)
REQUESTS, SEEDS = 40, tuple(range(20))
POLICIES = ("stock", "sjf:length=oracle", "sa:length=oracle", "sa")


def on(profile_name: str, requests: int, limit: int, policy: str, seed: int) -> Run:
    """One run: ``requests`` at once, of which ``limit`` may run."""
    settings = EngineSettings.of_profile(load_profile(profile_name), max_num_seqs=limit, max_model_len=MAX_LEN)
    return served(profile_name, at_once(requests, seed), settings, policy, seed, 0.0)


def measured(profiles: Sequence[str], limits: Sequence[int], requests: int, seeds: Sequence[int]) -> list[Any]:
    rows: list[dict[str, Any]] = []
    for profile in profiles:
        for limit in limits:
            runs = {p: [on(profile, requests, limit, p, seed) for seed in seeds] for p in POLICIES}
            goodput = {p: [run["slo_attainment"] / run["mean_e2el_ms"] for run in of] for p, of in runs.items()}
            for policy, of in runs.items():
                pairs = zip(goodput[policy], goodput["stock"], strict=True)
                ratio = [ours / base if base else None for ours, base in pairs]
                rows.append(
                    {
                        "profile": profile,
                        "max_batch": limit,
                        "policy": policy,
                        "goodput_of_stock": [None if one is None else round(one, 3) for one in ratio],
                        "attainment": [run["slo_attainment"] for run in of],
                        "mean_latency_s": [round(run["mean_e2el_ms"] / 1e3, 3) for run in of],
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "sa_devices.json.gz")
    rows = measured(PROFILES[:1], LIMITS[:1], 4, SEEDS[:1]) if quick else measured(PROFILES, LIMITS, REQUESTS, SEEDS)
    if out is not None:
        write_result(out, {"requests": REQUESTS, "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
