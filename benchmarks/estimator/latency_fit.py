"""How well does each latency form, fitted to measured steps, predict steps it has not seen?

Writes benchmarks/results/latency_fit.json.gz. Measures the real engine of builtin:tiny on the CPU, as `sloserve
profile` does, and, where SLOSERVE_DATA names a folder with it, the composed steps of GPUs that the shipped profiles are
fitted to. The engine has one thread, in this process, and is timed by the process's CPU time: on a shared machine wall
time says how busy the others are.
"""

import csv
import gzip
import json
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.estimator.step_time.fit import MeasuredStep
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.measurements import Measurements
from sloserve.estimator.step_time.profiling import ProfileSettings, knee_tokens, measure_grid, scores

REPETITIONS = 5
SEEDS = (0, 1, 2)
"""Seeds of the split that holds some steps out of the fit."""
MAX_CONTEXT_TOKENS = 65_536
FLAGS = ("builtin:tiny", "--max-num-seqs", "128")


def tiny_steps(quick: bool) -> list[MeasuredStep]:
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }.items():
        os.environ.setdefault(name, value)
    from sloserve.vllm_plugin.server import serve

    args = serve.prepare(FLAGS)
    from sloserve.vllm_plugin.profile_engine import ProfileEngine

    settings = ProfileSettings("small" if quick else "full", 2 if quick else REPETITIONS, "hinge", MAX_CONTEXT_TOKENS)
    engine = ProfileEngine(args, now_s=time.process_time)
    try:
        with tempfile.TemporaryDirectory() as folder:
            measured = Measurements.open(Path(folder, "raw.jsonl"), {})
            measure_grid(engine, settings.scenarios(engine.limits), settings.repetitions, measured)
            return measured.steps()
    finally:
        engine.shutdown()


def composed_steps(path: Path) -> dict[str, list[MeasuredStep]]:
    """Sums of kernel times by device, model and tensor parallel size; decode contexts there are equal in a step."""
    found: dict[str, list[MeasuredStep]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            load = StepLoad(
                prefill_tokens=int(row["prefill_tokens"]),
                num_prefills=int(row["prefill_seqs"]),
                decode_seqs=int(row["batch"]),
                decode_context_tokens=int(row["context_tokens"]),
                prefill_attention_tokens2=int(float(row["sum_isl2"])),
            )
            name = f"{row['device']} {row['vllm']} {row['model']} TP{row['tp']}"
            if load.tokens:
                found[name].append(MeasuredStep(load, float(row["t_ms"]) / 1e3))
    return found


def assessed(steps: list[MeasuredStep]) -> dict[str, object]:
    """Held-out scores of each form, averaged over which steps are held out."""
    by_seed = [scores(steps, seed) for seed in SEEDS]
    forms = {
        form: {
            key: sum(asdict(found[form])[key] for found in by_seed) / len(by_seed)
            for key in ("r2", "mape_percent", "steps")
        }
        for form in by_seed[0]
    }
    durations_ms = sorted(s.duration_s * 1e3 for s in steps)
    return {"steps": len(steps), "min_ms": durations_ms[0], "max_ms": durations_ms[-1], "held_out": forms}


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "latency_fit.json.gz")
    steps = tiny_steps(quick)
    result: dict[str, object] = {"tiny": assessed(steps) | {"tfs_tokens": knee_tokens(steps)}}
    data = Path(os.environ.get("SLOSERVE_DATA", "")) / "gpu_step_profile.csv.gz"
    if data.is_file():
        result |= {name: assessed(found) for name, found in sorted(composed_steps(data).items())}
    print(json.dumps(result, indent=1))
    if out is not None:
        write_result(out, {"systems": result})


if __name__ == "__main__":
    main()
