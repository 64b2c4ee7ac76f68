"""Does a real engine with PacedWorker keep the simulator's time? Real time against virtual time, same requests.

Writes benchmarks/results/paced_worker.json.gz. One vLLM engine in this process: its real core loop, scheduler, input
and output processing; requests are added when they arrive. Machine time that a step's work takes beyond the step itself
shows as real time above virtual time.
"""

import os
import time
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.workloads.workload_registry import workload
from sloserve.vllm_plugin.virtual.engine import VirtualEngine
from sloserve.wire.xargs import to_xargs

PROFILE = "h100-llama3-8b"
SEQS, TOKENS, CONTEXT = 128, 2048, 4096
SEEDS = (0, 1, 2)


def requests(seed: int, n: int, rps: float) -> list[WorkloadRequest]:
    made = workload("chat-batch-mix").requests(n, seed, rps)
    return [r for r in made if r.prompt_tokens + r.output_tokens < CONTEXT]


def real(items: list[WorkloadRequest], policy: str | None) -> dict[str, np.ndarray]:
    """Arrival-relative token times of each request, by its id."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from sloserve.vllm_plugin.server.tiny_model import resolve_model

    section: dict[str, Any] = {"profile": PROFILE, **({} if policy is None else {"policy": policy})}
    profile = load_profile(PROFILE)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=resolve_model("builtin:tiny"),
            worker_cls="benchmarks.paced_worker.PacedWorker",
            scheduler_cls=None if policy is None else "sloserve.vllm_plugin.SLOScheduler",
            additional_config={"sloserve": section},
            max_num_seqs=SEQS,
            max_num_batched_tokens=TOKENS,
            max_model_len=CONTEXT,
            block_size=profile.block_size,
            enable_prefix_caching=False,
            enforce_eager=True,
            disable_log_stats=True,
        )
    )
    times: dict[str, list[float]] = {item.request_id: [] for item in items}
    begin_s, waiting, busy_s = time.perf_counter(), list(reversed(items)), time.process_time()
    while waiting or engine.has_unfinished_requests():
        now_s = time.perf_counter() - begin_s
        while waiting and waiting[-1].arrival_s <= now_s:
            item = waiting.pop()
            extra = None if policy is None else to_xargs(item.slo, item.output_tokens)
            params = SamplingParams(max_tokens=item.output_tokens, ignore_eos=True, temperature=0.0, extra_args=extra)
            engine.add_request(item.request_id, {"prompt_token_ids": [5] * item.prompt_tokens}, params)
        if not engine.has_unfinished_requests():
            time.sleep(max(waiting[-1].arrival_s - (time.perf_counter() - begin_s), 0.0))
            continue
        for output in engine.step():
            ids = output.outputs[0].token_ids
            stamps = times[output.request_id]
            stamps.extend([time.perf_counter() - begin_s] * (len(ids) - len(stamps)))
    print(f"  {(time.process_time() - busy_s) / (time.perf_counter() - begin_s):.2f} of a core", flush=True)
    engine.engine_core.shutdown()
    return {id_: np.array(stamps) for id_, stamps in times.items()}


def virtual(items: list[WorkloadRequest], policy: str | None) -> dict[str, np.ndarray]:
    profile = load_profile(PROFILE)
    settings = EngineSettings.of_profile(
        profile, max_num_seqs=SEQS, max_num_batched_tokens=TOKENS, max_model_len=CONTEXT
    )
    config = None if policy is None else {"sloserve": {"policy": policy, "profile": PROFILE}}
    log = VirtualEngine(settings, profile, config).run(items)
    return {one.request.request_id: one.token_times_s for one in log.requests}


def figures(items: list[WorkloadRequest], times: dict[str, np.ndarray]) -> dict[str, float]:
    ttft = [float(times[i.request_id][0]) - i.arrival_s for i in items]
    e2e = [float(times[i.request_id][-1]) - i.arrival_s for i in items]
    tpot = [np.ptp(times[i.request_id]) / (i.output_tokens - 1) for i in items if i.output_tokens > 1]
    return {
        "ttft_ms_mean": float(np.mean(ttft)) * 1e3,
        "tpot_ms_mean": float(np.mean(tpot)) * 1e3,
        "e2e_s_mean": float(np.mean(e2e)),
        "e2e_s_p99": float(np.percentile(e2e, 99)),
        "makespan_s": max(float(one[-1]) for one in times.values()),
    }


def main() -> None:
    arguments = parser_for(__doc__, requests=200, rps=12.0).parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    runs = []
    for seed in SEEDS:
        items = requests(seed, arguments.requests, arguments.rps)
        for policy in (None, "edf"):
            found = {"real": figures(items, real(items, policy)), "virtual": figures(items, virtual(items, policy))}
            ratio = {name: found["real"][name] / found["virtual"][name] for name in found["real"]}
            runs.append({"seed": seed, "policy": policy or "stock", **found, "ratio": ratio})
            print(seed, policy or "stock", {name: round(value, 3) for name, value in ratio.items()}, flush=True)
    about = {"profile": PROFILE, "requests": arguments.requests, "rps": arguments.rps}
    write_result(RESULTS / "paced_worker.json.gz", {**about, "runs": runs})


if __name__ == "__main__":
    main()
