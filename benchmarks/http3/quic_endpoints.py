"""The two ends of the network experiment, each a process of its own: ``server`` and ``client``.

Both echo over HTTP/3 on our listener and client, and over TLS on the kernel's TCP. A client reads one run per line from
its standard input and writes one result per line.
"""

import asyncio
import json
import os
import resource
import socket
import ssl
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.http3.certificates import CertificateFiles
from sloserve.http3.client_connection import H3Client, connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import head
from sloserve.http3.listener import Listener, listen
from sloserve.http3.stream_schedulers import SCHEDULERS
from sloserve.wire.optional_http3 import Http3Settings

CLASSES = {
    "real-time": (8_000, 1.0, "priority", 1),
    "free": (8_000, 2.0, "interactive", 3),
    "long": (102_400, 7.0, "batch", 5),
}
"""Bytes each way, deadline in seconds, service class, urgency."""
ONE_LOWER_LEVEL = CLASSES | {"free": (8_000, 2.0, "batch", 5)}
"""The same with the paper's two levels of ABS: free and long requests share the lower one."""

CONGESTIONS = ("constant", "cubic")
TCP_CONGESTIONS = [
    name
    for name in ("bbr", "cubic")
    if name in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="utf-8").split()
]
"""Those that this kernel has; where bbr is asked for and missing, cubic stands in, and in the row."""
FIRST_PORT = 7000
GIVE_UP_S = 45.0


def quic_port(scheduler: str, congestion: str, rtt_ms: int) -> int:
    names = [(s, c, r) for s in SCHEDULERS for c in CONGESTIONS for r in (50, 100)]
    return FIRST_PORT + names.index((scheduler, congestion, rtt_ms))


def tcp_port(congestion: str) -> int:
    return FIRST_PORT + 100 + TCP_CONGESTIONS.index(congestion)


WINDOW = 1.2
"""A constant window, in parts of 5 Mbit/s times the round trip."""


def window_bytes(rtt_ms: int, window: float = WINDOW) -> int:
    return int(5e6 / 8 * rtt_ms / 1e3 * window)


async def echo_h3(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})


HEAD = struct.Struct("!II")
"""Head of a request on TCP: bytes that follow, bytes of its answer. If equal, each part is echoed as it comes."""


async def echo_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            size, answer = HEAD.unpack(await reader.readexactly(HEAD.size))
            left = size
            while left:
                part = await reader.read(min(left, 65536))
                if not part:
                    return
                left -= len(part)
                if size == answer:
                    writer.write(part)
                    await writer.drain()
            if size != answer:
                writer.write(bytes(answer))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def listen_echo(
    host: str,
    port: int,
    scheduler: str,
    congestion: str,
    rtt_ms: int,
    files: CertificateFiles,
    window: float = WINDOW,
) -> Listener:
    settings = Http3Settings(
        scheduler=scheduler,  # type: ignore[arg-type]
        congestion=congestion,  # type: ignore[arg-type]
        window_bytes=window_bytes(rtt_ms, window),
        deadlines="fixed",
    )
    return await listen(echo_h3, settings, files, (host, port))


async def serve(host: str, certfile: str, keyfile: str) -> None:
    for scheduler in SCHEDULERS:
        for congestion in CONGESTIONS:
            for rtt_ms in (50, 100):
                port = quic_port(scheduler, congestion, rtt_ms)
                await listen_echo(host, port, scheduler, congestion, rtt_ms, CertificateFiles(certfile, keyfile))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certfile, keyfile)
    for congestion in TCP_CONGESTIONS:
        sock = socket.create_server((host, tcp_port(congestion)), backlog=256)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        await asyncio.start_server(echo_tcp, sock=sock, ssl=context)
    print("ready", flush=True)
    await asyncio.Event().wait()


