"""What becomes of accepted requests when a part of a fleet is killed under mixed load?

Real processes of `sloserve fleet`: two planners, a gateway, an agent on each of two hosts, their engines stand-ins
(``--engines real``: builtin:tiny on vLLM). Each repetition accepts a batch of two models beside streams, and kills one
part with ``kill -9`` after a second: an engine, an agent, the gateway, both planners; stops an engine for good, so that
it hangs; fills the store's disk for two seconds; or stops an agent for longer than its lease and lets it commit then.
What was killed is started again at once, as a supervisor would. Leases are 2 s.

    python -m benchmarks.fleet.failures [--repetitions 20] [--engines real] [--only engine,agent]

Prints and writes benchmarks/results/fleet_failures.json.gz: lines accepted, lost (no result), visible twice; seconds
from the kill to the first stream and to the first line that ended well after it, and to the end of the batch; processes
of killed engines left after 5 s.
Rows of other kinds stay as they are in the file.
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from benchmarks.arguments import parser_for
from benchmarks.fleet.fleet_processes import FleetProcesses
from benchmarks.publish import RESULTS, provenance, read_json, write_json
from sloserve.core.clock import SystemClock

ROOT = Path(__file__).parents[2]
CLOCK = SystemClock()
MODELS = ("anna", "bert")
LINES, TOKENS, STEP_S, LEASE_S = 60, 10, 0.03, 2.0
FULL_S, STOPPED_S, KILLED_AFTER_S, LIMIT_S = 2.0, 3.0 * LEASE_S, 1.0, 240.0
KINDS = ("engine", "hang", "agent", "gateway", "planner", "disk full", "zombie")
FILE = """
models:
  anna: {model: MODEL, profile: PROFILE, active_on: [a/0], flags: {max_num_seqs: 8}}
  bert: {model: MODEL, profile: PROFILE, active_on: [b/0], flags: {max_num_seqs: 8}}
hosts:
  a: {device: cpu, devices: 1, host_memory_gib: 1}
  b: {device: cpu, devices: 1, host_memory_gib: 1}
switching: {min_active_s: 1, max_wait_s: 10, drain_max_s: 5}
settings:
  policy: edf
  classes: {interactive: {rank: 1, ttft_ms: 5000}, batch: {rank: 2, aged_after_s: 60}}
