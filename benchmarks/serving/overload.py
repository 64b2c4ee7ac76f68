"""What do clients get of a server that is offered several times what it can serve, if they come again when told to?

Usage: python -m benchmarks.serving.overload [--factor 10] [--seconds 300] [--burners 0] [--servers vllm sloserve]
    [--name NAME]

Each server serves builtin:tiny with the same flags and a cap on waiting requests: vLLM's own --max-num-queued-reqs, and
ours, --admission cap --max-waiting, under `auto`. First its capacity is measured: replies a second with as many
requests as it runs at once. Then requests arrive at random, --factor times as many: interactive ones, 0.4 times the
capacity, with a target for their first token, and batch ones for the rest. Each is another prompt. Its client, if it
is polite (--polite, a share), waits after a refusal as long as Retry-After says, or 5 s where nothing says, and tries
again until --patience is over. --burners processes that compute all the time begin with the load: a machine that is
itself overloaded, with the load still in parts of what it did alone.

A row goes into results/overload.json.gz under --name, in place of one that is there; without --name it is only printed.
"""

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS as FOLDER
from benchmarks.publish import provenance, read_json, write_json
from benchmarks.servers import ONE_THREAD, plain_vllm_command, running, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME

RESULTS = FOLDER / "overload.json.gz"
MAX_NUM_SEQS = 16
MAX_WAITING = 32
TOKENS = 200
INTERACTIVE = 0.4
TTFT_MS = 3_000
UNTOLD_S = 5.0
LONGEST_S = 30
"""The longest Retry-After of ours: no place is promised by it."""
WARM_S = 10.0
SAMPLE_S = 2.0
FLAGS = ["--max-num-seqs", str(MAX_NUM_SEQS)]
COMMANDS = {
    "vllm": [*plain_vllm_command(), *FLAGS, "--max-num-queued-reqs", str(MAX_WAITING)],
    "sloserve": [*sloserve_command("auto"), *FLAGS, "--admission", "cap", "--max-waiting", str(MAX_WAITING)],
}


@dataclass
class Client:
    """One request, until it is served or its client gives up. told_s: the Retry-After before each try but the first."""

    slo_class: str
    came_s: float
    told_s: list[float] = field(default_factory=list)
    admitted: bool = False
    failed: bool = False
    ttft_s: float | None = None


class ServerClients:
    """Clients of one server. Times are seconds since the load began."""

    def __init__(self, url: str, given: argparse.Namespace) -> None:
        self._url, self._given = url, given
        self._rng = np.random.default_rng(given.seed)
        self._number = 0
        self._begun_s = time.perf_counter()
        self.clients: list[Client] = []
        self.completed = 0

    def now_s(self) -> float:
        return time.perf_counter() - self._begun_s

    async def capacity(self) -> float:
        """Replies a second with all slots taken, once each has had one."""
        async with self._session() as session:
            ends: list[float] = []

            async def slot() -> None:
                while self.now_s() < WARM_S:
                    await self._try(session, Client("batch", 0.0), self._body())
                    ends.append(self.now_s())

            await asyncio.gather(*(slot() for _ in range(MAX_NUM_SEQS)))
        first, last = sorted(ends)[MAX_NUM_SEQS - 1], max(ends)
        return (len(ends) - MAX_NUM_SEQS) / (last - first)

    async def offer(self, per_s: float) -> None:
        """Requests at random for ``--seconds``, and what their clients do until they end."""
        self._begun_s = time.perf_counter()
        async with self._session() as session, asyncio.TaskGroup() as tasks:
            at_s = 0.0
            while (at_s := at_s + self._rng.exponential(1.0 / (per_s * self._given.factor))) < self._given.seconds:
                await asyncio.sleep(max(at_s - self.now_s(), 0.0))
                urgent = self._rng.random() < INTERACTIVE / self._given.factor
                client = Client("interactive" if urgent else "batch", self.now_s())
                self.clients.append(client)
                tasks.create_task(self._serve(session, client, polite=self._rng.random() < self._given.polite))

    async def _serve(self, session: aiohttp.ClientSession, client: Client, *, polite: bool) -> None:
        body = self._body()
        while True:
            wait_s = await self._try(session, client, body)
            comes_s = self.now_s() + (wait_s or 0.0)
            if wait_s is None or not polite or comes_s > min(client.came_s + self._given.patience, self._given.seconds):
                return
            await asyncio.sleep(wait_s)
            client.told_s.append(wait_s)

    async def _try(self, session: aiohttp.ClientSession, client: Client, body: dict[str, Any]) -> float | None:
        """How long to wait after a refusal; ``None`` where there was none."""
        headers = {"x-slo-class": client.slo_class}
        if client.slo_class == "interactive":
            headers["x-slo-ttft-ms"] = str(TTFT_MS)
        sent_s = self.now_s()
        try:
            async with session.post(f"{self._url}/v1/completions", json=body, headers=headers) as answer:
                if answer.status in (429, 503):
                    return float(answer.headers.get("retry-after", UNTOLD_S))
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b'data: {"error"'):  # vLLM's own cap refuses in a stream that has begun with 200
                        return self._refused_in_stream(client, line)
                    if client.ttft_s is None and line.startswith(b"data: {"):
                        client.ttft_s = self.now_s() - sent_s
        except aiohttp.ClientError:
            client.failed = True
            return None
        client.admitted = True
        self.completed += self.now_s() <= self._given.seconds
        return None

    @staticmethod
    def _refused_in_stream(client: Client, line: bytes) -> float | None:
        if json.loads(line.removeprefix(b"data: "))["error"]["code"] in (429, 503) and client.ttft_s is None:
            return UNTOLD_S
        client.failed = True
        return None

    def _body(self) -> dict[str, Any]:
        self._number += 1
        prompt = f"Request {self._number}: tell me something"
        return {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}

    @staticmethod
    def _session() -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=600.0)
        # Idle connections are let go of well before vLLM's server closes them (5 s), which would look like a failure.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout)

    def row(self) -> dict[str, Any]:
        """What became of the clients, by class."""
        return {name: of([c for c in self.clients if c.slo_class == name]) for name in ("interactive", "batch")}


