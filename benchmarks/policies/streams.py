"""Streamed, greedy requests against a server of builtin:tiny: what each reply said and when, beside stock's."""

import json
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sloserve.client.endpoint import open_endpoint
from sloserve.client.payload import Payload, PayloadSettings, SLOFields, payload
from sloserve.client.prompts import TokenPrompts
from sloserve.client.workload_replay import ReplayedRun, ReplaySettings, replay
from sloserve.core.clock import SystemClock
from sloserve.core.json_lines import lines_of
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO
from sloserve.sim.bench.bench_report import NO_STEPS
from sloserve.sim.bench.slo_encoding import in_xargs
from sloserve.sim.report.summary import summarize

STOCK = "stock"
CHECKS = ("incomplete", "texts_differ")
Table = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True, eq=False)
class ServedRun:
    """One run. began_s: when it began, by the monotonic clock. texts: replies by request id. preemptions: as the
    engine counted them during it.
    """

    run: ReplayedRun
    began_s: float
    texts: dict[str, str]
    preemptions: int

    def record(self, policy: str, seed: int, rps: float) -> dict[str, Any]:
        """The figures of ``sloserve bench``, and preemptions per request."""
        logs = RunLog([one.log(one.request) for one in self.run.exchanges], NO_STEPS, {"wall_s": self.run.duration_s})
        told = [float(one.slo["qoe"]) for one in self.run.exchanges if one.slo is not None and "qoe" in one.slo]
        return summarize(logs, policy=policy, seed=seed, rps=rps) | {
            "preemptions": self.preemptions / len(self.run.exchanges),
            "qoe_mean_of_server": statistics.fmean(told) if told else None,
        }

    def checked(self, stock: "ServedRun") -> dict[str, list[str]]:
        """By CHECKS, the requests that fail it: a stream broken off or of another length than stock's, another text."""
        tokens = {one.request.request_id: one.token_times_s.size for one in stock.run.exchanges}
        return {
            "incomplete": [
                one.request.request_id
                for one in self.run.exchanges
                if one.outcome is not Outcome.COMPLETED
                or one.token_times_s.size < one.request.output_tokens
                or one.token_times_s.size != tokens[one.request.request_id]
            ],
            "texts_differ": [name for name, text in self.texts.items() if text != stock.texts[name]],
        }


class Kept(httpx.AsyncByteStream):
    """A reply's bytes as they pass, kept for afterwards."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.parts: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self.parts.append(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()

    def text(self) -> str:
        lines = lines_of(b"".join(self.parts).decode())
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def greedy(slo: SLO) -> SLOFields:
    return SLOFields(body=in_xargs(slo).body | {"temperature": 0})


def as_it_is(sent: Payload) -> Payload:
    return sent


async def serve(
    url: str, requests: Sequence[WorkloadRequest], seed: int, reshaped: Callable[[Payload], Payload] = as_it_is
) -> ServedRun:
    """Sends ``requests`` when they are due, with prompts of ``seed``, and waits for all.

    reshaped: what is sent in place of a reply of exactly ``output_tokens``.
    """
    kept: dict[str, Kept] = {}

    async def keep(response: httpx.Response) -> None:
        if name := response.request.headers.get("x-request-id"):
            response.stream = kept[name] = Kept(response.stream)

    settings, prompts, clock = ReplaySettings(), TokenPrompts(256), SystemClock()
    async with open_endpoint(url, model=None, api_key=None, settings=settings) as endpoint:
        asked = PayloadSettings(endpoint.model, state_slo=greedy, report=True)
        payloads = [reshaped(payload(request, prompts.make(request, seed), asked)) for request in requests]
        for one in payloads:
            one.headers["x-request-id"] = one.request.request_id
        endpoint.client.event_hooks["response"] = [keep]
        before = await counter(endpoint.client, "vllm:num_preemptions_total")
        began_s = clock.monotonic_s()
        run = await replay(endpoint.client, payloads, clock, settings)
        preemptions = await counter(endpoint.client, "vllm:num_preemptions_total") - before
    return ServedRun(run, began_s, {name: reply.text() for name, reply in kept.items()}, preemptions)


async def counter(client: httpx.AsyncClient, name: str) -> int:
    """What the engine has counted under ``name`` so far."""
    text = (await client.get("/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name == name))


def compared(records: Sequence[dict[str, Any]], policies: Sequence[str], figures: Sequence[str]) -> Table:
    """Mean, least and greatest of each figure over the repeats."""
    table: Table = {}
    for policy in policies:
        of = [record for record in records if record["policy"] == policy]
        values = {figure: [float(record[figure]) for record in of] for figure in figures}
        table[policy] = {figure: [statistics.fmean(v), min(v), max(v)] for figure, v in values.items()}
    return table


def show(table: Table) -> None:
    for policy, figures in table.items():
        if policy == next(iter(table)):
            print(f"{'':18}" + "".join(f"{figure:>28}" for figure in figures))
        cells = (f"{mean:.3g} ({least:.3g} .. {most:.3g})" for mean, least, most in figures.values())
        print(f"{policy:18}" + "".join(f"{cell:>28}" for cell in cells))


def must_equal_stock(records: Sequence[dict[str, Any]]) -> None:
    """Raises: SystemExit naming the runs that did not pass CHECKS."""
    if wrong := [(r["policy"], r["seed"]) for r in records if any(r[check] for check in CHECKS)]:
        raise SystemExit(f"not every stream was complete and as stock's: {wrong}")
