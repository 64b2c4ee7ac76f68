"""Measures predictions and promises on vLLM's engine itself: builtin:tiny on this machine's CPU.

Clients send streams to `sloserve serve builtin:tiny` with few seats, in a Poisson process at a multiple of what the
server completes of the same requests when they come all at once. Half of them state targets and ask for a promise of
0.9, with the fallback; the others state none. Each client measures its own first and last token, and compares them with
the predictions and the promise in the headers of its response.

Prints, and writes to results/promises_cpu.json.gz: coverage of each predicted quantile, promises given and broken, and
the share in time of the requests with targets, with promises and without them.

Usage: python -m benchmarks.promises.cpu_engine [--policies auto] [--loads 0.9,1.5] [--requests 3000] [--seats 8]
"""

import asyncio
import itertools
import json
import re
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import free_port, served, sloserve_command
from sloserve.core.clock import SystemClock
from sloserve.core.predicted import LEVELS
from sloserve.vllm_plugin.server.tiny_model import NAME

CLOCK = SystemClock()
LEVEL = 0.9
LEARNING = 200
"""Requests at the start of which predictions and promises are not judged."""
RUSH = 150
"""Requests that come at once to measure what the server completes."""
FIGURES = ("ttft", "e2e")


async def stream(client: httpx.AsyncClient, tokens: int, headers: dict[str, str]) -> dict[str, Any]:
    """Send one request; return its measured seconds and the headers of its response."""
    began_s, first_s = CLOCK.monotonic_s(), None
    body = {"model": NAME, "prompt": "Tell me more. " * 8, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: ") and first_s is None:
                first_s = CLOCK.monotonic_s() - began_s
    return {"ttft": first_s, "e2e": CLOCK.monotonic_s() - began_s, "headers": response.headers}


async def offered(url: str, gaps_s: Any, tokens: Any, headers: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Send all requests in an open loop; return what came of each."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, trust_env=False) as client:
        tasks = []
        for gap_s, count, own in zip(gaps_s, tokens, headers, strict=True):
            await asyncio.sleep(float(gap_s))
            tasks.append(asyncio.create_task(stream(client, int(count), own)))
        return await asyncio.gather(*tasks)


def judged(found: list[dict[str, Any]], targets_s: dict[str, float], asks: list[bool]) -> dict[str, Any]:
    """Return coverage of the predictions, and what came of promises."""
    kept: dict[str, list[bool]] = defaultdict(list)
    given = broken = good = 0
    for one, asked in list(zip(found, asks, strict=True))[LEARNING:]:
        for figure in FIGURES:
            stated = re.fullmatch(r"(\d+);p90=(\d+);p99=(\d+)", one["headers"].get(f"x-slo-predicted-{figure}-ms", ""))
            for level, limit_ms in zip(LEVELS, stated.groups() if stated else (), strict=False):
                kept[f"{figure} p{100 * level:g}"].append(1e3 * one[figure] <= float(limit_ms))
        in_time = asked and all(one[figure] <= target_s for figure, target_s in targets_s.items())
        good += in_time
        if one["headers"].get("x-slo-promised", "none").startswith("0"):
            given, broken = given + 1, broken + (not in_time)
    return {
        "judged": len(found) - LEARNING,
        "coverage": {name: float(np.mean(each)) for name, each in sorted(kept.items())},
        "given": given,
        "broken": broken,
        "asked": sum(asks[LEARNING:]),
        "in_time": good / max(sum(asks[LEARNING:]), 1),
    }


def measure(policy: str, load: float, requests: int, seats: int, seed: int, *, promises: bool) -> dict[str, Any]:
    """Run one server; return what its clients measured."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.geometric(1.0 / 40.0, requests), 4, 150)
    with TemporaryDirectory() as folder:
        command = [*sloserve_command(policy), "--max-num-seqs", str(seats), "--max-model-len", "512"]
        with served(command, free_port(), Path(folder) / "log") as url:
            asyncio.run(offered(url, np.zeros(10), tokens[:10], [{}] * 10))  # the first steps are slow
            began_s = CLOCK.monotonic_s()
            asyncio.run(offered(url, np.zeros(RUSH), tokens[:RUSH], [{}] * RUSH))
            rate = RUSH / (CLOCK.monotonic_s() - began_s)
            targets_s = {"ttft": 4.0 * seats / rate, "e2e": 12.0 * seats / rate}
            asks = (rng.random(requests) < 0.5).tolist()
            own = {f"x-slo-{figure}-ms": f"{1e3 * target_s:.0f}" for figure, target_s in targets_s.items()}
            if promises:
                own |= {"x-slo-promise": str(LEVEL), "x-slo-promise-fallback": "1"}
            gaps_s = rng.exponential(1.0 / (load * rate), requests)
            found = asyncio.run(offered(url, gaps_s, tokens, [own if asked else {} for asked in asks]))
    return {"policy": policy, "promises": promises, "load": load, "rate": rate} | judged(found, targets_s, asks)


def main() -> None:
    given = parser_for(__doc__, policies="auto", loads="0.9,1.5", requests=3000, seats=8, seed=0).parse_args()
    rows = []
    for policy, load in itertools.product(given.policies.split(","), map(float, given.loads.split(","))):
        for promises in (False, True):
            rows.append(measure(policy, load, given.requests, given.seats, given.seed, promises=promises))
            print(json.dumps(rows[-1]), flush=True)
    write_result(RESULTS / "promises_cpu.json.gz", {"level": LEVEL, "runs": rows})


if __name__ == "__main__":
    main()
