"""A fleet of paced engines in real processes, and clients of its gateway, for ``paced.py``.

Agent, gateway and planner are the commands of `sloserve fleet`, so that a row can change one and leave the engines.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.fleet.fleet_processes import PACED_ENVIRONMENT, FleetProcesses
from sloserve.client.prompts import TokenPrompts
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.fleet.run.live import DOOR_KEY, STORE
from sloserve.wire.keys import new_key

PROMPTS = TokenPrompts(256)
READY_LIMIT_S = 240.0
REAL, PREDICTED = "", ", predicted"
"""After the name of a row."""


@dataclass(slots=True)
class StreamResult:
    """What became of a streamed request; seconds from the section's begin. status 0: no answer, or one broken off."""

    request: WorkloadRequest
    sent_s: float
    first_s: float = float("inf")
    last_s: float = float("inf")
    status: int = 0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(self.request.output_tokens - 1, 1)

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.request.arrival_s

    def tokens_by(self, end_s: float) -> float:
        """Returns how many tokens of the reply had come by ``end_s``, as if they came evenly."""
        if self.first_s > end_s:
            return 0.0
        share = min((end_s - self.first_s) / max(self.last_s - self.first_s, 1e-9), 1.0)
        return 1.0 + share * (self.request.output_tokens - 1)


class PacedFleet(FleetProcesses):
    """``async with`` it: agent, gateway and planner run in ``folder`` by the file ``text``.

    nodes: hosts that join, each with an agent, a state folder and a door on TCP of its own; if none, the file's one
    host has the agent.
    """

    port = 18741
    warmed = False
    """Whether every model was on each instance once."""

    def __init__(self, folder: Path, text: str, *, real_time: bool = False, nodes: Sequence[str] = ()) -> None:
        self.sockets, self.store = folder / "run", f"sqlite:{folder / 'state' / 'store.sqlite'}"
        own = {"XDG_RUNTIME_DIR": str(self.sockets), STORE: self.store, DOOR_KEY: secrets.token_hex()}
        super().__init__(folder, {**PACED_ENVIRONMENT, **own}, real_time)
        self.sockets.mkdir()
        self._nodes = nodes
        self.file.write_text(text, encoding="utf-8")

    async def __aenter__(self) -> "PacedFleet":
        key, digest = new_key()
        tenant = {"keys": [digest], "quota": {"requests": 8192}}
        (self.folder / "keys.yaml").write_text(json.dumps({"tenants": {"benchmark": tenant}}), encoding="utf-8")
        self.http = aiohttp.ClientSession(
            f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        for node in self._nodes:
            joining = ["--host", node, "--address", "127.0.0.1", "--state", str(self.folder / node)]
            self.start(f"agent-{node}", *joining)
        if not self._nodes:
            self.start("agent")
        self.start("planner")
        self.start_gateway()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        self.stop()

    def start_gateway(self) -> None:
        """It reads the file as it is now."""
        self.stop("gateway")
        self.start("gateway", "--port", str(self.port), "--keys", str(self.folder / "keys.yaml"))

    async def until_served(self, model: str) -> None:
        """A request of ``model`` is answered, which brings the model."""
        async with asyncio.timeout(READY_LIMIT_S):
            while not await self._asked(model):
                await asyncio.sleep(0.5)

    async def _asked(self, model: str) -> bool:
        with suppress(aiohttp.ClientError):
            body = {"model": model, "prompt": [65] * 8, "max_tokens": 2, "ignore_eos": True}
            async with self.http.post("/v1/completions", json=body, headers={"x-slo-class": "interactive"}) as answer:
                return answer.status == 200
        return False

    # Clients.

    async def stream(self, request: WorkloadRequest, begun_s: float, seed: int) -> StreamResult:
        """Sends it when it is due. begun_s: the section's begin by the event loop's clock."""
        loop = asyncio.get_running_loop()
        body = json.dumps(body_of(request, seed) | {"stream": True}).encode()
        await asyncio.sleep(max(begun_s + request.arrival_s - loop.time(), 0.0))
        found = StreamResult(request, loop.time() - begun_s)
        headers = {"content-type": "application/json", "x-slo-class": request.slo.slo_class.name}
        with suppress(aiohttp.ClientError, asyncio.TimeoutError):
            async with self.http.post("/v1/completions", data=body, headers=headers) as answer:
                status, tail = answer.status, b""
                async for part in answer.content.iter_any():
                    if found.first_s == float("inf") and b'"text"' in part:
                        found.first_s = loop.time() - begun_s
                    if b'"text"' in part:
                        found.last_s = loop.time() - begun_s
                    tail = (tail + part)[-64:]
                whole = b"data: [DONE]" in tail and found.first_s < float("inf") and b'"error"' not in tail
                found.status = status if status != 200 or whole else 0
        return found

    async def batch(self, requests: Sequence[WorkloadRequest], seed: int, window: str = "1h") -> str:
        """Accepted by the Batch API; its id."""
        lines = [
            {"custom_id": r.request_id, "method": "POST", "url": "/v1/completions", "body": body_of(r, seed)}
            for r in requests
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "\n".join(map(json.dumps, lines)).encode(), filename="lines.jsonl")
        async with self.http.post("/v1/files", data=form) as answer:
            file = (await answer.json())["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": window}
        async with self.http.post("/v1/batches", json=wanted) as answer:
            return str((await answer.json())["id"])

    async def cancel(self, id: str) -> None:
        async with self.http.post(f"/v1/batches/{id}/cancel") as answer:
            await answer.read()

    # What there is to see.

    async def reports(self) -> list[dict[str, Any]]:
        """Returns the reports of the instances, as the agent gives them at its door."""
        doors = list(self.sockets.glob("*/door"))
        if not doors:
            return []
        connector = aiohttp.UnixConnector(str(doors[0]))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://door/state") as answer:
            return list((await answer.json())["instances"])

    async def counted(self, metric: str) -> dict[str, float]:
        """A metric of vLLM's engines, by model, summed."""
        found: dict[str, float] = {}
        for socket in self.sockets.glob("*/*.sock"):
            with suppress(aiohttp.ClientError, OSError):
                connector = aiohttp.UnixConnector(str(socket))
                async with aiohttp.ClientSession(connector=connector) as session:
                    async with session.get("http://engine/metrics") as answer:
                        text = await answer.text()
                for line in text.splitlines():
                    if line.startswith(metric + "{"):
                        model = line.partition('model_name="')[2].partition('"')[0]
                        found[model] = found.get(model, 0.0) + float(line.rpartition(" ")[2])
        return found


def of_log(log: RequestLog) -> StreamResult:
    """Returns what became of a request of a run in virtual time, as if it had been streamed."""
    times = log.token_times_s
    if not times.size:
        return StreamResult(log.request, log.request.arrival_s)
    return StreamResult(log.request, log.request.arrival_s, float(times[0]), float(times[-1]), 200)


def body_of(request: WorkloadRequest, seed: int) -> dict[str, Any]:
    return {
        "model": request.model,
        "prompt": PROMPTS.make(request, seed),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


def load() -> float:
    """Returns the machine's load average over the last minute."""
    return os.getloadavg()[0]
