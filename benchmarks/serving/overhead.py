"""What does the serving surface add to vLLM's own server? Two servers, the same requests, in turn.

Usage: python -m benchmarks.serving.overhead [--streams 1 32 128] [--rounds 12]

Both serve builtin:tiny with the same flags: one is vLLM's plain server with its own scheduler, the other `sloserve
serve`. A round sends so many streams at once and waits for all; the two take turns, and which begins alternates.
Requests state an SLO in a header and class and tier in the body, which plain vLLM ignores.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
from scipy.stats import bootstrap

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import plain_vllm_command, served, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME

TOKENS = 32
PER_ROUND = {1: 40, 32: 64, 128: 256}
"""Requests a round, by streams at once."""
FLAGS = ["--max-num-seqs", "128"]


async def stream(client: httpx.AsyncClient, number: int) -> tuple[float, float]:
    """Seconds to the first and to the last chunk of one reply."""
    body = {
        "model": NAME,
        "prompt": f"Request {number}: tell me something",
        "max_tokens": TOKENS,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
        "slo": {"tpot_ms": 500, "class": "interactive"},
        "service_tier": "auto",
    }
    started = time.perf_counter()
    first = None
    async with client.stream("POST", "/v1/completions", json=body, headers={"x-slo-ttft-ms": "5000"}) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_raw():
            if first is None:
                first = time.perf_counter() - started
    assert first is not None
    return first, time.perf_counter() - started


async def round_of(client: httpx.AsyncClient, streams: int, first: int) -> tuple[list[tuple[float, float]], float]:
    """Latencies of a round's requests, ``streams`` under way at a time, and the round's seconds."""
    slots = asyncio.Semaphore(streams)

    async def one(number: int) -> tuple[float, float]:
        async with slots:
            return await stream(client, number)

    started = time.perf_counter()
    latencies = await asyncio.gather(*(one(first + i) for i in range(PER_ROUND[streams])))
    return list(latencies), time.perf_counter() - started


async def measure(urls: dict[str, str], streams: int, rounds: int) -> dict[str, object]:
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in urls}
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    clients = {name: httpx.AsyncClient(base_url=url, timeout=300, limits=limits) for name, url in urls.items()}
    for number in range(rounds + 1):
        for name in urls if number % 2 == 0 else reversed(urls):
            latencies, took_s = await round_of(clients[name], streams, number * 1000)
            if number:  # the first warms up
                found[name].append(latencies)
                seconds[name].append(took_s)
    for client in clients.values():
        await client.aclose()
    return figures(found, seconds, streams)


def figures(
    found: dict[str, list[list[tuple[float, float]]]], seconds: dict[str, list[float]], streams: int
) -> dict[str, object]:
    """Medians over rounds of each round's p50 and p99; differences paired by round, with 95 % confidence."""
    rows: dict[str, object] = {}
    for column, name in enumerate(("ttft_ms", "e2e_ms")):
        for q in (50, 99):
            of = {s: np.array([np.percentile([r[column] for r in one], q) for one in found[s]]) * 1e3 for s in found}
            rows[f"p{q}_{name}"] = row(of)
    tokens = PER_ROUND[streams] * TOKENS
    rows["tokens_per_s"] = row({name: tokens / np.array(took) for name, took in seconds.items()})
    return rows


def row(of: dict[str, np.ndarray]) -> dict[str, object]:
    stock, ours = of["vllm"], of["sloserve"]
    added = ours - stock
    interval = bootstrap((added,), np.median, rng=np.random.default_rng(0)).confidence_interval
    return {
        "vllm": float(np.median(stock)),
        "sloserve": float(np.median(ours)),
        "added": float(np.median(added)),
        "added_95": [float(interval.low), float(interval.high)],
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(PER_ROUND), choices=list(PER_ROUND))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--port", type=int, default=8130)
    parser.add_argument("--policy", default="edf")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as logs,
        # Without a plugin, not even an idle one.
        served([*plain_vllm_command(), *FLAGS], given.port, Path(logs, "vllm.log"), VLLM_PLUGINS="") as vllm_url,
        served([*sloserve_command(given.policy), *FLAGS], given.port + 1, Path(logs, "sloserve.log")) as our_url,
    ):
        urls = {"vllm": vllm_url, "sloserve": our_url}
        levels = {n: asyncio.run(measure(urls, n, given.rounds)) for n in given.streams}
    for streams, rows in levels.items():
        print(f"{streams} streams, {PER_ROUND[streams]} requests a round, {given.rounds} rounds")
        for name, value in rows.items():
            low, high = value["added_95"]
            print(
                f"  {name:14} vllm {value['vllm']:10.2f}  sloserve {value['sloserve']:10.2f}"
                f"  added {value['added']:8.2f} ({low:.2f} to {high:.2f})"
            )
    settings = {"rounds": given.rounds, "tokens": TOKENS, "policy": given.policy, "per_round": PER_ROUND}
    write_result(RESULTS / "serving_overhead.json", {"settings": settings, "levels": levels})


if __name__ == "__main__":
    main()
