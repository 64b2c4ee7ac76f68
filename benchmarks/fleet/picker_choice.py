"""What does the choice of a server for another gateway cost, and what does it gain over simple rules?

``--section cost`` measures processor time of one thread, by the number of servers: ``choose`` is a choice alone,
``2 KB`` and ``64 KB`` with reading a body of that size, ``sample`` the figures of one server from its page of vLLM's
metrics; and ``gRPC`` is the processor time of a picker's process for one request, asked as Envoy asks, by one client.

``--section gain`` has SERVERS servers of Llama 3 8B on an H100 in virtual time, with stock's scheduler and MAX_NUM_SEQS
requests at a time: interactive conversations, of which each turn repeats the prompt, and a batch class, of which the
requests come in BURSTS bursts (``bursts``) or each by itself (``steady``).

- ``in turn``: the servers take turns;
- ``fewest sampled``: the server with the fewest requests by metrics that are SAMPLE_S old, as a scorer of queues;
- ``fewest``: the server with the fewest requests, of which it knows at once;
- ``picker, 0 s``, ``2 s``, ``30 s``: the endpoint picker's objects on the same metrics, with ``hold_max_s`` of this.

    python -m benchmarks.fleet.picker_choice [--section cost] [--seeds 5] [--quick]

Prints and writes its part of benchmarks/results/picker_choice.json.gz. Gain: share of requests in time by class, TTFT
of the interactive class, share of prompt tokens found in prefix caches; means over seeds.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, merge_result
from sloserve.core.clock import ManualClock
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import Targets
from sloserve.fleet.beside.choice_settings import ChoiceSection, ServedModel
from sloserve.fleet.beside.picking import Picking
from sloserve.fleet.beside.request_reading import RequestReading
from sloserve.fleet.beside.server_figures import ServerFigures, Totals, read_figures
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldRequests
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.simulated.dispatcher import Dispatcher, Give, Operation, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.live.simulated_gateway import beginnings_of
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.model.engine import ModelEngine
from tests import bounded
from tests.fleet.beside.endpoint_picker.played_envoy import Stream, envoy
from tests.fleet.beside.played_server import PlayedServer, metrics_page, serving
from tests.ports import free_port

SIZES, QUICK_SIZES = (4, 16, 64, 512), (4,)
CHOICES, QUICK_CHOICES = 3_000, 50
SERVERS, MAX_NUM_SEQS, SAMPLE_S = 4, 24, 0.25
CONVERSATIONS, TURNS, BURSTS, BURST = 260, 5, 6, 90
TTFT_S, BATCH_S = 0.5, 60.0
PROFILE = "h100-llama3-8b"
MODELS = {"model": ServedModel.model_validate({"profile": PROFILE, "flags": {"max_num_seqs": MAX_NUM_SEQS}})}
FILE = f"""
models:
  model:
    profile: {PROFILE}
    flags: {{max_num_seqs: {MAX_NUM_SEQS}}}
    active_on: [{", ".join(f"node/{i}" for i in range(SERVERS))}]
hosts: {{node: {{device: h100, devices: {SERVERS}, host_memory_gib: 64}}}}
settings:
  policy: edf
  classes: {{interactive: {{rank: 1, ttft_ms: {1e3 * TTFT_S}}}, batch: {{rank: 2, e2e_ms: {1e3 * BATCH_S}}}}}
