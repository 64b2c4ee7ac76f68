"""How well is a scarce KV cache used on a real engine: by vLLM's own scheduler, and under econo and its rivals?

Usage: python -m benchmarks.policies.econo_engine [--repeats 3] [--requests 160] [--policies fcfs,edf,sjf,econo,...]

Two servers of builtin:tiny, plain vLLM's and ours, one of them idle at a time; ours gets each policy anew, without what
an earlier one has learnt. All serve the same streamed, greedy requests in turn, which come at once, so that what is
planned does not depend on how fast the machine happens to be; a repeat is another seed, and another policy begins.
Lengths are ShareGPT's. Nothing tells them: replies end by themselves (:func:`ending`), and the targets are the default
ones of workloads, half of the requests interactive, half batch, whatever their lengths.

KV use, of the time while requests wait:
- ``kv_usage``: share of blocks held, as vLLM reports it (``vllm:kv_cache_usage_perc``), sampled and weighted with time.
- ``kv_useful``: ``kv_usage`` x first / computed tokens. Of all KV entries that the engine computed during the run, by
  its own log of steps, first are those that were not computed before: prompts and replies, once. An entry that is
  computed again was thrown away.

Other work on the machine changes how long a step takes. So there is beside what takes time, in steps:
- ``tokens_per_step``: of replies, while requests wait.
- ``normalized_latency_steps``: the mean of e2e / output tokens, in steps of the engine until the last token. It leaves
  out that steps which compute more take longer; ``computed_per_step`` is the mean of that.

Checked on every run: each stream is complete, and its text and length are what plain vLLM answered to the same prompt.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.streams import CHECKS, STOCK, ServedRun, compared, counter, must_equal_stock, serve, show
from benchmarks.publish import RESULTS, provenance, write_result
from benchmarks.servers import ONE_THREAD, plain_vllm_command, scarce_kv, served, sloserve_command
from sloserve.client.payload import Payload
from sloserve.client.shaping import cap_lengths
from sloserve.core.clock import SystemClock
from sloserve.core.request import WorkloadRequest
from sloserve.sim.workloads.workload_registry import workload

WORKLOAD = "sharegpt-poisson"
MAX_PROMPT_TOKENS, MAX_TOKENS = 512, 1024
KV_BLOCKS = 440
"""Some 30 of these requests at a time, where 128 could run; as in qoe_engine.py."""
FLAGS = [*scarce_kv(KV_BLOCKS), "--enable-logging-iteration-details"]
SAMPLE_S = 0.1
WARM_UP, WARM_UP_SEED = 60, 2**21
"""Requests before each run: from less no policy knows how long replies are."""
STOPS = list(range(0, 94, 2))
"""Every second printable character, by the tokenizer of builtin:tiny."""
ADMIN_KEY = "benchmark"
FIGURES = (
    *("kv_usage", "kv_useful", "preemptions", "recomputed_tokens", "normalized_latency_ms", "output_throughput"),
    *("waiting_throughput", "p95_itl_ms", "tokens_per_step", "normalized_latency_steps", "computed_per_step"),
)
_STEP = re.compile(r"Iteration\(\d+\): \d+ context requests, (\d+) context tokens, \d+ generation requests, (\d+) gen")
_SAMPLED = ("kv_cache_usage_perc", "num_requests_waiting", "generation_tokens_total", "iteration_tokens_total_count")
_METRIC = re.compile(rf"^vllm:({'|'.join(_SAMPLED)}){{[^}}]*}} (\S+)$", re.M)


def at_once(n: int, seed: int) -> list[WorkloadRequest]:
    found = workload(WORKLOAD).requests(n, seed, 1.0)
    return [replace(one, arrival_s=0.0) for one in cap_lengths(found, MAX_PROMPT_TOKENS, None)[0]]


def ending(sent: Payload) -> Payload:
    """``sent`` with a reply that ends by itself, a few tokens behind its length, so that nobody can read it off.

    Greedy over all characters but STOPS up to that length, then over all, until one of STOPS comes: a function of the
    prompt alone, like any greedy reply.
    """
    body = json.loads(sent.content)
    body |= {"max_tokens": MAX_TOKENS, "min_tokens": body["max_tokens"], "stop_token_ids": STOPS, "ignore_eos": False}
    return replace(sent, content=json.dumps(body).encode())


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server's metrics said. usage: share of KV blocks. waiting: requests. tokens: of replies. steps: so far."""

    at_s: float
    usage: float
    waiting: float
    tokens: float
    steps: float


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[list[Sample]]:
    """Samples of the server, to the end of the block."""
    samples: list[Sample] = []

    async def watch() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                found = dict(_METRIC.findall((await client.get(f"{url}/metrics")).text))
                samples.append(Sample(SystemClock().monotonic_s(), *(float(found[name]) for name in _SAMPLED)))
                await asyncio.sleep(SAMPLE_S)

    watcher = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A run and what its engine did meanwhile. step_tokens: computed, by the log. cached: found in the prefix cache."""

    served: ServedRun
    samples: list[Sample]
    step_tokens: list[int]
    cached: int

    def record(self, policy: str, seed: int) -> dict[str, Any]:
        exchanges = self.served.run.exchanges
        # The last token of a reply is never put in.
        first = sum(one.prompt_tokens + one.output_tokens - 1 for one in exchanges) - self.cached
        computed = sum(self.step_tokens)
        busy = [(a, b) for a, b in zip(self.samples, self.samples[1:], strict=False) if a.waiting and b.waiting]
        waiting_s = sum(b.at_s - a.at_s for a, b in busy)
        tokens, steps = (sum(getattr(b, name) - getattr(a, name) for a, b in busy) for name in ("tokens", "steps"))
        usage = sum((a.usage + b.usage) / 2.0 * (b.at_s - a.at_s) for a, b in busy) / waiting_s
        record = self.served.record(policy, seed, 0.0)
        ends_s = [self.served.began_s + one.token_times_s[-1] for one in exchanges]
        ended_at = np.interp(ends_s, [one.at_s for one in self.samples], [one.steps for one in self.samples])
        per_token = (ended_at - self.samples[0].steps) / [one.output_tokens for one in exchanges]
        return record | {
            "kv_usage": usage,
            "kv_useful": usage * first / computed,
            "recomputed_tokens": (computed - first) / len(exchanges),
            "computed_tokens": computed,
            "cached_tokens": self.cached,
            "steps": len(self.step_tokens),
            "tokens_per_step": tokens / steps,
            "normalized_latency_steps": float(per_token.mean()),
            "computed_per_step": computed / len(self.step_tokens),
            "waiting_s": waiting_s,
            "waiting_throughput": tokens / waiting_s,
        }


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs. log: of its output."""

    url: str
    log: Path

    async def follow(self, policy: str) -> None:
        """Makes it begin anew with ``policy``."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False) as client:
            (await client.put("/sloserve/policy", json={"policy": policy})).raise_for_status()

    async def measure(self, requests: Sequence[WorkloadRequest], seed: int) -> MeasuredRun:
        """Warms up and serves ``requests``."""
        await serve(self.url, at_once(WARM_UP, WARM_UP_SEED), WARM_UP_SEED, ending)
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            begin, found = self.log.stat().st_size, await counter(client, "vllm:prefix_cache_hits_total")
            async with watched(self.url) as samples:
                run = await serve(self.url, requests, seed, ending)
            found = await counter(client, "vllm:prefix_cache_hits_total") - found
        steps = _STEP.findall(self.log.read_bytes()[begin:].decode())
        return MeasuredRun(run, samples, [int(context) + int(decode) for context, decode in steps], found)


def main() -> None:
    given, origin = (
        parser_for(
            __doc__,
            repeats=3,
            requests=160,
            policies="fcfs,edf,sjf,econo,econo:preempt=false,econo-paper",
            port=8150,
            out=RESULTS / "econo_engine.json.gz",
        ).parse_args(),
        provenance(),
    )
    policies = [STOCK, *given.policies.split(",")]
    plain, own = [*plain_vllm_command(), *FLAGS], [*sloserve_command("fcfs"), *FLAGS]
    records: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        served(plain, given.port, log := Path(folder, "stock"), **ONE_THREAD, VLLM_PLUGINS="") as url,
        served(
            own, given.port + 1, own_log := Path(folder, "own"), **ONE_THREAD, SLOSERVE_ADMIN_KEY=ADMIN_KEY
        ) as own_url,
    ):
        stock, ours = Server(url, log), Server(own_url, own_log)
        for seed in range(given.repeats):
            requests = at_once(given.requests, seed)
            runs: dict[str, MeasuredRun] = {}
            begin = seed % len(policies)  # another one each time, so that a drift of the machine favours nobody
            for policy in policies[begin:] + policies[:begin]:
                if policy != STOCK:
                    asyncio.run(ours.follow(policy))
                runs[policy] = asyncio.run((stock if policy == STOCK else ours).measure(requests, seed))
            for policy, run in runs.items():
                records.append(run.record(policy, seed) | run.served.checked(runs[STOCK].served))
                print(json.dumps({key: records[-1][key] for key in ("policy", "seed", *FIGURES, *CHECKS)}), flush=True)
    table = compared(records, policies, FIGURES)
    show(table)
    settings = {key: value for key, value in vars(given).items() if key != "out"}
    settings |= {"workload": WORKLOAD, "arrivals": "at once", "kv_blocks": KV_BLOCKS, "flags": FLAGS, "stops": STOPS}
    found = {"settings": settings, "mean_least_greatest": table, "runs": records}
    write_result(given.out, origin | found)
    must_equal_stock(records)


if __name__ == "__main__":
    main()
