"""What does HTTP/3 cost a real server: processor time per token and per byte beside TCP, and how soon is a stop told?

Usage: python -m benchmarks.http3.server_cost [--repeats 3] [--rounds 5] [--streams 8]

``sloserve serve builtin:tiny`` with TLS on both ports, started anew for each repeat. Streams of tokens, then replies of
``/openapi.json`` one after the other, over TCP and over HTTP/3 in turn, round for round; last a SIGTERM while a stream
runs. Counted is the CPU time of the server's processes, the API process and its engine; clients run in this process.
"""

import argparse
import asyncio
import os
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import ONE_THREAD, running, sloserve_command
from sloserve.http3.certificates import make_certificate, write_certificate
from sloserve.http3.client_connection import connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import H3Transport, head
from sloserve.vllm_plugin.server.tiny_model import NAME

PORT = 8861
DRAIN_S = 10
"""For which a stopping server lets requests run; without GOAWAY its clients would learn of the stop after that."""


def processes(pid: int) -> Iterator[int]:
    """The process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="utf-8").split():
            yield from processes(int(child))


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU time that the API process has taken so far, and that of all the server's processes."""
    times = [
        Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        for one in processes(pid)
    ]
    each_s = [sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") for ticks in times]
    return each_s[0], sum(each_s)


async def read_stream(client: httpx.AsyncClient, tokens: int) -> int:
    """Bytes of the answer to a request for so many tokens, as they come."""
    asked = {"model": NAME, "prompt": "Hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        answer.raise_for_status()
        return sum([len(part) async for part in answer.aiter_raw()])


async def stream_tokens(client: httpx.AsyncClient, streams: int, tokens: int) -> int:
    """Tokens of several streams at once."""
    await asyncio.gather(*(read_stream(client, tokens) for _ in range(streams)))
    return streams * tokens


async def read_bodies(client: httpx.AsyncClient, count: int) -> int:
    """Bytes of so many large replies, one after the other."""
    return sum([len((await client.get("/openapi.json")).raise_for_status().content) for _ in range(count)])


async def costs(given: argparse.Namespace, pid: int, certificate: str) -> dict[str, Any]:
    """CPU time in us of a token and of a KB, by transport: of the API process and of all, medians of the rounds."""
    verify = ssl.create_default_context(cafile=certificate)
    options: dict[str, Any] = {"base_url": f"https://localhost:{PORT}", "timeout": 600.0}
    async with (
        httpx.AsyncClient(verify=verify, trust_env=False, **options) as tcp,
        httpx.AsyncClient(transport=H3Transport(ClientSettings(ca_file=certificate)), **options) as quic,
    ):
        transports = {"tcp": tcp, "http3": quic}

        async def each(work: Callable[[httpx.AsyncClient], Awaitable[int]], unit: int) -> dict[str, Any]:
            found: dict[str, list[Any]] = {name: [] for name in transports}
            for number in range(given.rounds + 1):
                for name in transports if number % 2 else reversed(transports):
                    before = cpu_s(pid)
                    done = await work(transports[name])
                    spent_s = np.subtract(cpu_s(pid), before)
                    found[name] += [spent_s / done * unit * 1e6] if number else []  # the first warms up
            medians = {name: np.median(pairs, axis=0).tolist() for name, pairs in found.items()}
            return {name: dict(zip(("api_process", "all"), pair, strict=True)) for name, pair in medians.items()}

        return {
            "us_per_token": await each(lambda client: stream_tokens(client, given.streams, given.tokens), 1),
            "us_per_kb": await each(lambda client: read_bodies(client, given.bodies), 1000),
        }


async def told_after_s(process: "subprocess.Popen[bytes]", certificate: str) -> float:
    """Seconds from SIGTERM until a client with a running stream is told that the server stops (GOAWAY)."""
    client = await connect("localhost", PORT, ClientSettings(ca_file=certificate), settled=True)
    body = b'{"model": "%s", "prompt": "Hi", "max_tokens": 3000, "stream": true, "ignore_eos": true}' % NAME.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    reply = client.request(head(b"POST", b"localhost", b"/v1/completions", headers), body_follows=True)
    await reply.send(body, end=True)
    await reply.head()
    began_s = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    await client.wait_unusable()
    if client.lost is not None:
        raise SystemExit(f"the connection ended before the client was told: {client.lost}")
    told_s = time.perf_counter() - began_s
    reply.cancel()
    await client.end()
    return told_s


def one_repeat(given: argparse.Namespace, folder: Path, number: int) -> dict[str, Any]:
    """What one server costs, and how soon it tells of its end."""
    cert, key = map(str, write_certificate(folder, make_certificate()))
    command = [*sloserve_command("fcfs"), "--http3", "--ssl-certfile", cert, "--ssl-keyfile", key]
    command += ["--shutdown-timeout", str(DRAIN_S)]
    with running(command, PORT, folder / f"server{number}.log", **ONE_THREAD) as (_, process):
        found = asyncio.run(costs(given, process.pid, cert))
        found["goaway_s"] = asyncio.run(told_after_s(process, cert))
    return found


def main() -> None:
    given = parser_for(__doc__, repeats=3, rounds=5, streams=8, tokens=100, bodies=40).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repeats = [one_repeat(given, Path(folder), number) for number in range(given.repeats)]
    ratios = {
        f"{figure}/{what}": [one[figure]["http3"][what] / one[figure]["tcp"][what] for one in repeats]
        for figure in ("us_per_token", "us_per_kb")
        for what in ("api_process", "all")
    }
    for name, found in ratios.items():
        figure, what = name.split("/")
        shown = ", ".join(f"{one[figure]['tcp'][what]:.1f} and {one[figure]['http3'][what]:.1f}" for one in repeats)
        print(f"{name:24} over TCP and HTTP/3: {shown}; {np.median(found):.2f} times")
    print("told of a stop after", ", ".join(f"{one['goaway_s']:.3f} s" for one in repeats))
    write_result(RESULTS / "http3_cost.json.gz", {"ratios": ratios, "repeats": repeats, "settings": vars(given)})


if __name__ == "__main__":
    main()
