"""What does a stream cost the process of an agent: events that it or its forwarders pass on, and events of batch lines?

Writes benchmarks/results/forwarding_cost.json.gz. The engine is a server of canned events in a process of its own, and
clients are here. Each setting is an agent's endpoint with its server and its forwarders in a process of its own, and
settings are measured in turns. Processor time is user and system time by the kernel's account.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.arguments import parser_for
from benchmarks.fleet.gateway_cost import BODY, EVENTS, STREAMS, engine, started
from benchmarks.publish import RESULTS, write_result

FORWARDERS = (0, 1, 2)
ROUNDS, TURNS = 2, 5
LINES, PAUSES_S = 128, (0.0, 0.128, 0.25)
SHORT = 100
"""Requests of two events whose cost is that of a request."""
PATH = "/instances/node%2F0/v1/chat/completions"


def endpoint(uds: str, own: str, forwarders: int) -> None:
    """Run an agent's endpoint with one instance, which is the engine on the socket ``uds``."""
    from sloserve.core.clock import SystemClock
    from sloserve.fleet.agent.agent_server import AgentServer
    from sloserve.fleet.agent.engine_client import EngineClient
    from sloserve.fleet.agent.engine_requests import (
        AwaitedRequests,
        InFlightRequest,
        TakenRequest,
        passed_on,
        stream_of,
    )
    from sloserve.fleet.agent.forwarding.forwarder_job import ForwarderJob
    from sloserve.fleet.agent.forwarding.forwarders import Forwarders, ForwarderSettings
    from sloserve.fleet.agent.listening import listening_on
    from sloserve.fleet.contract.endpoint import InstanceResponse, LineSize
    from sloserve.fleet.http import endpoint_server
    from sloserve.fleet.launcher.own import OwnProcesses
    from sloserve.fleet.launcher.plain import PlainLauncher
    from sloserve.wire.asgi import answer_json

    class Instance:
        """An instance that takes all requests."""

        def __init__(self) -> None:
            self._client, self._requests, self._clock = EngineClient(Path(uds), ""), AwaitedRequests(), SystemClock()

        def take(self, request: InFlightRequest, prefixes: str) -> TakenRequest:
            def ended(broken: bool) -> None:
                self._requests.ended(request, self._clock.monotonic_s(), broken=broken)

            request.begun_s = self._clock.monotonic_s()
            self._requests.begin(request)
            return TakenRequest(self._client, ended)

        def resume(self, request: InFlightRequest, socket: Path, at: str | None, age_s: float) -> None:
            """Return ``None``: there was no agent before this one."""

        async def send(
            self,
            method: str,
            path: str,
            headers: Mapping[str, str],
            body: bytes,
            *,
            model: str,
            line: LineSize | None = None,
        ) -> InstanceResponse:
            request = stream_of(model, body)
            taken = self.take(request, "")
            return await passed_on(request, taken.client.send(method, path, headers, body, taken.ended), taken.ended)

    async def main() -> None:
        instances = {"node/0": Instance()}
        if forwarders:
            job = ForwarderJob(list(instances), "node", f"{own}.agent", f"{own}.decisions")
            processes = OwnProcesses(PlainLauncher())
            await processes.listen(f"unix:{own}")
            await Forwarders(ForwarderSettings(forwarders), job, processes, instances).begin()
            listening = listening_on(f"unix:{own}.agent")
        else:
            listening = listening_on(f"unix:{own}")
        await endpoint_server(
            AgentServer(instances, lambda query, send: answer_json(send, HTTPStatus.OK, {})), None
        ).serve([listening])

    asyncio.run(main())


def lines(uds: str, pause_s: float) -> None:
    """Read lines of a batch, and print the microseconds of processor time of an event. pause_s: between reads."""
    from sloserve.fleet.agent.engine_client import EngineClient
    from sloserve.fleet.agent.line_output import LineOutput
    from sloserve.fleet.store.records import Claimed

    body = json.dumps({**BODY, "stream": False}).encode()
    claimed = Claimed("r", 1, body, "/v1/chat/completions", "batch", None)

    async def one(client: EngineClient) -> None:
        output = LineOutput.of(claimed)
        response = await client.send(
            "POST", output.path, {}, output.body(), lambda broken: None, (lambda: pause_s) if pause_s else None
        )
        async for part in response:
            output.add(part)

    async def main() -> None:
        client = EngineClient(Path(uds), "")
        await one(client)
        before = time.process_time()
        await asyncio.gather(*(one(client) for _ in range(LINES)))
        print(1e6 * (time.process_time() - before) / (LINES * EVENTS))
        await client.close()

    asyncio.run(main())


def cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="utf-8").split()[0]) for task in tasks) / 1e9


class Setting:
    """An agent with this many forwarders. pid: of the agent."""

    def __init__(self, forwarders: int, pid: int, uds: str) -> None:
        self.forwarders, self._pid, self._uds = forwarders, pid, uds
        self.figures: dict[str, list[float]] = {}

    async def measure(self) -> None:
        async with aiohttp.ClientSession("http://agent", connector=aiohttp.UnixConnector(self._uds, limit=0)) as http:
            await self._ask(http, STREAMS, 2)
            before = self._spent()
            for _ in range(SHORT // STREAMS + 1):
                await self._ask(http, STREAMS, 2)
            short = self._since(before)
            requests = STREAMS * (SHORT // STREAMS + 1)
            before = self._spent()
            for _ in range(ROUNDS):
                await self._ask(http, STREAMS, EVENTS)
            long = self._since(before)
        for who in ("agent", "forwarders"):
            a_request = short[who] / requests
            an_event = (long[who] / (ROUNDS * STREAMS) - a_request) / (EVENTS - 2)
            self.figures.setdefault(f"{who}_us_a_request", []).append(1e6 * a_request)
            self.figures.setdefault(f"{who}_us_an_event", []).append(1e6 * an_event)

    def _spent(self) -> dict[str, float]:
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text(encoding="utf-8").split()
        return {"agent": cpu_s(self._pid), "forwarders": sum(cpu_s(int(child)) for child in children)}

    def _since(self, before: Mapping[str, float]) -> dict[str, float]:
        return {who: spent - before[who] for who, spent in self._spent().items()}

    @staticmethod
    async def _ask(http: aiohttp.ClientSession, streams: int, events: int) -> None:
        async def one() -> None:
            async with http.post(PATH, json={**BODY, "max_tokens": events}) as response:
                assert response.status == 200, await response.text()
                await response.read()

        await asyncio.gather(*(one() for _ in range(streams)))


async def measure(settings: list[Setting]) -> None:
    for _ in range(TURNS):
        for setting in settings:
            await setting.measure()


def shown(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "least": round(min(values), 2)}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--role", choices=("engine", "endpoint", "lines"), help=argparse.SUPPRESS)
    parser.add_argument("--uds", help=argparse.SUPPRESS)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    parser.add_argument("--forwarders", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "engine":
        return engine(args.uds)
    if args.role == "endpoint":
        return endpoint(args.uds, args.own, args.forwarders)
    if args.role == "lines":
        return lines(args.uds, args.pause)
    own = (sys.executable, "-m", "benchmarks.fleet.forwarding_cost", "--role")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        uds = Path(folder) / "engine"
        running.enter_context(started(*own, "engine", "--uds", str(uds), ready=uds))
        settings = []
        for count in FORWARDERS:
            socket = Path(folder) / f"agent-{count}"
            command = (*own, "endpoint", "--uds", str(uds), "--own", str(socket), "--forwarders", str(count))
            pid = running.enter_context(started(*command, ready=socket))
            settings.append(Setting(count, pid, str(socket)))
        asyncio.run(measure(settings))
        read: dict[str, list[float]] = {}
        for _, pause in itertools.product(range(TURNS), PAUSES_S):
            printed = subprocess.check_output((*own, "lines", "--uds", str(uds), "--pause", str(pause)))
            read.setdefault(f"{pause:g} s", []).append(float(printed))
    figures: dict[str, Any] = {
        f"forwarders_{setting.forwarders}": {name: shown(values) for name, values in setting.figures.items()}
        for setting in settings
    }
    figures["lines_us_an_event_by_pause"] = {pause: shown(values) for pause, values in read.items()}
    about = {"load_average": round(os.getloadavg()[0], 1), "events": EVENTS, "streams": STREAMS, "turns": TURNS}
    write_result(RESULTS / "forwarding_cost.json.gz", about | figures)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
