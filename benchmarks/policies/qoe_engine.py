"""What do readers get of a real engine whose KV cache is scarce: vLLM's own server, and ours under fcfs, edf and andes?

Usage: python -m benchmarks.policies.qoe_engine [--repeats 3] [--requests 200] [--policies fcfs,edf,andes]

One server of builtin:tiny at a time, the policies in turn on the same streamed, greedy requests; a repeat is another
seed, and another server begins. Lengths are ShareGPT's, arrivals Poisson.

Time is scaled to the engine, which writes a reply in seconds. First plain vLLM gets all requests at once: what it then
serves a second, the emptying at the end included, which makes it less than it could, is its capacity, and requests come
at LOAD times that. The readers' mean speed is a PACE-th of that at
which a running reply then grows. People's is 4.8 tokens/s: what Andes counts in seconds of theirs, the expected TTFT of
1 s and the options LEAD_S and URGENT_S, shrinks by the ratio of the two speeds. What cannot be scaled: andes pauses
only with 5 s of lead, which is minutes here, so that it hardly pauses.

Checked on every run: each stream is complete, and its text is what plain vLLM answered to the same prompt.
"""

import asyncio
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.policies.streams import CHECKS, STOCK, ServedRun, compared, must_equal_stock, serve, show
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import ONE_THREAD, plain_vllm_command, scarce_kv, served, sloserve_command
from sloserve.client.shaping import cap_lengths
from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLOClass, Targets
from sloserve.core.speeds import READING, DigestSpeeds
from sloserve.sim.workloads.slo_assignment import ClassRule, SLOAssignment
from sloserve.sim.workloads.workload_registry import workload

WORKLOAD = "sharegpt-poisson"
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 512, 1024
KV_BLOCKS = 440
"""Blocks of 32 tokens: some 30 of these requests fit at a time, where 128 could run."""
FLAGS = scarce_kv(KV_BLOCKS)
LOAD, PACE = 2.5, 3.0
LEAD_S, URGENT_S = 40.0, 0.5
"""Defaults of andes' ``lead_s`` and ``urgent_s``; the second is an option of its variant for experiments alone."""
CAPACITY_SEED, WARM_UP_SEED = 2**20, 2**21
WARM_UP = 8
FIGURES = ("qoe_mean", "qoe_p10", "qoe_p50", "median_ttft_ms", "p90_ttft_ms", "output_throughput", "preemptions")


@dataclass(frozen=True, slots=True)
class ReaderScale:
    """Scales the readers' time to this engine. rps: offered. tds: tokens per second of the mean reader."""

    rps: float
    tds: float

    @property
    def readers_s(self) -> float:
        """Seconds here that are a second of people who read."""
        return READING.mean_tds / self.tds

    def slos(self) -> SLOAssignment:
        """Andes's readers, with all their speeds, in a hurry."""
        targets = Targets(ttft_s=DEFAULT_TTFT_S * self.readers_s)
        rule = ClassRule(SLOClass("interactive", 1, targets), speeds=DigestSpeeds(READING.groups, self.tds))
        return SLOAssignment("readers at the pace of this engine", (rule,), default="interactive")

    def policy(self, name: str) -> str:
        """The policy as it is given to ``--policy``, with options in this scale."""
        scaled = f":lead_s={LEAD_S * self.readers_s:.3g}:urgent_s={URGENT_S * self.readers_s:.3g}"
        return "andes-parts" + scaled if name == "andes" else name

    def requests(self, n: int, seed: int) -> list[WorkloadRequest]:
        found = workload(WORKLOAD).requests(n, seed, self.rps, slos=self.slos())
        return cap_lengths(found, MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS)[0]


async def warm_up(url: str) -> None:
    few = [replace(request, arrival_s=0.0) for request in ReaderScale(1.0, 50.0).requests(WARM_UP, WARM_UP_SEED)]
    await serve(url, few, WARM_UP_SEED)


async def scale_of(url: str, n: int, load: float) -> tuple[ReaderScale, dict[str, Any]]:
    """The scale to a server, from ``n`` requests at once, and that run's record."""
    await warm_up(url)
    at_once = [replace(request, arrival_s=0.0) for request in ReaderScale(1.0, 50.0).requests(n, CAPACITY_SEED)]
    record = (await serve(url, at_once, CAPACITY_SEED)).record(STOCK, CAPACITY_SEED, 0.0)
    return ReaderScale(load * record["request_throughput"], 1e3 / (PACE * record["median_tpot_ms"])), record


def command(policy: str) -> tuple[list[str], dict[str, str]]:
    """How to start a server, and the environment; plain vLLM has no plugin, not even an idle one."""
    if policy == STOCK:
        return [*plain_vllm_command(), *FLAGS], ONE_THREAD | {"VLLM_PLUGINS": ""}
    return [*sloserve_command(policy), *FLAGS], ONE_THREAD


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--load", type=float, default=LOAD, help="in multiples of stock's capacity")
    parser.add_argument("--policies", default="fcfs,edf,andes")
    parser.add_argument("--port", type=int, default=8140)
    given = parser.parse_args()
    policies = [STOCK, *given.policies.split(",")]
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        started, environment = command(STOCK)
        with served(started, given.port, Path(logs, "scale.log"), **environment) as url:
            scale, capacity = asyncio.run(scale_of(url, given.requests, given.load))
        print(f"{scale}, {capacity['output_throughput']:.0f} tokens/s at most", flush=True)
        for seed in range(given.repeats):
            requests = scale.requests(given.requests, seed)
            runs: dict[str, ServedRun] = {}
            first = seed % len(policies)  # another one each time, so that a drift of the machine favours nobody
            for policy in policies[first:] + policies[:first]:
                started, environment = command(scale.policy(policy))
                with served(started, given.port, Path(logs, f"{policy}-{seed}.log"), **environment) as url:
                    asyncio.run(warm_up(url))
                    runs[policy] = asyncio.run(serve(url, requests, seed))
            for policy, run in runs.items():
                records.append(run.record(policy, seed, scale.rps) | run.checked(runs[STOCK]))
                print(json.dumps({key: records[-1][key] for key in ("policy", "seed", *FIGURES, *CHECKS)}), flush=True)
    table = compared(records, policies, FIGURES)
    show(table)
    settings = vars(given) | {"workload": WORKLOAD, "kv_blocks": KV_BLOCKS, "flags": FLAGS, "pace": PACE}
    settings |= {"rps": scale.rps, "tds": scale.tds, "andes": scale.policy("andes"), "capacity": capacity}
    found = {"settings": settings, "mean_least_greatest": table, "runs": records}
    write_result(RESULTS / "qoe_engine.json.gz", found)
    must_equal_stock(records)


if __name__ == "__main__":
    main()