class RunRequests:
    """The requests of one run: classes and times of arrival from its seed, and the latency of each.

    A run on TCP may state instead ``sizes`` in bytes, ``arrivals_s``, and ``reply_bytes``.
    """

    def __init__(self, run: dict[str, Any]) -> None:
        if "sizes" in run:
            self.sizes = [(size, run["reply_bytes"]) for size in run["sizes"]]
            self.classes = [""] * len(self.sizes)
            self.arrivals_s = np.array(run["arrivals_s"])
            self.latency_s: list[float | None] = [None] * len(self.sizes)
            return
        draws = np.random.default_rng(run["seed"])
        self.classes = [str(x) for x in draws.choice(list(CLASSES), run["requests"])]
        gaps_s = draws.exponential(1.0 / run["rate"], run["requests"]) if run["rate"] else np.zeros(run["requests"])
        self.arrivals_s = np.cumsum(gaps_s) - gaps_s[0]
        self.latency_s = [None] * run["requests"]
        self.sizes = [(CLASSES[kind][0],) * 2 for kind in self.classes]

    async def all(self, one: Any) -> None:
        """Calls ``one(number, class)`` for each request at its time."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        async def timed(number: int) -> None:
            await asyncio.sleep(max(start_s + self.arrivals_s[number] - loop.time(), 0.0))
            begin_s = loop.time()
            await one(number, self.classes[number])
            self.latency_s[number] = loop.time() - begin_s

        tasks = [asyncio.create_task(timed(number)) for number in range(len(self.classes))]
        _, late = await asyncio.wait(tasks, timeout=GIVE_UP_S + float(self.arrivals_s[-1]))
        for task in late:
            task.cancel()


async def run_quic(
    run: dict[str, Any], host: str, ca_file: str, requests: RunRequests, port: int | None = None
) -> None:
    size = window_bytes(run["rtt_ms"], run.get("window", WINDOW))
    settings = ClientSettings(scheduler=run["client"], congestion=run["congestion"], window_bytes=size, ca_file=ca_file)
    port = port or quic_port(run["server"], run["congestion"], run["rtt_ms"])
    clients: list[H3Client] = [await connect(host, port, settings) for _ in range(run.get("connections", 1))]
    loop = asyncio.get_running_loop()

    async def one(number: int, kind: str) -> None:
        classes = ONE_LOWER_LEVEL if run.get("one_lower_level") else CLASSES
        size, deadline_s, slo_class, urgency = classes[kind]
        headers = [(b"x-slo-class", slo_class.encode()), (b"x-slo-e2e-ms", str(deadline_s * 1e3).encode())]
        reply = clients[number % len(clients)].request(
            head(b"POST", b"localhost", b"/", headers),
            body_follows=True,
            deadline_s=loop.time() + deadline_s,
            urgency=urgency,
        )
        await reply.send(bytes(size), end=True)
        await reply.head()
        async for _ in reply.body():
            pass

    await requests.all(one)
    for client in clients:
        await client.end()


async def open_tcp(host: str, congestion: str, ca_file: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    await loop.sock_connect(sock, (host, tcp_port(congestion)))
    context = ssl.create_default_context(cafile=ca_file)
    return await asyncio.open_connection(sock=sock, ssl=context, server_hostname="localhost", limit=2**20)


async def run_tcp(run: dict[str, Any], host: str, ca_file: str, requests: RunRequests) -> None:
    if run["transport"] == "tcp-n":

        async def each(number: int, kind: str) -> None:
            reader, writer = await open_tcp(host, run["congestion"], ca_file)
            size, answer = requests.sizes[number]
            writer.write(HEAD.pack(size, answer) + bytes(size))
            await reader.readexactly(answer)
            writer.close()

        await requests.all(each)
        return
    reader, writer = await open_tcp(host, run["congestion"], ca_file)
    turn = asyncio.Lock()  # replies come in the order of the requests
    writing = asyncio.Lock()

    async def shared(number: int, kind: str) -> None:
        size, answer = requests.sizes[number]
        async with writing:
            writer.write(HEAD.pack(size, answer) + bytes(size))
            mine = asyncio.create_task(read(answer))
            await asyncio.sleep(0)
        await mine

    async def read(answer: int) -> None:
        async with turn:
            await reader.readexactly(answer)

    await requests.all(shared)
    writer.close()


async def drift(late_s: list[float]) -> None:
    """How late this process gets its turn: what a busy machine adds to latencies."""
    loop = asyncio.get_running_loop()
    while True:
        at_s = loop.time() + 0.02
        await asyncio.sleep(0.02)
        late_s.append(loop.time() - at_s)


async def one_run(run: dict[str, Any], host: str, ca_file: str) -> dict[str, Any]:
    requests = RunRequests(run)
    late_s: list[float] = []
    watch = asyncio.create_task(drift(late_s))
    begun = resource.getrusage(resource.RUSAGE_SELF)
    await (run_quic if run["transport"] == "quic" else run_tcp)(run, host, ca_file, requests)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    watch.cancel()
    cpu_s = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    late_ms = round(float(np.quantile(late_s, 0.99)) * 1e3, 1)
    return {
        "classes": requests.classes,
        "latency_s": requests.latency_s,
        "client_cpu_s": cpu_s,
        "client_late_ms": late_ms,
    }


def main() -> None:
    role, host, folder = sys.argv[1:]
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # as the wire: else what else runs here is measured
    ca_file, keyfile = (str(Path(folder) / f"localhost.{kind}") for kind in ("crt", "key"))
    if role == "server":
        asyncio.run(serve(host, ca_file, keyfile))
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(one_run(json.loads(line), host, ca_file))), flush=True)


if __name__ == "__main__":
    main()
