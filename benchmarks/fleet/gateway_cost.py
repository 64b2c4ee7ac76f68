"""What does a fleet's gateway cost: processor time a request and an event, and added latency? Beside HAProxy.

Writes benchmarks/results/gateway_cost.json.gz. The engine is a server of canned events, in a process of its own, and so
is each proxy; clients are here. Proxies are measured in turns, each over a unix socket to the engine. Processor time is
the proxy's own, user and system, by the kernel's account; latency is that of a reply in one piece, one at a time.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import free_port

EVENTS, STREAMS, ROUNDS, SINGLE, TURNS = 200, 64, 2, 300, 3
PAUSE_S = 0.02
BODY = {"model": "chat", "messages": [{"role": "user", "content": "word " * 200}], "max_tokens": EVENTS, "stream": True}
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"chat","choices":[{"index":0,'
    b'"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
FLEET = """
models: {chat: {profile: h100-llama3-8b}}
hosts: {node-a: {device: h100, devices: 1}}
settings: {policy: edf}
"""
HAPROXY = """
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    server s unix@{uds}
"""


def engine(uds: str) -> None:
    from sloserve.core.spans import Phase
    from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
    from sloserve.scheduler.virtual_queues.contract import ModelState

    one = InstanceReport("node-a/0", "h100", Phase.SERVING, {"chat": ModelState.ACTIVE}, room=100_000)
    state = json.dumps(to_json(AgentReport("node-a", f"unix:{uds}", (one,)))).encode()
    frame = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                if request.startswith(b"GET /state"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(state), state))
                    continue
                size = next(
                    int(row.split(b":")[1])
                    for row in request.split(b"\r\n")
                    if row.lower().startswith(b"content-length")
                )
                body = json.loads(await reader.readexactly(size))
                if not body.get("stream"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
                    continue
                writer.write(head)
                for _ in range(body["max_tokens"]):
                    writer.write(frame)
                    await asyncio.sleep(PAUSE_S)
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        async with await asyncio.start_unix_server(handle, uds) as server:
            await server.serve_forever()

    asyncio.run(main())


def gateway(uds: str, port: int) -> None:
    from sloserve.fleet.file import parse_fleet
    from sloserve.fleet.gateway.gateway import Gateway
    from sloserve.fleet.gateway.serve import config, run
    from sloserve.fleet.gateway.shared_state import GatewayDependencies

    made = Gateway(parse_fleet(FLEET), GatewayDependencies(endpoints=[f"unix:{uds}"]))
    run(uvicorn.Server(config(made.app, host="127.0.0.1", port=port)).serve())


class Proxy:
    """One way to the engine. pid: of the proxy's process; ``None`` where there is none."""

    def __init__(self, url: str, pid: int | None, uds: str | None = None) -> None:
        self.url, self.pid, self._uds = url, pid, uds
        self.cpu_request_us: list[float] = []
        self.cpu_event_us: list[float] = []
        self.latency_ms: list[float] = []

    def connector(self) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector(limit=0) if self._uds is None else aiohttp.UnixConnector(self._uds, limit=0)

    def cpu_s(self) -> float:
        if self.pid is None:
            return 0.0
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text(encoding="utf-8").split()[0]) for task in tasks) / 1e9

    async def measure(self) -> None:
        whole = {**BODY, "stream": False}
        async with aiohttp.ClientSession(connector=self.connector()) as http:
            await asyncio.gather(*(self._ask(http, {**BODY, "max_tokens": 2}) for _ in range(STREAMS)))
            before = self.cpu_s()
            for _ in range(SINGLE):
                began = time.perf_counter()
                await self._ask(http, whole)
                self.latency_ms.append((time.perf_counter() - began) * 1e3)
            self.cpu_request_us.append((self.cpu_s() - before) / SINGLE * 1e6)
            before = self.cpu_s()
            for _ in range(ROUNDS):
                await asyncio.gather(*(self._ask(http, BODY) for _ in range(STREAMS)))
            streams = ROUNDS * STREAMS
            us = (self.cpu_s() - before) * 1e6
            self.cpu_event_us.append((us / streams - self.cpu_request_us[-1]) / EVENTS)

    async def _ask(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        async with http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for _ in response.content.iter_any():
                pass

    def figures(self, direct_ms: list[float]) -> dict[str, float]:
        event_us = statistics.median(self.cpu_event_us)
        return {
            "cpu_us_a_request": round(statistics.median(self.cpu_request_us), 1),
            "cpu_us_an_event": round(event_us, 2),
            "added_latency_ms_p50": round(statistics.median(self.latency_ms) - statistics.median(direct_ms), 3),
            "added_latency_ms_p10": round(p10(self.latency_ms) - p10(direct_ms), 3),
            "streams_a_core_at_50_events_a_second": round(1e6 / (event_us * 50)),
        }


def p10(values: list[float]) -> float:
    """What it takes where nothing else wants the processor."""
    return statistics.quantiles(values, n=10)[0]


@contextmanager
def started(*command: str, ready: int | Path) -> Iterator[int]:
    """A process while it is needed, once its port or its socket is there. Gives its id."""
    process = subprocess.Popen(command)
    try:
        for _ in range(1_200):
            time.sleep(0.05)
            kind, address = (
                (socket.AF_INET, ("127.0.0.1", ready)) if isinstance(ready, int) else (socket.AF_UNIX, str(ready))
            )
            with socket.socket(kind) as trying:
                if trying.connect_ex(address) == 0:  # type: ignore[arg-type]
                    break
            assert process.poll() is None, command
        yield process.pid
    finally:
        process.terminate()
        process.wait()


async def measure(proxies: dict[str, Proxy]) -> None:
    for _ in range(TURNS):
        for proxy in proxies.values():
            await proxy.measure()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--role", choices=("engine", "gateway"), help=argparse.SUPPRESS)
    parser.add_argument("--uds", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "engine":
        return engine(args.uds)
    if args.role == "gateway":
        return gateway(args.uds, args.port)
    own = (sys.executable, "-m", "benchmarks.fleet.gateway_cost", "--role")
    with tempfile.TemporaryDirectory() as folder:
        uds, port, haproxy_port = Path(folder) / "e.sock", free_port(), free_port()
        found = {"direct": Proxy("http://engine", None, str(uds))}
        with started(*own, "engine", "--uds", str(uds), ready=uds):
            with started(*own, "gateway", "--uds", str(uds), "--port", str(port), ready=port) as pid:
                found["gateway"] = Proxy(f"http://127.0.0.1:{port}", pid)
                if shutil.which("haproxy") is None:
                    asyncio.run(measure(found))
                else:
                    config = Path(folder) / "haproxy.cfg"
                    config.write_text(HAPROXY.format(port=haproxy_port, uds=uds), encoding="utf-8")
                    with started("haproxy", "-db", "-f", str(config), ready=haproxy_port) as pid:
                        found["haproxy"] = Proxy(f"http://127.0.0.1:{haproxy_port}", pid)
                        asyncio.run(measure(found))
    direct_ms = found.pop("direct").latency_ms
    figures: dict[str, Any] = {name: proxy.figures(direct_ms) for name, proxy in found.items()}
    figures.setdefault("haproxy", "NOT MEASURED: it is not installed")
    about = {"load_average": round(os.getloadavg()[0], 1)}
    about |= {"events": EVENTS, "streams": STREAMS, "latency_direct_ms_p50": round(statistics.median(direct_ms), 3)}
    write_result(RESULTS / "gateway_cost.json.gz", about | figures)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