def of(clients: Sequence[Client]) -> dict[str, Any]:
    """Shares of clients of one class. retries: tries after a refusal; promised: those before the longest wait."""
    admitted = [client for client in clients if client.admitted]
    tries = [
        (told_s, client.admitted and i == len(client.told_s) - 1)
        for client in clients
        for i, told_s in enumerate(client.told_s)
    ]
    promised = [got_in for told_s, got_in in tries if told_s < LONGEST_S]
    in_time = [client.ttft_s is not None and client.ttft_s <= TTFT_MS / 1e3 for client in admitted]
    ttfts_s = [client.ttft_s for client in admitted if client.ttft_s is not None]
    return {
        "requests": len(clients),
        "failed": sum(client.failed for client in clients),
        "admitted_at_once": sum(client.admitted and not client.told_s for client in clients),
        "admitted": len(admitted),
        "in_time": sum(in_time),
        "ttft_p99_s": round(float(np.percentile(ttfts_s, 99)), 3) if ttfts_s else None,
        "retries": len(tries),
        "retries_admitted": sum(got_in for _, got_in in tries),
        "promised": len(promised),
        "promised_admitted": sum(promised),
    }


async def watched(process: psutil.Process, done: asyncio.Event) -> list[int]:
    """MiB of the server's processes together, every ``SAMPLE_S``."""
    found = []
    while not done.is_set():
        total = 0
        for one in [process, *process.children(recursive=True)]:
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                pass
        found.append(total >> 20)
        try:
            await asyncio.wait_for(done.wait(), SAMPLE_S)
        except TimeoutError:
            pass
    return found


def _burn(until_s: float) -> None:
    while time.perf_counter() < until_s:
        sum(range(10_000))


@contextmanager
def burning(count: int, seconds: float) -> Iterator[None]:
    """So many busy processes, which end by themselves as well."""
    context = multiprocessing.get_context("spawn")
    until_s = time.perf_counter() + seconds
    burners = [context.Process(target=_burn, args=(until_s,), daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.terminate()
            burner.join()


async def under_load(url: str, pid: int, given: argparse.Namespace) -> dict[str, Any]:
    load = ServerClients(url, given)
    per_s = await load.capacity()
    load.completed, done = 0, asyncio.Event()
    memory = asyncio.create_task(watched(psutil.Process(pid), done))
    with burning(given.burners, given.seconds + given.patience):
        await load.offer(per_s)
    done.set()
    mib = await memory
    return {
        "capacity_per_s": round(per_s, 3),
        "completed_per_s": round(load.completed / given.seconds, 3),
        **load.row(),
        "memory_mib": {"first": mib[0], "last": mib[-1], "most": max(mib)},
    }


def table(server: str, row: dict[str, Any]) -> str:
    memory = row["memory_mib"]
    lines = [
        f"{server}: {row['capacity_per_s']} replies/s alone, {row['completed_per_s']} under load; memory in MiB "
        f"{memory['first']} at first, {memory['last']} at last, {memory['most']} at most"
    ]
    for name in ("interactive", "batch"):
        one = row[name]
        lines.append(
            f"  {name:11} {one['requests']:6} requests, {one['admitted']:5} admitted ({share(one, 'admitted')}), "
            f"in time {share(one, 'in_time', 'admitted')}, TTFT p99 {one['ttft_p99_s']} s; retries admitted "
            f"{one['retries_admitted']} of {one['retries']}, of those with a place promised "
            f"{one['promised_admitted']} of {one['promised']}; failed {one['failed']}"
        )
    return "\n".join(lines)


def share(row: dict[str, Any], what: str, of_what: str = "requests") -> str:
    return f"{100 * row[what] / row[of_what]:.0f} %" if row[of_what] else "-"


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_for(__doc__, factor=10.0, seconds=300.0, burners=0, polite=1.0, patience=60.0, seed=0, port=8127)
    parser.add_argument("--servers", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--name")
    given = parser.parse_args(argv)
    servers = {}
    with tempfile.TemporaryDirectory() as folder:
        for server in given.servers:
            with running(COMMANDS[server], given.port, Path(folder, f"{server}.log"), **ONE_THREAD) as (url, process):
                servers[server] = asyncio.run(under_load(url, process.pid, given))
            print(table(server, servers[server]), flush=True)
    if given.name:
        settings = {key: getattr(given, key) for key in ("factor", "seconds", "burners", "polite", "patience", "seed")}
        kept = read_json(RESULTS)
        kept[given.name] = provenance() | {"settings": settings, "servers": servers}
        write_json(RESULTS, kept)


if __name__ == "__main__":
    main()
