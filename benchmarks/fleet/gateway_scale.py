"""What does a fleet's size cost one of its gateways: a choice, a look at an agent, a view for watchers?

Measures SIZES instances with the gateway's own objects, in processor time of one thread:

- ``choice``: one request is booked with an instance and ends there; of one model and of 40, with a plan and without;
- ``full``: an agent reports while a request waits and no instance has room;
- ``report``: an agent's report on its instances is taken in;
- ``plan``: another plan comes into force;
- ``view``: the view that watchers get once a second.

``--section polls`` watches as many agents of one instance each in another process, over unix sockets, and divides the
processor time of the gateway's process by the questions that it asked: at rest, with requests running everywhere, and
while a request waits as well. Agents are real servers of ``GET /state`` that report on instances without engines.

``--section quality`` has a fleet in virtual time, of FLEET instances, with conversations that repeat their prompt in
each turn: all instances compared for a request, or eight that are drawn and the holders of its prefix, paired by seed.

    python -m benchmarks.fleet.gateway_scale [--section choices] [--label now] [--quick]

Prints and writes its part of benchmarks/results/fleet_gateway_scale.json.gz, by label: ``before`` is what the same
script measured with the gateway of the commit that stands beside it.
"""

import argparse
import asyncio
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, provenance, read_json, write_json
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import Targets
from sloserve.core.spans import Phase
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.state_route import StateRoute
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.fleet_view import FleetView
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.held import HeldRequests
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import COMPARED, Instances
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import Beginning, chained
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.planner_rule import EDF
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums
from sloserve.sim.model.engine import ModelEngine

SIZES = (10, 100, 1_000)
POLLED = (10, 100, 1_000)
"""Agents that are asked; one process plays them all."""
FLEET, SEEDS, CONVERSING, TURNS, TTFT_S = 24, 3, 300, 5, 0.1
"""Instances of the fleet in virtual time, its seeds, its conversations, their turns, and the target of each."""
MODELS = (1, 40)
PER_HOST = 8
CHOICES, QUICK_CHOICES = 2_000, 50
CONVERSATIONS = 2_000
"""Requests continue one of this many conversations, so that some have a prefix in a cache."""
SECONDS, QUICK_SECONDS = 5.0, 1.0
"""Seconds for which agents are asked."""
WAYS = ("rest", "busy", "held")


def file_of(models: int) -> str:
    names = "".join(f"  model{m}: {{profile: h100-llama3-8b}}\n" for m in range(models))
    settings = "settings: {policy: edf, classes: {interactive: {rank: 0}}}\n"
    return f"models:\n{names}hosts:\n  node: {{device: h100, devices: 1}}\n{settings}"


def report_of(i: int, models: int, rng: np.random.Generator, room: int = 100) -> InstanceReport:
    """Return a report on a busy instance."""
    running = int(rng.integers(20, 120))
    sums = RunningSums(running, 300.0 * (running % 7), 900.0 * running, 120.0 * running, 2e4 * running, 400.0)
    states = {f"model{m}": ModelState.WARM for m in range(models)}
    states[f"model{i % models}"] = ModelState.ACTIVE
    host = i // PER_HOST
    return InstanceReport(f"node{host}/{i % PER_HOST}", "h100", Phase.SERVING, states, running=sums, room=room)


