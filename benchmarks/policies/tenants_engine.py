"""Measures on a real CPU engine what two tenants have in time while a third sends ten times as much.

One server of builtin:tiny at a time, with a scarce KV cache: vLLM's own, and ours under each policy without shares and
with shares of equal weight. Three tenants send the same streamed, greedy requests with ShareGPT's lengths; for a third
of the time the first of them sends ten times as much. A repeat is another seed, and another server begins.

Stock first gets all requests of one seed at once, which gives its capacity and its pace. Requests come at LOAD times
the capacity outside of the burst. The target of the first token is TTFT_TOKENS tokens at that pace, and a token may
take TPOT_TIMES as long as there.

Every run is checked: each stream is complete, and its text is what plain vLLM answered to the same prompt.

Writes results/tenants_engine.json.gz.

Usage: python -m benchmarks.policies.tenants_engine [--repeats 3] [--span-s 8] [--policies auto]
"""

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.streams import STOCK, ServedRun, must_equal_stock, serve
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import ONE_THREAD, plain_vllm_command, scarce_kv, served, sloserve_command
from sloserve.client.shaping import cap_lengths
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.sim.bench.bench_report import NO_STEPS
from sloserve.sim.report.tenant_report import tenant_record
from sloserve.sim.workloads.workload_registry import workload

WORKLOAD = "sharegpt-poisson"
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 512, 128
FLAGS = scarce_kv(440)
LOAD, TIMES = 0.7, 10.0
TTFT_TOKENS, TPOT_TIMES = 30.0, 2.0
TENANTS = ("bursts", "b", "c")
CAPACITY_SEED, CAPACITY_REQUESTS = 2**20, 150
SHARES = ":shares"


def requests_of(slo: SLO, rps: float, span_s: float, seed: int) -> list[WorkloadRequest]:
    """Return the requests of three tenants over three spans; ``rps`` is the rate of all outside of the second span."""
    rng = np.random.default_rng(seed)
    arrivals = []
    for span in range(3):
        for tenant in TENANTS:
            rate = rps / len(TENANTS) * (TIMES if (span, tenant) == (1, TENANTS[0]) else 1.0)
            arrivals += [(span_s * (span + x), tenant) for x in rng.random(rng.poisson(rate * span_s))]
    arrivals.sort()
    found = cap_lengths(workload(WORKLOAD).requests(len(arrivals), seed, 1.0), MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS)[0]
    return [
        replace(one, arrival_s=float(at_s), tenant=tenant, slo=slo)
        for one, (at_s, tenant) in zip(found, arrivals, strict=True)
    ]


def command(policy: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return how to start a server, and its environment; plain vLLM has no plugin, not even an idle one."""
    if policy == STOCK:
        return [*plain_vllm_command(), *FLAGS], ONE_THREAD | {"VLLM_PLUGINS": ""}
    name, _, shares = policy.partition(":")
    settings = folder / "shares.yaml"
    settings.write_text("tenant_shares: {}\n" if shares else "{}\n", encoding="utf-8")
    return [*sloserve_command(name), *FLAGS, "--slo-config", str(settings)], ONE_THREAD


async def warm_up(url: str) -> None:
    await serve(url, requests_of(DEFAULT_CLASSES.slo("interactive", Targets()), 6.0, 0.3, 7), 7)


async def scale_of(url: str) -> tuple[float, SLO, dict[str, Any]]:
    """Return stock's capacity in requests a second, the targets, and the record of the run that gave them."""
    await warm_up(url)
    plain = cap_lengths(
        workload(WORKLOAD).requests(CAPACITY_REQUESTS, CAPACITY_SEED, 1.0), MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS
    )[0]
    record = (await serve(url, [replace(one, arrival_s=0.0) for one in plain], CAPACITY_SEED)).record(STOCK, 0, 0.0)
    tpot_s = record["median_tpot_ms"] / 1e3
    targets = Targets(ttft_s=TTFT_TOKENS * tpot_s, tpot_s=TPOT_TIMES * tpot_s)
    return record["request_throughput"], DEFAULT_CLASSES.slo("interactive", targets), record


def record_of(policy: str, seed: int, run: ServedRun, stock: ServedRun) -> dict[str, Any]:
    """Return the figures of one run by tenant, and what its checks found."""
    log = RunLog([one.log(one.request) for one in run.run.exchanges], NO_STEPS, {"wall_s": run.run.duration_s})
    tokens = sum(one.token_times_s.size for one in run.run.exchanges)
    return (
        {"policy": policy, "seed": seed, "output_throughput": tokens / run.run.duration_s}
        | {"preemptions": run.preemptions / len(run.run.exchanges)}
        | tenant_record(log, None)
        | run.checked(stock)
    )


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--span-s", type=float, default=8.0)
    parser.add_argument("--policies", default="auto")
    parser.add_argument("--port", type=int, default=8141)
    given = parser.parse_args()
    policies = [STOCK, *(name + shares for name in given.policies.split(",") for shares in ("", SHARES))]
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started, environment = command(STOCK, folder)
        with served(started, given.port, folder / "scale.log", **environment) as url:
            rps, slo, capacity = asyncio.run(scale_of(url))
        print(f"{rps:.1f} requests/s at most, targets {slo.targets}", flush=True)
        for seed in range(given.repeats):
            requests = requests_of(slo, LOAD * rps, given.span_s, seed)
            runs: dict[str, ServedRun] = {}
            first = seed % len(policies)  # another one each time, so that a drift of the machine favours nobody
            for policy in policies[first:] + policies[:first]:
                started, environment = command(policy, folder)
                with served(started, given.port, folder / f"{policy}-{seed}.log", **environment) as url:
                    asyncio.run(warm_up(url))
                    runs[policy] = asyncio.run(serve(url, requests, seed))
            for policy, run in runs.items():
                records.append(record_of(policy, seed, run, runs[STOCK]))
                print(json.dumps(records[-1]), flush=True)
    settings = vars(given) | {"workload": WORKLOAD, "flags": FLAGS, "load": LOAD, "rps": LOAD * rps}
    settings |= {"ttft_s": slo.targets.ttft_s, "tpot_s": slo.targets.tpot_s, "capacity": capacity}
    write_result(RESULTS / "tenants_engine.json.gz", {"settings": settings, "runs": records})
    must_equal_stock(records)


if __name__ == "__main__":
    main()