"""


# Cost.


def body_of(size: int, number: int) -> bytes:
    turns = [{"role": "user", "content": f"{number % 500} {k} ".ljust(size // 4, "x")} for k in range(4)]
    return json.dumps({"model": "model", "messages": turns, "max_tokens": 100, "stream": True}).encode()


def picking_of(servers: int) -> Picking:
    picking = Picking(MODELS, ChoiceSection(), ManualClock())
    rng = np.random.default_rng(servers)
    names = [f"10.0.{i // 250}.{i % 250}:8000" for i in range(servers)]
    picking.servers.listed(names)
    for name in names:
        picking.reported(name, ServerFigures("model", int(rng.integers(MAX_NUM_SEQS // 2))), 0)
    return picking


def us(call: Callable[[int], Any], times: int) -> float:
    """Return microseconds of processor time of this thread for one call."""
    call(0)
    began = time.thread_time()
    for number in range(times):
        call(number)
    return round(1e6 * (time.thread_time() - began) / times, 1)


def cost_row(servers: int, times: int) -> dict[str, Any]:
    reading = RequestReading(PluginSettings())

    def read(number: int, size: int) -> GatewayRequest:
        return reading.read([], body_of(size, number), "/v1/chat/completions", 0.0)[0]

    def choices(requests: Callable[[int], GatewayRequest]) -> Callable[[int], None]:
        picking = picking_of(servers)

        def one(number: int) -> None:
            try:
                picking.pick(requests(number)).send(None)
            except StopIteration as chosen:
                picking.ended(chosen.value)
            else:
                raise AssertionError("the choice waits, though servers have room")

        return one

    known = [read(number, 2_048) for number in range(500)]

    def reads(size: int) -> Callable[[int], GatewayRequest]:
        bodies = [body_of(size, number) for number in range(50)]
        return lambda number: reading.read([], bodies[number % 50], "/v1/chat/completions", 0.0)[0]

    row: dict[str, Any] = {"servers": servers, "choose": us(choices(lambda number: known[number % 500]), times)}
    for size, name in ((2_048, "2 KB"), (65_536, "64 KB")):
        row[name] = us(choices(reads(size)), max(times // 3, 20))
    others = "".join(f'vllm:other_bucket{{engine="0",le="{i}",model_name="model"}} {i}.0\n' for i in range(1_000))
    page = metrics_page("model", 3, 1, 0.5) + others
    row["sample"] = us(lambda number: read_figures(page), max(times // 10, 20))
    return row


async def grpc_us(requests: int) -> float:
    """Return microseconds of a picker's process for one request of 2 KB and its response, before four servers."""
    servers = [PlayedServer("model") for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        async with serving(*servers):
            path, port = Path(folder, "picker.yaml"), free_port()
            path.write_text(json.dumps({"servers": {"addresses": [one.address for one in servers]}}), encoding="utf-8")
            command = [sys.executable, "-m", "sloserve.cli", "fleet", "picker", str(path), "--port", str(port)]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            try:
                while min(one.asked for one in servers) < 3:
                    await asyncio.sleep(0.05)
                async with envoy(port) as make:
                    return await _measured(psutil.Process(process.pid), make, requests)
            finally:
                process.terminate()
                await process.wait()


async def _measured(process: psutil.Process, make: Callable[[], Stream], requests: int) -> float:
    async def one(number: int) -> None:
        stream = make()
        await stream.ask(body_of(2_048, number))
        await stream.answered(b"data: 1\n\n", b"data: [DONE]\n\n")
        await stream.close()

    async def spent_s(work: Coroutine[Any, Any, None]) -> float:
        before = process.cpu_times()
        await work
        after = process.cpu_times()
        return float(after.user + after.system - before.user - before.system)

    async def all_of_them() -> None:
        for number in range(requests):
            await one(number)

    await one(0)
    rest_s = await spent_s(asyncio.sleep(2.0)) / 2.0
    began = time.perf_counter()
    busy_s = await spent_s(all_of_them())
    return round(1e6 * (busy_s - rest_s * (time.perf_counter() - began)) / requests, 1)


# Gain.


def workload(seed: int, rate: float, batch: str) -> list[WorkloadRequest]:
    """Return conversations and requests of a batch class, with arrivals ``rate`` times as dense as at 1."""
    rng, classes = np.random.default_rng(seed), parse_fleet(FILE).settings.classes
    found = []
    for k in range(CONVERSATIONS):
        at_s = float(rng.uniform(0.0, 60.0 / rate))
        for turn in range(TURNS):
            blocks = 3 + 2 * turn + int(rng.integers(3))
            ids, output = tuple(range(1_000 * k, 1_000 * k + blocks)), int(rng.integers(40, 200))
            slo = classes.slo("interactive", Targets(ttft_s=TTFT_S))
            found.append(WorkloadRequest(f"{k}-{turn}", at_s, 512 * blocks, output, slo, model="model", prefix_ids=ids))
            at_s += float(rng.uniform(2.0, 5.0))
    for burst in range(BURSTS):
        at_s, slo = (burst + float(rng.uniform())) * 10.0 / rate, classes.slo("batch", Targets(e2e_s=BATCH_S))
        for k in range(BURST):
            if batch == "steady":
                at_s = float(rng.uniform(0.0, 60.0 / rate))
            name, prompt, output = f"b{burst}-{k}", int(rng.integers(500, 4_000)), int(rng.integers(100, 500))
            found.append(WorkloadRequest(name, at_s, prompt, output, slo, model="model"))
    return sorted(found, key=lambda one: one.arrival_s)


class Sampled(Dispatcher):
    """A rule that sees metrics of servers, which are up to SAMPLE_S old."""

    def __init__(self) -> None:
        self.sampled: dict[str, int] = {}
        self._next_s = 0.0
        self._arrived: list[WaitingRequest] = []

    @property
    def has_swap_space(self) -> bool:
        return False

    @property
    def wakes_s(self) -> float:
        return self._next_s

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        self._arrived.append(request)

    def sample(self, view: SimulatedView) -> None:
        """Take in the metrics of all servers."""
        self.sampled = {one.name: one.num_in_flight for one in view.instances}

    def give(self, request: WaitingRequest, view: SimulatedView) -> Iterator[Give]:
        """Yield the order for a request, unless it waits."""
        yield Give(request.request_id, self.choose(request, view))

    def choose(self, request: WaitingRequest, view: SimulatedView) -> str:
        return min(self.sampled, key=lambda name: (self.sampled[name], name))

    def waiting(self, view: SimulatedView) -> Iterator[Give]:
        """Yield the orders for requests that have waited."""
        yield from ()

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        if view.now_s >= self._next_s:
            self.sample(view)
            self._next_s = view.now_s + SAMPLE_S
        arrived, self._arrived = self._arrived, []
        given = list(self.waiting(view))
        return [*given, *(one for request in arrived for one in self.give(request, view))]


class InTurn(Sampled):
    """The servers take turns."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = -1

    def choose(self, request: WaitingRequest, view: SimulatedView) -> str:
        self._turn += 1
        return sorted(self.sampled)[self._turn % len(self.sampled)]


class Fewest(Sampled):
    """The server with the fewest requests, with what was sent at this moment."""

    def choose(self, request: WaitingRequest, view: SimulatedView) -> str:
        name = super().choose(request, view)
        self.sampled[name] += 1
        return name

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        self.sample(view)
        return super().tick(view)


class Picked(Sampled):
    """The objects of a picker, called as its asynchronous half calls them."""

    def __init__(self, hold_s: float) -> None:
        super().__init__()
        self._picking = Picking(MODELS, ChoiceSection(hold_max_s=hold_s), ManualClock())
        self._instances, self._servers = self._picking.instances, self._picking.servers
        self._held, self._hold_s = HeldRequests(self._instances, 1_024), hold_s
        self._names: dict[HeldRequest, str] = {}
        self._sent: dict[str, SentRequest] = {}
        self._sizes: dict[str, int] = {}
        self._totals: dict[str, Totals] = {}

    def sample(self, view: SimulatedView) -> None:
        if not len(self._servers):
            self._servers.listed([one.name for one in view.instances])
        for one in view.instances:
            running = min(one.num_in_flight, MAX_NUM_SEQS)
            totals = self._totals.get(one.name, Totals())
            figures = ServerFigures("model", running, one.num_in_flight - running, None, totals)
            self._servers.reported(one.name, figures, self._instances.sent(), view.now_s)

    def ended(self, request_id: str, tokens: int, view: SimulatedView) -> None:
        sent = self._sent.pop(request_id)
        sent.end()
        before, name = self._totals.get(sent.instance.name, Totals()), sent.instance.name
        size = self._sizes.pop(request_id)
        self._totals[name] = Totals(
            before.prompts + 1, before.prompt_tokens + size, before.outputs + 1, before.output_tokens + tokens
        )

    def give(self, request: WaitingRequest, view: SimulatedView) -> Iterator[Give]:
        output = self._servers.output_tokens("model", request.most_tokens)
        held = HeldRequest(
            "model",
            request.slo_class,
            request.arrival_s,
            request.due_s,
            request.rank,
            request.arrival_s + self._hold_s,
            work=Work(1, request.prompt_tokens, output),
            prompt=beginnings_of(request),
        )
        self._sizes[request.request_id] = request.prompt_tokens
        sent = self._held.arrived(held, view.now_s)
        if sent is not None:
            yield self._given(request.request_id, sent)
            return
        self._names[held] = request.request_id
        if self._hold_s <= 0.0:
            yield self._anyway(held, view.now_s)

    def waiting(self, view: SimulatedView) -> Iterator[Give]:
        for held, sent in self._held.let_go(view.now_s):
            yield self._given(self._names.pop(held), sent)
        for held in [one for one in self._held if one.until_s <= view.now_s]:
            yield self._anyway(held, view.now_s)

    def _anyway(self, held: HeldRequest, now_s: float) -> Give:
        self._held.left(held)
        one = self._instances.choose_full("model", held.work, held.prompt, now_s)
        assert one is not None
        return self._given(self._names.pop(held), self._instances.send(one, held.work, held.prompt, now_s))

    def _given(self, request_id: str, sent: SentRequest) -> Give:
        self._sent[request_id] = sent
        return Give(request_id, sent.instance.name)


WAYS: dict[str, Callable[[], Dispatcher]] = {
    "in turn": InTurn,
    "fewest sampled": Sampled,
    "fewest": Fewest,
    "picker, 0 s": lambda: Picked(0.0),
    "picker, 2 s": lambda: Picked(2.0),
    "picker, 30 s": lambda: Picked(30.0),
}
RATES, BATCHES = (0.6, 0.8, 1.0), ("bursts", "steady")


def gain_row(way: str, batch: str, rate: float, seed: int) -> dict[str, Any]:
    requests = workload(seed, rate, batch)
    run = FleetRun(parse_fleet(FILE), WAYS[way](), ModelEngine, policy=None, seed=seed, prefix_caching=True)
    served = run.run(requests).run.requests
    classes = np.array([one.request.slo.slo_class.name for one in served])
    first_s = np.array([one.token_times_s[0] - one.request.arrival_s for one in served])
    last_s = np.array([one.token_times_s[-1] - one.request.arrival_s for one in served])
    talk = classes == "interactive"
    assert len(served) == len(requests)
    return {
        "way": way,
        "batch_comes": batch,
        "rate": rate,
        "seed": seed,
        "interactive": float(np.mean(first_s[talk] <= TTFT_S)),
        "batch": float(np.mean(last_s[~talk] <= BATCH_S)),
        "ttft_mean_ms": 1e3 * float(first_s[talk].mean()),
        "ttft_p90_ms": 1e3 * float(np.quantile(first_s[talk], 0.9)),
        "hits": sum(one.cached_tokens for one in served) / sum(one.prompt_tokens for one in requests),
    }


def gain(seeds: int, rates: Sequence[float]) -> list[dict[str, Any]]:
    """Return the means of each way at each rate over the seeds."""
    found = []
    for batch, rate, way in product(BATCHES, rates, WAYS):
        rows = [gain_row(way, batch, rate, seed) for seed in range(seeds)]
        figures = [name for name in rows[0] if name not in ("way", "batch_comes", "rate", "seed")]
        means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in figures}
        found.append({"batch_comes": batch, "rate": rate, "way": way, **means})
    return found


def main() -> None:
    parser = parser_for(__doc__, section="cost", seeds=5)
    parser.add_argument("--quick", action="store_true", help="small; writes nothing without --out")
    parser.add_argument("--out", type=Path, help="instead of picker_choice.json.gz")
    given = parser.parse_args()
    if given.section == "gain":
        rows = gain(1 if given.quick else given.seeds, RATES[:1] if given.quick else RATES)
    else:
        times = QUICK_CHOICES if given.quick else CHOICES
        rows = [cost_row(servers, times) for servers in (QUICK_SIZES if given.quick else SIZES)]
        rows[0]["gRPC"] = bounded.run(grpc_us(50 if given.quick else 2_000))
    shown = list(rows[0])
    print(aligned([shown, *([str(row.get(name, "")) for name in shown] for row in rows)]))
    path = given.out or (None if given.quick else RESULTS / "picker_choice.json.gz")
    if path is not None:
        merge_result(path, {given.section: rows})


if __name__ == "__main__":
    main()
