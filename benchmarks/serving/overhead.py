"""What does the serving surface add to vLLM's own server? Two servers, the same requests, in turn.

Usage: python -m benchmarks.serving.overhead [--streams 1 32 128] [--tokens 32 500] [--rounds 12]

Both serve builtin:tiny with the same flags: one is vLLM's plain server with its own scheduler, the other `sloserve
serve`. A round sends so many streams at once and waits for all; the two take turns, and which begins alternates.
Requests state an SLO in a header and class and tier in the body, which plain vLLM ignores. Beside the clock stands the
processor time of each server's API process and engine core, by the kernel's account.
"""

import asyncio
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.stats import bootstrap

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import plain_vllm_command, processes_of, running, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME

PER_ROUND = {1: 40, 32: 64, 128: 256}
"""Requests a round, by streams at once."""
FLAGS = ["--max-num-seqs", "128"]

Server = tuple[str, subprocess.Popen[bytes]]
"""Its address and process."""


async def stream(client: httpx.AsyncClient, number: int, tokens: int) -> tuple[float, float]:
    """Seconds to the first and to the last chunk of one reply."""
    body = {
        "model": NAME,
        "prompt": f"Request {number}: tell me something",
        "max_tokens": tokens,
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


async def round_of(
    client: httpx.AsyncClient, streams: int, tokens: int, first: int
) -> tuple[list[tuple[float, float]], float]:
    """Latencies of a round's requests, ``streams`` under way at a time, and the round's seconds."""
    slots = asyncio.Semaphore(streams)

    async def one(number: int) -> tuple[float, float]:
        async with slots:
            return await stream(client, number, tokens)

    started = time.perf_counter()
    latencies = await asyncio.gather(*(one(first + i) for i in range(PER_ROUND[streams])))
    return list(latencies), time.perf_counter() - started


async def measure(servers: dict[str, Server], streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in servers}
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    cpu: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    # A server closes what has been idle for 5 s, as it may while the other one has its turn.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=1.0)
    clients = {
        name: httpx.AsyncClient(base_url=url, timeout=300, limits=limits, trust_env=False)
        for name, (url, _) in servers.items()
    }
    for number in range(rounds + 1):
        for name in servers if number % 2 == 0 else reversed(servers):
            before = cpu_s(servers[name][1])
            latencies, took_s = await round_of(clients[name], streams, tokens, number * 1000)
            used = {part: after_s - before[part] for part, after_s in cpu_s(servers[name][1]).items()}
            if number:  # the first warms up
                found[name].append(latencies)
                seconds[name].append(took_s)
                cpu[name].append(used)
    for client in clients.values():
        await client.aclose()
    return figures(found, seconds, cpu, PER_ROUND[streams] * tokens)


def cpu_s(server: subprocess.Popen[bytes]) -> dict[str, float]:
    """Processor time so far of each process."""
    times = {name: one.cpu_times() for name, one in processes_of(server).items()}
    return {name: one.user + one.system for name, one in times.items()}


def figures(
    found: dict[str, list[list[tuple[float, float]]]],
    seconds: dict[str, list[float]],
    cpu: dict[str, list[dict[str, float]]],
    tokens: int,
) -> dict[str, Any]:
    """Medians over rounds of each round's p50 and p99; differences paired by round, with 95 % confidence.

    tokens: of a round.
    """
    rows: dict[str, Any] = {}
    for column, name in enumerate(("ttft_ms", "e2e_ms")):
        for q in (50, 99):
            of = {s: np.array([np.percentile([r[column] for r in one], q) for one in found[s]]) * 1e3 for s in found}
            rows[f"p{q}_{name}"] = row(of)
    rows["tokens_per_s"] = row({name: tokens / np.array(took) for name, took in seconds.items()})
    for part in ("api", "core"):
        us = {name: np.array([one[part] for one in used]) / tokens * 1e6 for name, used in cpu.items()}
        rows[f"{part}_cpu_us_a_token"] = row(us)
    return rows


def row(of: dict[str, np.ndarray]) -> dict[str, Any]:
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
    parser = parser_for(__doc__, rounds=12, port=8130, policy="edf")
    parser.add_argument("--streams", type=int, nargs="+", default=list(PER_ROUND), choices=list(PER_ROUND))
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 500], help="of a reply")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as logs,
        # Without a plugin, not even an idle one.
        running([*plain_vllm_command(), *FLAGS], given.port, Path(logs, "vllm.log"), VLLM_PLUGINS="") as stock,
        running([*sloserve_command(given.policy), *FLAGS], given.port + 1, Path(logs, "sloserve.log")) as ours,
    ):
        servers = {"vllm": stock, "sloserve": ours}
        levels = {
            f"{streams} streams of {tokens} tokens": asyncio.run(measure(servers, streams, tokens, given.rounds))
            for streams in given.streams
            for tokens in given.tokens
        }
    for level, rows in levels.items():
        print(f"{level}, {given.rounds} rounds")
        for name, value in rows.items():
            low, high = value["added_95"]
            print(
                f"  {name:14} vllm {value['vllm']:10.2f}  sloserve {value['sloserve']:10.2f}"
                f"  added {value['added']:8.2f} ({low:.2f} to {high:.2f})"
            )
    settings = {"rounds": given.rounds, "policy": given.policy, "per_round": PER_ROUND}
    write_result(RESULTS / "serving_overhead.json.gz", {"settings": settings, "levels": levels})


if __name__ == "__main__":
    main()
