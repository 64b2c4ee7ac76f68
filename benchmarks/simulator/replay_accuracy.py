"""How far is a replay from what a real engine did, and does it foresee what another policy would have brought?

vLLM's engine of builtin:tiny serves three workloads on this machine's CPU, in real time, with a recording, under the
order of stock vLLM (fcfs), edf and auto, at a load at which stock has some requests in time and others not. Each
recording is replayed under the policy that ran, which gives the replay's own error, and under the two others: the
difference that it foretells is set against the difference between the real runs of the same requests.

    python -m benchmarks.simulator.replay_accuracy [--seeds 3] [--requests 400] [--quick]

Prints and writes benchmarks/results/replay_accuracy.json.gz. A pair counts as beyond noise where the real difference is
larger than its own 95 % interval, by stretches of time.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, provenance, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.workloads.workload_registry import workload

WORKLOADS = {"sharegpt-gamma3": 1.4, "sharegpt-bursts": 1.4, "chat-batch-mix": 1.1}
"""Workloads, and the load at which stock has some requests in time, in multiples of its capacity."""
FACTORS = (1.0, 1.8)
"""Multiples of that load; at the second edf and auto have requests late too."""
POLICIES = ("fcfs", "edf", "auto")
FLAGS = ("builtin:tiny", "--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--no-enable-prefix-caching")
SHRINK = 8
"""Outputs of the workloads are this many times as long."""
RUSH = 120
REPLAYS = 3


def requests_of(name: str, seed: int, count: int, rps: float, engine: EngineSettings) -> list[WorkloadRequest]:
    """Return the requests of a workload, with outputs as short as a run of half a minute needs them."""
    most = engine.max_model_len // 2
    return [
        replace(
            one, prompt_tokens=min(one.prompt_tokens, most), output_tokens=min(-(-one.output_tokens // SHRINK), most)
        )
        for one in workload(name).requests(count, seed, rps)
    ]


class RecordedEngine:
    """An engine whose runs are recorded."""

    def __init__(self) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from benchmarks.serving.live_policies import LiveEngine
        from sloserve.vllm_plugin.profile_engine import ProfileEngine
        from sloserve.vllm_plugin.server import serve

        engine = ProfileEngine(serve.prepare(list(FLAGS), {}))
        limits = engine.limits
        self.settings = EngineSettings(
            kv_blocks=limits.kv_capacity_tokens // 16,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
        )
        self._live = LiveEngine(engine.core, engine.config, self.settings.kv_blocks)

    def capacity_rps(self, name: str) -> float:
        """Return the requests per second of a workload that stock serves if all come at once."""
        items = requests_of(name, 99, RUSH, 1e6, self.settings)
        self._live.use({"sloserve": {"policy": "fcfs"}})
        log = self._live.serve(items, self.settings)
        ended = np.sort([one.token_times_s[-1] for one in log.requests if one.token_times_s.size])
        return float(0.8 * ended.size / (ended[int(0.9 * ended.size) - 1] - ended[int(0.1 * ended.size)]))

    def record(self, policy: str, name: str, items: Sequence[WorkloadRequest], folder: Path) -> Path:
        """Serve requests and return the folder of their recording."""
        from sloserve.core.clock import SystemClock
        from sloserve.vllm_plugin.engine.recorded import Recorded

        classes = workload(name).slos.table.as_config()
        self._live.use({"sloserve": {"policy": policy, **classes}})
        scheduler = self._live.core.scheduler
        recorded = Recorded(scheduler, folder, "run", 64 << 20, SystemClock())
        scheduler.record(recorded)
        self._live.serve(items, self.settings)
        recorded.close()
        return folder


def judged(folders: dict[str, Path]) -> dict[str, Any]:
    """Return what replays of the recordings of one workload and seed foretell, and what was."""
    from sloserve.engine.recording.reading import read_recording, recordings
    from sloserve.sim.replay.engine_of import fitted_steps
    from sloserve.sim.replay.judged import difference, recorded_fates, replay_error, replayed_fates
    from sloserve.sim.replay.replay import Replayed
    from sloserve.sim.replay.traffic import span_of, traffic

    real, replays, rows = {}, {}, {}
    for policy, folder in folders.items():
        recording = read_recording(next(iter(recordings(folder).values())))
        asked = traffic(recording, span_of(recording, None))
        replayed = Replayed(recording, fitted_steps(recording), asked)
        real[policy] = recorded_fates(recording, asked)
        for other in folders:
            logs = [replayed.run(other, seed=seed) for seed in range(REPLAYS)]
            replays[policy, other] = [replayed_fates(log, asked) for log in logs]
        error = replay_error(real[policy], replays[policy, policy])
        rows[policy] = {
            "in_time": real[policy].in_time(),
            "points": error.points,
            "ttft_p50": error.ttft_p50,
            "ttft_p99": error.ttft_p99,
            "step_error_percent": replayed.fitted.score.mape_percent,
        }
    pairs = []
    for ran, other in permutations(folders, 2):
        true, foretold = difference([real[other]], [real[ran]]), difference(replays[ran, other], replays[ran, ran])
        assert true is not None and foretold is not None
        pairs.append(
            {
                "ran": ran,
                "other": other,
                "true": true.value,
                "foretold": foretold.value,
                "beyond_noise": true.low > 0.0 or true.high < 0.0,
            }
        )
    return {"replays": rows, "pairs": pairs}


def table(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row for each workload and policy: means of absolute errors over the seeds."""
    rows = [["workload", "load", "ran", "in time %", "error, points", "TTFT p50 %", "TTFT p99 %", "step %"]]
    for name, factor in dict.fromkeys((cell["workload"], cell["factor"]) for cell in cells):
        for policy in POLICIES:
            same = [cell for cell in cells if (cell["workload"], cell["factor"]) == (name, factor)]
            found = [cell["replays"][policy] for cell in same]

            def mean(key: str) -> float:
                return float(np.mean([abs(one[key]) for one in found]))  # noqa: B023

            rows.append(
                [
                    name,
                    f"{factor * WORKLOADS[name]:.1f}",
                    policy,
                    f"{100.0 * mean('in_time'):.1f}",
                    f"{mean('points'):.1f} (most {max(abs(one['points']) for one in found):.1f})",
                    f"{100.0 * mean('ttft_p50'):.0f}",
                    f"{100.0 * mean('ttft_p99'):.0f}",
                    f"{mean('step_error_percent'):.0f}",
                ]
            )
    pairs = [pair for cell in cells for pair in cell["pairs"] if pair["beyond_noise"]]
    right = sum((pair["true"] > 0.0) == (pair["foretold"] > 0.0) for pair in pairs)
    off = float(np.mean([abs(pair["true"] - pair["foretold"]) for pair in pairs])) if pairs else float("nan")
    text = f"sign foreseen in {right} of {len(pairs)} pairs beyond noise, the gain within {off:.1f} points on average"
    return [*aligned(rows).splitlines(), text]