class World:
    """A gateway's objects with ``size`` instances of ``models`` models.

    Args:
        planned: Whether a plan is in force, which has streams of each model on half of its instances.
    """

    def __init__(self, size: int, models: int, *, planned: bool) -> None:
        self.gateway = Gateway(parse_fleet(file_of(models)), GatewayDependencies())
        self.instances: Instances = self.gateway.parts.instances
        rng = np.random.default_rng([size, models])
        reports = [report_of(i, models, rng) for i in range(size)]
        self.hosts = [
            AgentReport(f"node{k}", f"unix:{k}", tuple(reports[k * PER_HOST : (k + 1) * PER_HOST]))
            for k in range(-(-size // PER_HOST))
        ]
        self.report()
        if planned:
            self.plan()
        self._active, self._rng = min(models, size), rng

    def report(self) -> None:
        for host in self.hosts:
            self.instances.reported(host, host.door, self.instances.sent(), 0.0)

    def plan(self) -> None:
        names = [one.name for host in self.hosts for one in host.instances]
        models = {one.name: str(one.active) for host in self.hosts for one in host.instances}
        queues = {
            name: tuple(PlannedGroup(-1 - k, models[name], "interactive" if k == i % 2 else "batch") for k in range(2))
            for i, name in enumerate(names)
        }
        self.instances.plan = PlanInForce(0.0, queues)

    def requests(self, n: int) -> Iterator[HeldRequest]:
        for number in range(n):
            model = f"model{int(self._rng.integers(self._active))}"
            conversation = int(self._rng.integers(CONVERSATIONS))
            prompt: tuple[Beginning, ...] = chained(
                model, ((f"{conversation}/{k}".encode(), 200 * (k + 1)) for k in range(6))
            )
            yield HeldRequest(model, "interactive", float(number), work=Work(1, 1_200.0, 120.0), prompt=prompt)


def timed_us(call: Callable[[], Any], times: int) -> float:
    """Return microseconds of processor time of this thread for one call."""
    call()
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times * 1e6


def choice_us(size: int, models: int, n: int, *, planned: bool) -> float:
    """Return microseconds for a request that is booked, and ends as another has come."""
    world = World(size, models, planned=planned)
    held = HeldRequests(world.instances, 10)
    requests = list(world.requests(2 * n))
    for request in requests[:n]:  # prefixes become known
        flight = held.arrived(request, 0.0)
        assert flight is not None
        flight.end()
    world.report()
    began = time.thread_time()
    for request in requests[n:]:
        flight = held.arrived(request, 0.0)
        assert flight is not None
        flight.end()
    return (time.thread_time() - began) / n * 1e6


def row_of(size: int, n: int) -> dict[str, Any]:
    row: dict[str, Any] = {"instances": size}
    for models in MODELS:
        for planned in (False, True):
            name = f"choice_{models}_model{'s' * (models > 1)}{'_plan' * planned}_us"
            row[name] = round(choice_us(size, models, max(n * 10 // size, 20), planned=planned), 1)
    world = World(size, 1, planned=True)
    row["report_us"] = round(timed_us(world.report, 5) / len(world.hosts), 1)
    row["plan_us"] = round(timed_us(world.plan, 20), 1)
    row["view_us"] = round(view_us(size), 1)
    row["full_us"] = round(full_us(size), 1)
    return row


def full_us(size: int) -> float:
    """Return microseconds for a host's report while a request waits, and no instance has room."""
    rng, instances = np.random.default_rng(size), Instances()
    full = [report_of(i, 1, rng, room=0) for i in range(size)]
    hosts = [AgentReport("n", f"unix:{k}", tuple(full[k : k + PER_HOST])) for k in range(0, size, PER_HOST)]
    held = HeldRequests(instances, 10)

    def report(host: AgentReport) -> None:
        instances.reported(host, host.door, instances.sent(), 0.0)
        assert not list(held.let_go(0.0))

    for host in hosts:
        report(host)
    assert held.arrived(HeldRequest("model0", "interactive", 0.0), 0.0) is None

    def all_report() -> None:
        for host in hosts:
            report(host)

    return timed_us(all_report, 3) / len(hosts)


def view_us(size: int) -> float:
    """Return microseconds for a view of 40 models with a plan."""
    world = World(size, 40, planned=True)
    clock = world.gateway.parts.clock
    for host in world.hosts:
        world.instances.reported(host, host.door, world.instances.sent(), clock.monotonic_s())
    view = FleetView(world.gateway.parts)
    return timed_us(view.read, 3)


# Polls.


def agents(folder: str, size: int, way: str) -> None:
    """Serve the state of ``size`` agents, of which the load changes all the time unless they are at rest."""
    rng = np.random.default_rng(size)
    room = 0 if way == "held" else 100
    reports = [report_of(i, 1, rng, room) for i in range(size)]
    began = time.perf_counter()

    def report(i: int) -> AgentReport:
        one = reports[i]
        sums = RunningSums(1, output_tokens=time.perf_counter() - began) if way != "rest" else RunningSums()
        changed = InstanceReport(one.name, one.device, one.phase, one.models, running=sums, room=room)
        return AgentReport(f"node{i}", f"unix:{folder}/{i}", (changed,))

    # Phases, models and room never change, so that a look at them costs nothing here.
    routes = [StateRoute(partial(report, i), lambda: room) for i in range(size)]
    apps = {f"{folder}/{i}": AgentServer({}, routes[i].answer) for i in range(size)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["server"][0]](scope, receive, send)

    listening = []
    for path in apps:
        made = socket.socket(socket.AF_UNIX)
        made.bind(path)
        made.listen(16)
        listening.append(made)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_config=None, timeout_keep_alive=60)
    asyncio.run(uvicorn.Server(config).serve(listening))


@contextmanager
def started(folder: str, size: int, way: str) -> Iterator[None]:
    own = (sys.executable, "-m", "benchmarks.fleet.gateway_scale", "--role", way, "--folder", folder)
    process = subprocess.Popen((*own, "--size", str(size)))
    try:
        for _ in range(1_200):
            time.sleep(0.05)
            with socket.socket(socket.AF_UNIX) as trying:
                if trying.connect_ex(f"{folder}/{size - 1}") == 0:
                    break
        yield
    finally:
        process.terminate()
        process.wait()


async def polled(endpoints: list[str], seconds: float, *, holds: bool) -> dict[str, float]:
    gateway = Gateway(parse_fleet(file_of(1)), GatewayDependencies(endpoints=endpoints))
    asked, state = 0, gateway.parts.agents.state

    def counted(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return state(*given)

    gateway.parts.agents.state = counted  # type: ignore[method-assign, assignment]
    gateway.watch.start()
    while len(gateway.watch.answered) < len(endpoints):
        await asyncio.sleep(0.1)
    waits = asyncio.create_task(gateway.parts.hold.flight(HeldRequest("model0", "interactive", 0.0))) if holds else None
    await asyncio.sleep(1.0)
    asked, cpu_s, began = 0, time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began
    found = {"per_s": round(asked / wall_s, 1), "us": round(cpu_s / max(asked, 1) * 1e6, 1), "core": cpu_s / wall_s}
    if waits is not None:
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    await gateway.watch.stop()
    await gateway.parts.agents.close()
    return {**found, "core": round(found["core"], 4)}


def polls_row(size: int, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"agents": size}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder, started(folder, size, way):
            endpoints = [f"unix:{folder}/{i}" for i in range(size)]
            found = asyncio.run(polled(endpoints, seconds, holds=way == "held"))
            row |= {f"{way}_{name}": value for name, value in found.items()}
    return row


# Quality of the choice.


def turns(seed: int) -> list[WorkloadRequest]:
    """Return the requests of conversations that come at random, each turn a second or two after the one before."""
    rng, classes = np.random.default_rng(seed), parse_fleet(file_of(1)).settings.classes
    slo, found = classes.slo(None, Targets(ttft_s=TTFT_S)), []
    for k in range(CONVERSING):
        at_s = 30.0 + float(rng.uniform(0.0, 6.0))
        for turn in range(TURNS):
            blocks = 3 + 2 * turn + int(rng.integers(3))
            ids = tuple(range(1_000 * k, 1_000 * k + blocks))
            output = int(rng.integers(20, 80))
            found.append(
                WorkloadRequest(f"{k}-{turn}", at_s, 512 * blocks, output, slo, model="model0", prefix_ids=ids)
            )
            at_s += float(rng.uniform(0.8, 2.0))
    return sorted(found, key=lambda one: one.arrival_s)


def quality_row(seed: int, compared: float) -> dict[str, Any]:
    active_on = ", ".join(f"node/{i}" for i in range(FLEET))
    text = file_of(1).replace("devices: 1}", f"devices: {FLEET}, host_memory_gib: 64}}")
    text = text.replace("h100-llama3-8b}", f"h100-llama3-8b, active_on: [{active_on}]}}")
    requests, options = turns(seed), Options(compared=compared)
    run = FleetRun(parse_fleet(text), LiveFleet(EDF, options, seed), ModelEngine, policy=None, prefix_caching=True)
    served = run.run(requests).run.requests
    first_s = np.array([one.token_times_s[0] - one.request.arrival_s for one in served])
    last_s = np.array([one.token_times_s[-1] - one.request.arrival_s for one in served])
    return {
        "seed": seed,
        "way": "all" if math.isinf(compared) else "drawn",
        "in_time": round(float(np.mean(first_s <= TTFT_S)), 4),
        "hits": round(sum(one.cached_tokens for one in served) / sum(one.prompt_tokens for one in requests), 4),
        "ttft_mean_ms": round(1e3 * float(first_s.mean()), 1),
        "ttft_p99_ms": round(1e3 * float(np.quantile(first_s, 0.99)), 1),
        "e2e_mean_s": round(float(last_s.mean()), 3),
    }


def main() -> None:
    parser = parser_for(__doc__, section="choices")
    parser.add_argument("--label", default="now", choices=("before", "now"))
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing without --out")
    parser.add_argument("--out", type=Path, help="instead of fleet_gateway_scale.json.gz")
    parser.add_argument("--role", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role is not None:
        return agents(given.folder, given.size, given.role)
    sizes = SIZES[:1] if given.quick else SIZES
    if given.section == "quality":
        rows = [quality_row(seed, way) for seed in range(1 if given.quick else SEEDS) for way in (math.inf, COMPARED)]
    elif given.section == "polls":
        seconds = QUICK_SECONDS if given.quick else SECONDS
        rows = [polls_row(size, seconds) for size in (sizes if given.quick else POLLED)]
    else:
        rows = [row_of(size, QUICK_CHOICES if given.quick else CHOICES) for size in sizes]
    print(aligned([list(rows[0]), *([str(value) for value in row.values()] for row in rows)]))
    path = given.out or (None if given.quick else RESULTS / "fleet_gateway_scale.json.gz")
    if path is not None:
        kept = read_json(path)
        section = {**kept.get(given.section, {}), given.label: {**provenance(), "rows": rows}}
        write_json(path, {**kept, given.section: section})
    return None


if __name__ == "__main__":
    main()
