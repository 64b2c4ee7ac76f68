"""What do readers get of a real engine whose KV cache is scarce: vLLM's own server, and ours under fcfs, edf and andes?

Usage: python benchmarks/qoe_engine.py [--repeats 3] [--requests 200] [--policies fcfs,edf,andes]

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

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from provenance import provenance
from servers import plain_vllm_command, served, sloserve_command

from sloserve.bench.report import NO_STEPS
from sloserve.bench.stating import in_xargs
from sloserve.client.endpoint import open_endpoint
from sloserve.client.payload import PayloadSettings, StatedSLO, payload
from sloserve.client.prompts import TokenPrompts
from sloserve.client.replay import Replay, ReplaySettings, replay
from sloserve.client.shaping import cap_lengths
from sloserve.core.clock import SystemClock
from sloserve.core.outcome import Outcome
from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO, SLOClass, Targets
from sloserve.core.speeds import READING, DigestSpeeds
from sloserve.sim.slo_assignment import ClassRule, SLOAssignment
from sloserve.sim.summary import summarize
from sloserve.sim.workloads import workload

RESULTS = Path(__file__).parent / "results" / "qoe_engine.json"
WORKLOAD = "sharegpt-poisson"
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 512, 1024
KV_BLOCKS = 440
"""Of 32 tokens: some 30 of these requests at a time, where 128 could run."""
FLAGS = ["--block-size", "32", "--num-gpu-blocks-override", str(KV_BLOCKS + 1), "--max-num-seqs", "128"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Two threads that wait for each other are slow beside other work."""
LOAD, PACE = 2.5, 3.0
LEAD_S, URGENT_S = 40.0, 0.5
"""Defaults of andes."""
STOCK = "stock"
CAPACITY_SEED, WARM_UP_SEED = 2**20, 2**21
WARM_UP = 8
FIGURES = ("qoe_mean", "qoe_p10", "qoe_p50", "median_ttft_ms", "p90_ttft_ms", "output_throughput", "preemptions")
CHECKS = ("incomplete", "texts_differ")


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the readers' time, to this engine. rps: offered. tds: of the mean reader."""

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
        return name + scaled if name == "andes" else name

    def requests(self, n: int, seed: int) -> list[WorkloadRequest]:
        found = workload(WORKLOAD).requests(n, seed, self.rps, slos=self.slos())
        return cap_lengths(found, MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One run. texts: replies by request id. evictions: that the engine counted during it."""

    run: Replay
    texts: dict[str, str]
    evictions: int

    def record(self, policy: str, seed: int, rps: float) -> dict[str, Any]:
        """The figures of ``sloserve bench``, and preemptions per request."""
        logs = RunLog([one.log(one.request) for one in self.run.exchanges], NO_STEPS, {"wall_s": self.run.duration_s})
        told = [float(one.slo["qoe"]) for one in self.run.exchanges if one.slo is not None]
        return summarize(logs, policy=policy, seed=seed, rps=rps) | {
            "preemptions": self.evictions / len(self.run.exchanges),
            "qoe_mean_of_server": statistics.fmean(told) if told else None,
        }

    def checked(self, stock: "Served") -> dict[str, list[str]]:
        """By CHECKS, the requests that fail it: a stream broken off or not of the length asked for, another text."""
        return {
            "incomplete": [
                one.request.request_id
                for one in self.run.exchanges
                if one.outcome is not Outcome.COMPLETED or one.token_times_s.size != one.request.output_tokens
            ],
            "texts_differ": [name for name, text in self.texts.items() if text != stock.texts[name]],
        }


class Kept(httpx.AsyncByteStream):
    """A reply's bytes as they pass, kept for afterwards."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.parts: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self.parts.append(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()

    def text(self) -> str:
        lines = b"".join(self.parts).decode().splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def greedy(slo: SLO) -> StatedSLO:
    return StatedSLO(body=in_xargs(slo).body | {"temperature": 0})


async def serve(url: str, requests: Sequence[WorkloadRequest], seed: int) -> Served:
    """Sends ``requests`` when they are due, with prompts of ``seed``, and waits for all."""
    kept: dict[str, Kept] = {}

    async def keep(response: httpx.Response) -> None:
        if name := response.request.headers.get("x-request-id"):
            response.stream = kept[name] = Kept(response.stream)

    settings, prompts = ReplaySettings(), TokenPrompts()
    async with open_endpoint(url, model=None, api_key=None, settings=settings) as endpoint:
        asked = PayloadSettings(endpoint.model, state_slo=greedy, report=True)
        payloads = [payload(request, prompts.make(request, seed), asked) for request in requests]
        for one in payloads:
            one.headers["x-request-id"] = one.request.request_id
        endpoint.client.event_hooks["response"] = [keep]
        before = await evictions(endpoint.client)
        run = await replay(endpoint.client, payloads, SystemClock(), settings)
        counted = await evictions(endpoint.client) - before
    return Served(run, {name: reply.text() for name, reply in kept.items()}, counted)


async def evictions(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name == "vllm:num_preemptions_total"))