"""


@dataclass
class Repetition:
    """One fault. Times in seconds from the kill; ``None``: none came."""

    kind: str
    accepted: int = 0
    lost: int = 0
    twice: int = 0
    failed: int = 0
    refused_at_intake: int = 0
    streams: int = 0
    streams_broken: int = 0
    stream_again_s: float | None = None
    line_again_s: float | None = None
    batch_done_s: float | None = None
    left: int = 0


class FailingFleet(FleetProcesses):
    """The fleet whose parts are killed, and a client of it."""

    def __init__(self, folder: Path, real: bool, port: int) -> None:
        super().__init__(folder, {"STAND_IN_STEP_S": str(STEP_S)})
        text = FILE.replace("MODEL", "builtin:tiny").replace("PROFILE", str(ROOT / "configs" / "cpu-tiny.yaml"))
        self.file.write_text(text, encoding="utf-8")
        lease = ("--lease-s", str(LEASE_S))
        engines = () if real else ("--engine-module", "tests.fleet.stand_in.server")
        self._arguments = {
            "planner-1": lease,
            "planner-2": lease,
            **{f"agent-{host}": ("--host", host, *lease, *engines) for host in "ab"},
            "gateway": ("--port", str(port)),
        }
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120.0, trust_env=False)

    def restart(self, name: str) -> None:
        """Kills the part, if it runs, and starts it as a supervisor would."""
        if name in self.running:
            self.running[name].kill()
            self.running[name].wait()
        self.start(name, *self._arguments[name])

    async def begin(self) -> None:
        for name in self._arguments:
            self.restart(name)
        async with asyncio.timeout(LIMIT_S):
            for model in MODELS:
                while not await self.stream(model):
                    await asyncio.sleep(0.2)

    async def stream(self, model: str) -> bool:
        """Whether a streamed reply came whole."""
        body = {"model": model, "prompt": "hello", "max_tokens": TOKENS, "stream": True}
        with suppress(httpx.HTTPError):
            async with self.client.stream("POST", "/v1/completions", json=body) as answer:
                lines = [line async for line in answer.aiter_lines()]
                return answer.status_code == 200 and "data: [DONE]" in lines and not any('"error"' in x for x in lines)
        return False

    async def accept(self) -> str | None:
        """A batch's id; ``None`` where the intake says no."""
        lines = [
            {
                "custom_id": f"{model}-{i}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": model, "prompt": f"{i}", "max_tokens": TOKENS},
            }
            for i in range(LINES)
            for model in MODELS
        ]
        file = {"file": ("lines.jsonl", "\n".join(map(json.dumps, lines)).encode())}
        with suppress(httpx.HTTPError, KeyError):
            upload = (await self.client.post("/v1/files", files=file, data={"purpose": "batch"})).json()
            wanted = {"input_file_id": upload["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
            return str((await self.client.post("/v1/batches", json=wanted)).json()["id"])
        return None

    async def batch(self, id: str) -> dict:
        with suppress(httpx.HTTPError, ValueError):
            return (await self.client.get(f"/v1/batches/{id}")).json()
        return {}

    async def custom_ids(self, file: str | None) -> list[str]:
        if file is None:
            return []
        text = (await self.client.get(f"/v1/files/{file}/content")).text
        return [json.loads(line)["custom_id"] for line in text.splitlines()]

    def rows(self, sql: str) -> list[tuple]:
        with sqlite3.connect(f"file:{self.state / 'store.sqlite'}?mode=ro", uri=True, timeout=5.0) as opened:
            return opened.execute(sql).fetchall()

    def engines(self) -> list[int]:
        """Process ids of all engines, by the logs that they write to."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if "@" in _log_of(pid, self.state)]


def _log_of(pid: int, state: Path) -> str:
    with suppress(OSError):
        log = os.readlink(f"/proc/{pid}/fd/2")
        return log if log.startswith(str(state / "logs")) else ""
    return ""


@dataclass
class FaultWatch:
    """What ends well while a fault is dealt with."""

    fleet: FailingFleet
    result: Repetition
    killed_s: float = float("inf")
    tasks: list = field(default_factory=list)

    async def streams(self) -> None:
        number = 0
        while True:
            begun_s, model = CLOCK.monotonic_s(), MODELS[number % 2]
            number += 1
            try:
                well = await self.fleet.stream(model)
            except Exception as error:  # it must not end the watch
                print(f"a stream failed in the benchmark itself: {error!r}", flush=True)
                well = False
            self.result.streams += 1
            self.result.streams_broken += not well
            if well and begun_s >= self.killed_s and self.result.stream_again_s is None:
                self.result.stream_again_s = CLOCK.monotonic_s() - self.killed_s
            await asyncio.sleep(0.1)

    async def lines(self) -> None:
        """The first line whose result is committed after the kill, by this process's clock."""
        while True:
            if self.killed_s < float("inf"):
                with suppress(sqlite3.Error):
                    done = self.fleet.rows("SELECT count(*) FROM request_result")[0][0]
                    if self.base is None:
                        self.base = done
                    elif done > self.base and self.result.line_again_s is None:
                        self.result.line_again_s = CLOCK.monotonic_s() - self.killed_s
            await asyncio.sleep(0.05)

    base: int | None = None


async def repetition(fleet: FailingFleet, kind: str) -> Repetition:
    result = Repetition(kind)
    watch = FaultWatch(fleet, result)
    id = None
    while id is None:
        id = await fleet.accept()
        result.refused_at_intake += id is None
    tasks = [asyncio.create_task(watch.streams()), asyncio.create_task(watch.lines())]
    await asyncio.sleep(KILLED_AFTER_S)
    watch.killed_s = CLOCK.monotonic_s()
    result.left = await fault(fleet, kind)
    async with asyncio.timeout(LIMIT_S):
        while (state := await fleet.batch(id)).get("status") not in ("completed", "failed", "expired"):
            await asyncio.sleep(0.2)
        result.batch_done_s = CLOCK.monotonic_s() - watch.killed_s
        while result.stream_again_s is None:
            await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ids = await fleet.custom_ids(state["output_file_id"])
    failed = await fleet.custom_ids(state["error_file_id"])
    result.accepted = len(MODELS) * LINES
    result.failed = len(failed)
    result.lost = result.accepted - len({*ids, *failed})
    result.twice = len(ids) + len(failed) - len({*ids, *failed})
    return result


async def fault(fleet: FailingFleet, kind: str) -> int:
    """Returns: processes of killed engines that are left after 5 s."""
    before = set(fleet.engines())
    if kind in ("engine", "hang"):
        victim = next(pid for pid in sorted(before) if "a%2F0@" in _log_of(pid, fleet.state))
        os.kill(victim, signal.SIGKILL if kind == "engine" else signal.SIGSTOP)
    elif kind == "agent":
        victims = {pid for pid in before if "a%2F0@" in _log_of(pid, fleet.state)}
        fleet.restart("agent-a")
        await asyncio.sleep(5.0)
        return len(victims & set(fleet.engines()))
    elif kind == "gateway":
        fleet.restart("gateway")
    elif kind == "planner":
        for name in ("planner-1", "planner-2"):  # one of them leads: both die, one after the other
            fleet.restart(name)
            await asyncio.sleep(0.1)
    elif kind == "disk full":
        filler = fleet.state / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 65536)
                file.flush()
        await asyncio.sleep(FULL_S)
        filler.unlink()
    elif kind == "zombie":
        fleet.running["agent-a"].send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        fleet.running["agent-a"].send_signal(signal.SIGCONT)
    return 0


def table(results: list[Repetition]) -> str:
    counted = ("accepted", "lost", "twice", "failed", "streams", "streams_broken", "left")
    timed = ("stream_again_s", "line_again_s", "batch_done_s")
    heads = (*counted, *(name.replace("_", " ") for name in timed))
    lines = [f"{'killed':<10} runs {' '.join(f'{name:>14}' for name in heads)}"]
    for kind in dict.fromkeys(one.kind for one in results):
        rows = [one for one in results if one.kind == kind]
        cells = [str(sum(getattr(one, name) for one in rows)) for name in counted]
        cells += [_spread([getattr(one, name) for one in rows]) for name in timed]
        lines.append(f"{kind:<10} {len(rows):>4} {' '.join(f'{cell:>14}' for cell in cells)}")
    return "\n".join(lines)


def _spread(seconds: list[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    return f"{statistics.median(known):.1f} (<= {max(known):.1f})" if known else "none"


def keep(results: list[Repetition], engines: str) -> None:
    """Rows of these runs take the place of those of the same kinds; each says where and when it was measured."""
    path = RESULTS / "fleet_failures.json.gz"
    known = read_json(path)
    rows = known.setdefault(engines, {})
    for kind in dict.fromkeys(one.kind for one in results):
        of_kind = [one for one in results if one.kind == kind]
        run = {"day": time.strftime("%Y-%m-%d"), "leases_s": LEASE_S, **provenance()}
        rows[kind] = {**run, "table": table(of_kind).splitlines()}
    write_json(path, known)


async def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--engines", choices=("stand-in", "real"), default="stand-in")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--port", type=int, default=18733)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fleet-failures-"))
    results: list[Repetition] = []
    kinds = args.only.split(",")
    fleet = FailingFleet(folder, args.engines == "real", args.port)
    mounted = "disk full" in kinds and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(fleet.state)], stderr=subprocess.DEVNULL
    )
    if "disk full" in kinds and not mounted:
        print("NOT RUN: disk full, which needs to mount a small file system")
        kinds.remove("disk full")
    try:
        await fleet.begin()
        for kind in kinds:
            for _ in range(args.repetitions):
                results.append(await repetition(fleet, kind))
                print(json.dumps(asdict(results[-1])), flush=True)
    finally:
        fleet.stop()
        await fleet.client.aclose()
        if mounted:
            subprocess.call(["umount", "-l", str(fleet.state)])
        if any(one.lost or one.twice for one in results) or len(results) < len(kinds) * args.repetitions:
            print(f"logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    keep(results, args.engines)


if __name__ == "__main__":
    asyncio.run(main())