def main() -> None:
    """Run the benchmark."""
    parser = parser_for(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="multiples of the workloads' load")
    parser.add_argument("--quick", action="store_true", help="one workload, one seed, 100 requests; writes nothing")
    args = parser.parse_args()
    engine = RecordedEngine()
    names = list(WORKLOADS)[: 1 if args.quick else None]
    count = 100 if args.quick else args.requests
    capacity = {name: engine.capacity_rps(name) for name in names}
    cells: list[dict[str, Any]] = []
    factors = FACTORS[:1] if args.quick else tuple(args.factors)
    for factor, seed in product(factors, range(1 if args.quick else args.seeds)):
        for name in names:
            rps = factor * WORKLOADS[name] * capacity[name]
            items = requests_of(name, seed, count, rps, engine.settings)
            with tempfile.TemporaryDirectory() as folder:
                folders = {one: engine.record(one, name, items, Path(folder) / one) for one in POLICIES}
                cells.append({"workload": name, "factor": factor, "seed": seed, "rps": rps, **judged(folders)})
            print(json.dumps(cells[-1]), flush=True)
            if not args.quick:
                about = provenance() | {"loads": WORKLOADS, "requests": count, "flags": FLAGS}
                write_result(RESULTS / "replay_accuracy.json.gz", about | {"table": table(cells), "cells": cells})
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
