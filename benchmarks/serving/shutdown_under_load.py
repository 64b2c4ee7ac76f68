"""What becomes of clients, and of the process, when a server is told to stop under load?

Usage: python -m benchmarks.serving.shutdown_under_load
    [--servers vllm sloserve] [--timeouts 0 4] [--patience 20] [--no-file]

Each server serves builtin:tiny. Half of the streams are short enough to finish within the longer timeout, half are not.
Once all have begun the process gets SIGTERM; every fifth of a second another request and GET /ready are sent. A client
gives up after --patience seconds: whoever has heard nothing more by then was left hanging.
"""

import asyncio
import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import ONE_THREAD, plain_vllm_command, running, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME

STREAMS = 8
SHORT_TOKENS, LONG_TOKENS = 250, 4000
COMMANDS = {"vllm": plain_vllm_command(), "sloserve": sloserve_command("edf")}


async def stream(client: httpx.AsyncClient, tokens: int, begun: asyncio.Semaphore, patience_s: float) -> str:
    """How one reply ended: completed, error event, broken connection, or hanging."""
    body = {"model": NAME, "prompt": "Hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    seen, told, whole = 0, False, False
    try:
        async with asyncio.timeout(patience_s), client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                whole |= '"finish_reason":"length"' in line
                told |= line.startswith('data: {"error"')
                seen += line.startswith('data: {"id"')
                if seen == 1:
                    begun.release()
                if line == "data: [DONE]":
                    return "error event" if told else "completed" if whole else "cut short"
    except TimeoutError:
        return "hanging"
    except httpx.HTTPError:
        return "broken connection"
    return "broken connection"


async def probe(client: httpx.AsyncClient, stopped: asyncio.Event) -> tuple[Counter[str], list[int]]:
    """What new requests and /ready are answered until ``stopped``."""
    new: Counter[str] = Counter()
    ready: list[int] = []
    while not stopped.is_set():
        try:
            body = {"model": NAME, "prompt": "Hello", "max_tokens": 1}
            answer = await client.post("/v1/completions", json=body, timeout=1.0)
            shape = "OpenAI error" if "error" in answer.json() else "reply"
            again = "with" if "retry-after" in answer.headers else "without"
            new[f"{answer.status_code} {shape}, {again} Retry-After"] += 1
            ready.append((await client.get("/ready", timeout=1.0)).status_code)
        except httpx.ConnectError:
            new["refused"] += 1
        except httpx.HTTPError:
            new["no answer"] += 1
        await asyncio.sleep(0.2)
    return new, ready


async def under_load(url: str, process: subprocess.Popen[bytes], patience_s: float) -> dict[str, Any]:
    """Streams, then SIGTERM; when and how each ended, and when the process did, in seconds from the signal."""
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client,
        httpx.AsyncClient(base_url=url, trust_env=False) as others,
    ):
        ready_before = (await others.get("/ready")).status_code
        begun, stopped = asyncio.Semaphore(0), asyncio.Event()
        ends_s: list[float] = []

        async def one(tokens: int) -> str:
            how = await stream(client, tokens, begun, patience_s)
            ends_s.append(time.perf_counter() - signalled)
            return how

        signalled = time.perf_counter()
        streams = [asyncio.create_task(one(SHORT_TOKENS if i % 2 else LONG_TOKENS)) for i in range(STREAMS)]
        for _ in streams:
            await begun.acquire()
        signalled = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        probing = asyncio.create_task(probe(others, stopped))
        outcomes = Counter(await asyncio.gather(*streams))
        while process.poll() is None and time.perf_counter() - signalled < patience_s + 30:
            await asyncio.sleep(0.05)
        exit_s = time.perf_counter() - signalled
        stopped.set()
        new, ready = await probing
    return {
        "streams": dict(outcomes),
        "last_stream_s": round(max(ends_s), 2),
        "exit_s": round(exit_s, 2) if process.poll() is not None else None,
        "new_requests": dict(new),
        "ready_before": ready_before,
        "ready_meanwhile": sorted(set(ready)),
    }


def measure(server: str, timeout_s: int, port: int, patience_s: float, log: Path) -> dict[str, Any]:
    command = [*COMMANDS[server], "--shutdown-timeout", str(timeout_s), "--max-num-seqs", "64"]
    with running(command, port, log, **ONE_THREAD) as (url, process):
        found = asyncio.run(under_load(url, process, patience_s))
    return {"server": server, "shutdown_timeout_s": timeout_s, **found}


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_for(__doc__, patience=20.0, port=8123)
    parser.add_argument("--servers", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--timeouts", nargs="+", type=int, default=[0, 4])
    parser.add_argument("--no-file", action="store_true", help="print alone")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for timeout_s in args.timeouts:
            for server in args.servers:
                log = Path(folder) / f"{server}-{timeout_s}.log"
                rows.append(measure(server, timeout_s, args.port, args.patience, log))
                print(json.dumps(rows[-1]), flush=True)
    if not args.no_file:
        write_result(RESULTS / "shutdown_under_load.json.gz", {"rows": rows})


if __name__ == "__main__":
    main()
