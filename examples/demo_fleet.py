"""``make demo-fleet``: three tiny models on one device, streams, a batch of all three, and an engine that is killed.

Starts a fleet from configs/fleet-tiny.yaml in a folder of its own, uses it for about a minute, and says what became of
each promise. Ends with status 0 if all were kept and nothing is left behind.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx

from sloserve.client.http_clients import async_http_client
from sloserve.client.responses import async_events
from sloserve.core.clock import SystemClock

CLOCK = SystemClock()
ROOT = Path(__file__).parents[1]
MODELS = ("anna", "bert", "carl")
LINES = 30
"""Of each model in the batch."""
ROUNDS, KILLED = 9, 4
"""In the first three each model comes from disk; in the fifth an engine is killed."""
TTFT_S = 15.0
"""What the file promises to interactive requests."""


@dataclass
class Stream:
    """One interactive request. ttft_s: to its first token."""

    model: str
    ttft_s: float | None = None
    tokens: int = 0
    error: str | None = None


@dataclass
class Demo:
    """A running fleet. lines: what it printed."""

    folder: Path
    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    began_s: float
    streams: list[Stream] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"{CLOCK.monotonic_s() - self.began_s:6.1f} s  {text}", flush=True)


async def started(folder: Path, options: list[str]) -> Demo:
    for name in ("fleet-tiny.yaml", "cpu-tiny.yaml"):
        shutil.copy(ROOT / "configs" / name, folder / name)
    began_s = CLOCK.monotonic_s()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sloserve.cli", "fleet", str(folder / "fleet-tiny.yaml"), "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=(folder / "fleet.log").open("wb"),
        cwd=ROOT,
    )
    assert process.stdout is not None
    demo = Demo(folder, process, async_http_client("http://127.0.0.1", timeout=120.0), began_s)
    async for raw in process.stdout:
        line = raw.decode().strip()
        demo.say(line.replace(str(folder), "DEMO"))
        if "ready: " in line:
            demo.client.base_url = httpx.URL(line.partition("ready: ")[2].partition("/v1 ")[0])
            return demo
    raise SystemExit(
        f"the fleet ended with {await process.wait()}: {(folder / 'fleet.log').read_text(encoding='utf-8')[-2000:]}"
    )


async def stream(demo: Demo, model: str, number: int, tokens: int = 24) -> None:
    one = Stream(model)
    demo.streams.append(one)
    begun_s = CLOCK.monotonic_s()
    body = {
        "model": model,
        "stream": True,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"tell {number}"}],
    }
    headers = {"x-slo-class": "interactive"}
    try:
        async with demo.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            if answer.status_code != 200:
                one.error = f"{answer.status_code} {(await answer.aread())[:120]!r}"
                return
            async for event in _events(answer):
                if "error" in event:
                    one.error = str(event["error"].get("message"))
                    return
                one.ttft_s = CLOCK.monotonic_s() - begun_s if one.ttft_s is None else one.ttft_s
                one.tokens += 1
    except httpx.HTTPError as error:
        one.error = f"{type(error).__name__} after {one.tokens} tokens"


async def _events(answer: httpx.Response) -> AsyncIterator[dict]:
    async for sent in async_events(answer):
        if sent.data != "[DONE]":
            event = json.loads(sent.data)
            if "error" in event or any((c.get("delta") or {}).get("content") for c in event.get("choices", ())):
                yield event


async def batch(demo: Demo) -> str:
    lines = [
        {
            "custom_id": f"{model}-{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": model, "prompt": f"line {i} of {model}", "max_tokens": 32, "temperature": 0},
        }
        for model in MODELS
        for i in range(LINES)
    ]
    file = "\n".join(map(json.dumps, lines)).encode()
    upload = await demo.client.post("/v1/files", files={"file": ("lines.jsonl", file)}, data={"purpose": "batch"})
    made = await demo.client.post(
        "/v1/batches",
        json={"input_file_id": upload.json()["id"], "endpoint": "/v1/completions", "completion_window": "1h"},
    )
    return str(made.json()["id"])


async def finished(demo: Demo, id: str) -> dict:
    while True:
        state = (await demo.client.get(f"/v1/batches/{id}")).json()
        if state["status"] in ("completed", "failed", "expired", "cancelled"):
            return state
        await asyncio.sleep(0.5)


async def kill_engine(demo: Demo) -> None:
    """Kills the core of the engine that serves now, which is the one that its log says."""
    models = (await demo.client.get("/v1/models")).json()["data"]
    model = next(one["id"] for one in models if one["state"] == "active")
    log = demo.folder / "fleet-tiny.state" / "logs" / f"{quote('local/0', safe='')}@{model}.log"
    pids = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _logs_to(pid) == str(log)]
    core = next((pid for pid in pids if "EngineCore" in _title(pid)), pids[-1])
    os.kill(core, signal.SIGKILL)
    demo.say(f"kill -9 of the engine of {model}: process {_title(core) or core}")


def _logs_to(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/2")
    except OSError:
        return ""


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()[:60]
    except OSError:
        return ""


async def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="demo-fleet-") as name:
        folder = Path(name)
        demo = await started(folder, options)
        id = await batch(demo)
        demo.say(
            f"a batch of {LINES} lines for each of {', '.join(MODELS)} is accepted; streams come for one after another"
        )
        for number in range(ROUNDS):
            model, killed, before = MODELS[number % 3], number == KILLED, len(demo.streams)
            tokens = 1_000 if killed else 24
            tasks = [asyncio.create_task(stream(demo, model, number * 10 + k, tokens)) for k in range(4)]
            if killed:
                while not any(one.tokens for one in demo.streams[before:]):
                    await asyncio.sleep(0.05)
                await kill_engine(demo)
            await asyncio.gather(*tasks)
            done = demo.streams[before:]
            worst = max((one.ttft_s for one in done if one.ttft_s is not None), default=None)
            said = "no first token" if worst is None else f"first tokens within {worst:.1f} s"
            demo.say(f"4 streams of {model}: {said}, {sum(one.error is not None for one in done)} broken off")
        state = await finished(demo, id)
        counts = state["request_counts"]
        demo.say(
            f"the batch is {state['status']}: {counts['completed']} of {counts['total']} lines have a result, "
            f"{counts['failed']} failed"
        )
        ids = await _output_ids(demo, state)
        swaps = (
            (folder / "fleet-tiny.state" / "logs" / "agent-local.log")
            .read_text(encoding="utf-8")
            .count(" serves, by method ")
        )
        demo.process.send_signal(signal.SIGINT)
        status = await demo.process.wait()
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if str(folder) in _logs_to(pid)]
        demo.say(f"stopped with status {status}; processes left: {len(left)}")
        await demo.client.aclose()
        return _verdict(demo, ids, swaps, counts, status == 0 and not left)


async def _output_ids(demo: Demo, state: dict) -> list[str]:
    if not state["output_file_id"]:
        return []
    output = await demo.client.get(f"/v1/files/{state['output_file_id']}/content")
    return [json.loads(line)["custom_id"] for line in output.text.splitlines()]


def _verdict(demo: Demo, ids: list[str], swaps: int, counts: dict, clean: bool) -> int:
    total, streams = 3 * LINES, demo.streams
    warm = streams[12:]  # what comes from disk for the first time was promised nothing
    in_time = sum(one.ttft_s is not None and one.ttft_s <= TTFT_S for one in warm)
    broken = [one for one in streams if one.error is not None]
    wrong = [one for number, one in enumerate(streams) if one.error is not None and number // 4 != KILLED]
    rows = [
        (
            "every accepted line has one result",
            f"{len(set(ids))} of {total}, {len(ids) - len(set(ids))} twice",
            len(ids) == len(set(ids)) == total,
        ),
        (
            f"first tokens of streams within {TTFT_S:g} s, once each model has been there",
            f"{in_time} of {len(warm)}",
            in_time >= len(warm) - len(broken),
        ),
        (
            "a stream is broken off only with its engine",
            f"{len(broken)} broken off, {len(streams)} in all",
            not wrong,
        ),
        ("nothing is left behind", "nothing" if clean else "something", clean),
    ]
    print(f"\n{swaps} times a model came to the device, the first and the replacement included\n")
    for what, found, kept in rows:
        print(f"  {'kept  ' if kept else 'MISSED'}  {what}: {found}")
    for one in wrong:
        print(f"          {one.model}: {one.error}")
    return 0 if all(kept for *_, kept in rows) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