async def warm_up(url: str) -> None:
    few = [replace(request, arrival_s=0.0) for request in Scale(1.0, 50.0).requests(WARM_UP, WARM_UP_SEED)]
    await serve(url, few, WARM_UP_SEED)


async def scale_of(url: str, n: int, load: float) -> tuple[Scale, dict[str, Any]]:
    """The scale to a server, from ``n`` requests at once, and that run's record."""
    await warm_up(url)
    at_once = [replace(request, arrival_s=0.0) for request in Scale(1.0, 50.0).requests(n, CAPACITY_SEED)]
    record = (await serve(url, at_once, CAPACITY_SEED)).record(STOCK, CAPACITY_SEED, 0.0)
    return Scale(load * record["request_throughput"], 1e3 / (PACE * record["median_tpot_ms"])), record


def command(policy: str) -> tuple[list[str], dict[str, str]]:
    """How to start a server, and the environment; plain vLLM has no plugin, not even an idle one."""
    if policy == STOCK:
        return [*plain_vllm_command(), *FLAGS], ONE_THREAD | {"VLLM_PLUGINS": ""}
    return [*sloserve_command(policy), *FLAGS], ONE_THREAD


def compared(records: Sequence[dict[str, Any]], policies: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Mean, least and greatest of each figure over the repeats."""
    table: dict[str, dict[str, list[float]]] = {}
    for policy in policies:
        of = [record for record in records if record["policy"] == policy]
        values = {figure: [float(record[figure]) for record in of] for figure in FIGURES}
        table[policy] = {figure: [statistics.fmean(v), min(v), max(v)] for figure, v in values.items()}
    return table


def show(table: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'':8}" + "".join(f"{figure:>28}" for figure in FIGURES))
    for policy, figures in table.items():
        cells = (f"{mean:.3g} ({least:.3g} .. {most:.3g})" for mean, least, most in figures.values())
        print(f"{policy:8}" + "".join(f"{cell:>28}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            runs: dict[str, Served] = {}
            first = seed % len(policies)  # another one each time, so that a drift of the machine favours nobody
            for policy in policies[first:] + policies[:first]:
                started, environment = command(scale.policy(policy))
                with served(started, given.port, Path(logs, f"{policy}-{seed}.log"), **environment) as url:
                    asyncio.run(warm_up(url))
                    runs[policy] = asyncio.run(serve(url, requests, seed))
            for policy, run in runs.items():
                records.append(run.record(policy, seed, scale.rps) | run.checked(runs[STOCK]))
                print(json.dumps({key: records[-1][key] for key in ("policy", "seed", *FIGURES, *CHECKS)}), flush=True)
    table = compared(records, policies)
    show(table)
    settings = vars(given) | {"workload": WORKLOAD, "kv_blocks": KV_BLOCKS, "flags": FLAGS, "pace": PACE}
    settings |= {"rps": scale.rps, "tds": scale.tds, "andes": scale.policy("andes"), "capacity": capacity}
    found = {"settings": settings, "mean_least_greatest": table, "runs": records}
    RESULTS.write_text(json.dumps(provenance() | found, indent=1) + "\n")
    if wrong := [(r["policy"], r["seed"]) for r in records if any(r[check] for check in CHECKS)]:
        raise SystemExit(f"not every stream was complete and as stock's: {wrong}")


if __name__ == "__main__":
    main()
