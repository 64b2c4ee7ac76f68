"""What does a preemption cost on a real engine: computed again, out of vLLM's offloading connector, or swapped?

Usage: python -m benchmarks.swap.real_engine [--seeds 3] [--engines none,offload-prompts,...] [--out FOLDER]

Runs of the other engines in the folder's runs.csv.gz stay.

vLLM's CPU engine serves builtin:tiny with a KV cache too small for what runs, in four ways: `none` computes again what
was preempted; `offload-prompts` has vLLM's OffloadingConnector, which is what `--kv-offloading-size` sets up, with its
default of keeping prompts alone, `offload-all` the same with replies too; `swap` has SwapConnector. The host memory is
equal and ample. Each serves the same requests in stock's order, under `edf`, and under `chaos`, which preempts a random
tenth of what runs at each step.

Two workloads: `own`, where no two prompts begin alike, and `shared`, where each of six documents is asked eight times
and the KV cache cannot hold all six.

Time is virtual and copies end at once, so a run is the same each time, whatever else the machine does. What is counted:
tokens that the engine computed, how many more these are than if each request were computed once and by itself
(`again`; below 0 where requests share), KiB copied each way, preemptions, steps. Checked: replies are the same, token
by token, whatever the engine and the order.
"""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, read_runs, write_runs, write_table

BLOCK_TOKENS, KV_BLOCKS, MAX_MODEL_LEN = 32, 48, 512
BLOCK_BYTES = 2 * 2 * 2 * 32 * BLOCK_TOKENS * 4
"""A KV block of builtin:tiny: layers, K and V, heads, size of a head, tokens, float32."""
HOST_BLOCKS = 512
REQUESTS, DOCUMENTS = 48, 6
ENGINES = ("none", "offload-prompts", "offload-all", "swap")
ORDERS: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "edf": {"policy": "edf"},
    "chaos": {"policy": "chaos", "policy_options": {"preempt": 0.1, "pause": 0.0, "limit": 0.0, "illegal": 0.0}},
}
FIGURES = ("computed", "again", "kib_out", "kib_in", "preemptions", "steps")

Row = dict[str, Any]


def jobs(workload: str, seed: int) -> list[Any]:
    """Requests that arrive a few steps apart; targets cross the order of arrival."""
    from tests.equality.workloads import CLASSES, Job

    rng = np.random.default_rng(seed)

    def text(tokens: int) -> str:
        return "".join(map(chr, rng.integers(97, 123, tokens)))

    documents = [text(224) for _ in range(DOCUMENTS)]
    found = []
    for i in range(REQUESTS):
        own = workload == "own"
        prompt = text(int(rng.integers(40, 300))) if own else documents[i % DOCUMENTS] + text(int(rng.integers(10, 40)))
        tokens = int(rng.integers(60, 160)) if own else int(rng.integers(10, 40))
        params = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        slo = {"slo_class": CLASSES[i % 4], "slo_e2e_ms": float(rng.integers(2, 60) * 1000)}
        found.append(Job(f"{workload}-{i}", prompt, 6 * i, params, slo=slo))
    return found


def transfer_config(engine: str) -> Any:
    """vLLM's own connector."""
    from vllm.config import KVTransferConfig

    from benchmarks.swap import cpu_offloading

    extra = {**cpu_offloading.EXTRA_CONFIG, "cpu_bytes_to_use": HOST_BLOCKS * BLOCK_BYTES}
    extra["offload_prompt_only"] = engine == "offload-prompts"
    return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)


def serve_all(engine_name: str, seeds: int) -> list[Row]:
    """Every workload, order and seed on one engine."""
    from benchmarks.swap.cpu_offloading import MOVED
    from sloserve.core.clock import ManualClock
    from tests.equality.engine import EngineConfig, started
    from tests.equality.harness import serve

    rows = []
    config = EngineConfig(async_scheduling=True, prefix_caching=True, host_blocks=HOST_BLOCKS * (engine_name == "swap"))
    arguments = {
        "max_model_len": MAX_MODEL_LEN,
        "num_gpu_blocks_override": KV_BLOCKS + 1,
        "max_num_batched_tokens": 128,
        **({"kv_transfer_config": transfer_config(engine_name)} if engine_name.startswith("offload") else {}),
    }
    with tempfile.TemporaryDirectory() as adapters, started(config, **arguments) as engine:
        for seed in range(seeds):
            for workload in ("own", "shared"):
                for order, section in ORDERS.items():
                    clock = ManualClock()
                    if section is None and engine_name != "swap":
                        engine.use_stock()
                    else:
                        section = {"policy": "fcfs", "swapping": "always", **(section or {})}
                        engine.use_sloserve({**section, "seed": seed}, clock=clock)
                    MOVED.clear()
                    wanted = jobs(workload, seed)
                    served = serve(engine, wanted, clock, Path(adapters))
                    if engine_name == "swap":
                        space = engine.scheduler.status()["swap_space"]
                        MOVED.update({way: int(space[f"swap_{way}_bytes"]) for way in ("out", "in")})
                    alone = sum(len(job.prompt) + job.params["max_tokens"] - 1 for job in wanted)
                    row: Row = {"policy": f"{workload} {order} {engine_name}", "seed": seed}
                    row |= {"computed": served.computed_tokens, "again": served.computed_tokens - alone}
                    row |= {"kib_out": MOVED["out"] // 1024, "kib_in": MOVED["in"] // 1024}
                    row |= {"preemptions": served.preemptions, "steps": served.steps}
                    replies = json.dumps(sorted(served.outputs.items())).encode()
                    rows.append(row | {"replies": int(hashlib.sha256(replies).hexdigest()[:12], 16)})
                    print(rows[-1], flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Means over the seeds. Raises: ValueError where replies differ between engines or orders."""
    lines = [f"{'workload':9}{'order':7}{'engine':17}" + "".join(f"{name:>13}" for name in FIGURES)]
    for workload in ("own", "shared"):
        for seed in sorted({row["seed"] for row in rows}):
            said = {row["replies"] for row in rows if row["policy"].startswith(workload) and row["seed"] == seed}
            if len(said) != 1:
                raise ValueError(f"replies differ: {workload}, seed {seed}")
        for order in ORDERS:
            for engine in ENGINES:
                cell = [row for row in rows if row["policy"] == f"{workload} {order} {engine}"]
                if cell:
                    means = [np.mean([float(row[name]) for row in cell]) for name in FIGURES]
                    lines.append(f"{workload:9}{order:7}{engine:17}" + "".join(f"{mean:13,.0f}" for mean in means))
    return "\n".join(lines) + "\n"


def main() -> None:
    args = parser_for(__doc__, seeds=3, engines=",".join(ENGINES), out=RESULTS / "swap-real-engine").parse_args()
    names, runs = args.engines.split(","), args.out / RUNS
    rows = [row for row in read_runs(runs) if row["policy"].split()[-1] not in names]
    # vLLM has one KV connector a process.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(serve_all, names, [args.seeds] * len(names)):
            rows += found
            write_runs(runs, rows)
    write_table(args.out, table(rows), shown=True)


if __name__ == "__main__":
    main()
