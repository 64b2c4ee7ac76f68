"""What do readers get of token streams over one slow, lossy link that bulk replies share?

Readers (TTFT 1 s, 4.8 tokens/s, 40 to 160 tokens) come at random for 40 seconds; 16 bulk replies (20 KB in one piece,
due in 30 s) are asked for at once after 8 and after 24 seconds. The engine is the model of :mod:`sloserve.sim.model`
with steps that take ten times an H100's; the times of its tokens are played back by an ASGI application behind the
real listener. All answers share one
connection of one client over 128 to 512 kbit/s each way, RTT 100 ms, 0.5 % loss, cubic, in virtual time. A reader's
QoE follows from when each event reaches the client, as its token buffer has it. Stock: fcfs engine, rr on the link.

    python -m benchmarks.http3.quic_streams [--seeds 1] [--out benchmarks/results/quic-streams]
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import parser_for
from benchmarks.http3.quic_link import LinkShape
from benchmarks.http3.quic_virtual import LinkLoop, run
from benchmarks.publish import RESULTS, write_rows, write_table
from sloserve.core.qoe import qoe
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.client_connection import connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import head
from sloserve.http3.listener import listen
from sloserve.sim.model.engine import ModelEngine
from sloserve.wire.optional_http3 import Http3Settings

FOLDER = RESULTS / "quic-streams"
SPAN_S, READERS_PER_S = 40.0, 0.5
BURSTS_S, BULK_IN_BURST = (8.0, 24.0), 16
TTFT_S, TDS, BULK_DUE_S = 1.0, 4.8, 30.0
BULK_BYTES, BULK_TOKENS = 20_000, 60
SLOWER = 10.0
"""Than an H100."""
MAX_NUM_SEQS = 12
"""At once in the engine: more than readers need, less than a burst brings."""
RTT_S, QUEUE_PACKETS = 0.1, 32
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"model":"m",'
)
EVENT += (
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)

LINKS_KBIT_S = (128, 256, 512)
RUNS = (
    ("fcfs", "rr", "renewed"),
    ("edf:step_budget=true", "rr", "renewed"),
    ("edf:step_budget=true", "fcfs", "renewed"),
    ("edf:step_budget=true", "edf", "fixed"),
    ("edf:step_budget=true", "edf", "renewed"),
    ("edf:step_budget=true", "ml", "renewed"),
    ("andes:step_budget=true", "rr", "renewed"),
    ("andes:step_budget=true", "edf", "renewed"),
)
"""Engine policy, stream scheduler, deadlines; deadlines mean nothing to rr and fcfs."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One request. tokens: events of a reader, ``None`` for a bulk reply."""

    arrival_s: float
    tokens: int | None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.tokens is None:
            return [(b"x-slo-class", b"batch"), (b"x-slo-e2e-ms", str(BULK_DUE_S * 1e3).encode())]
        ttft_ms, tds = str(TTFT_S * 1e3).encode(), str(TDS).encode()
        return [(b"x-slo-class", b"priority"), (b"x-slo-ttft-ms", ttft_ms), (b"x-slo-tds", tds)]


def requests_of(seed: int) -> list[StreamRequest]:
    draws = np.random.default_rng(seed)
    arrivals_s = draws.uniform(0.0, SPAN_S, draws.poisson(READERS_PER_S * SPAN_S))
    found = [StreamRequest(float(at_s), int(draws.integers(40, 161))) for at_s in arrivals_s]
    found += [StreamRequest(at_s, None) for at_s in BURSTS_S for _ in range(BULK_IN_BURST)]
    return sorted(found, key=lambda asked: asked.arrival_s)


def token_times(asked: Sequence[StreamRequest], policy: str) -> list[np.ndarray]:
    """When the engine has each token, in seconds from the start, under that policy."""
    targets = (Targets(ttft_s=TTFT_S / SLOWER, tds=TDS * SLOWER), Targets(e2e_s=BULK_DUE_S / SLOWER))
    workload = [
        WorkloadRequest(
            str(number),
            one.arrival_s / SLOWER,
            200,
            one.tokens or BULK_TOKENS,
            DEFAULT_CLASSES.slo("batch" if one.tokens is None else "priority", targets[one.tokens is None]),
        )
        for number, one in enumerate(asked)
    ]
    settings = EngineSettings(kv_blocks=4096, max_num_seqs=MAX_NUM_SEQS)
    log = ModelEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": {"policy": policy}}).run(workload)
    times = {one.request.request_id: one.token_times_s * SLOWER for one in log.requests}
    return [times[str(number)] for number in range(len(asked))]


def play(
    asked: Sequence[StreamRequest],
    times: Sequence[np.ndarray],
    scheduler: str,
    deadlines: str,
    shape: LinkShape,
    files: tuple[Path, Path],
) -> tuple[list[list[float]], int]:
    """When the parts of each answer reached the client, in seconds from its request; and packets lost."""
    arrived: list[list[float]] = [[] for _ in asked]

    async def both(loop: LinkLoop) -> int:
        start_s = loop.time() + 2.0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            number = int(scope["path"][1:])
            reads = asked[number].tokens is not None
            kind = b"text/event-stream" if reads else b"application/json"
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            for at_s in times[number] if reads else times[number][-1:]:
                await asyncio.sleep(max(start_s + shape.delay_s + float(at_s) - loop.time(), 0.0))
                body = EVENT if reads else bytes(BULK_BYTES)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body"})

        settings = Http3Settings(scheduler=scheduler, deadlines=deadlines)  # type: ignore[arg-type]
        certificates = CertificateFiles(str(files[0]), str(files[1]))
        listener = await listen(app, settings, certificates, ("127.0.0.1", 0))
        client = await connect("127.0.0.1", listener.port, ClientSettings(ca_file=str(files[0])))

        async def one(number: int) -> None:
            await asyncio.sleep(start_s + asked[number].arrival_s - loop.time())
            reply = client.request(head(b"GET", b"localhost", f"/{number}".encode(), asked[number].headers))
            await reply.head()
            begin_s, got = start_s + asked[number].arrival_s, b""
            size = len(EVENT) if asked[number].tokens is not None else BULK_BYTES
            count = 0
            async for part in reply.body():
                got += part
                while len(got) >= size:
                    got = got[size:]
                    count += 1
                    arrived[number].append(loop.time() - begin_s)

        await asyncio.gather(*map(one, range(len(asked))))
        await client.end()
        return int(loop.up.counts["lost"] + loop.down.counts["lost"] + loop.down.counts["overflowed"])

    return arrived, run(shape, both)


def row_of(asked: Sequence[StreamRequest], arrived: Sequence[Sequence[float]]) -> dict[str, Any]:
    readers = [np.array(times) for one, times in zip(asked, arrived, strict=True) if one.tokens is not None]
    bulk = [times[-1] for one, times in zip(asked, arrived, strict=True) if one.tokens is None]
    found = [qoe(times, ttft_s=TTFT_S, tds=TDS) for times in readers]
    return {
        "readers": len(readers),
        "mean_qoe": round(float(np.mean(found)), 4),
        "p10_qoe": round(float(np.quantile(found, 0.1)), 4),
        "ttft_p90_s": round(float(np.quantile([times[0] for times in readers], 0.9)), 3),
        "bulk": len(bulk),
        "bulk_met": sum(at_s <= BULK_DUE_S for at_s in bulk),
        "bulk_mean_s": round(float(np.mean(bulk)), 2),
    }


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, by link."""
    out = StringIO()
    console = Console(file=out, width=140)
    for kbit_s in dict.fromkeys(row["kbit_s"] for row in rows):
        seeds = len({row["seed"] for row in rows})
        table = Table(title=f"{kbit_s} kbit/s, {seeds} seeds", box=box.ASCII2, title_justify="left")
        texts = ("engine policy", "stream scheduler", "deadlines")
        for column in (*texts, "mean QoE", "QoE p10", "TTFT p90, s", "bulk in time", "bulk mean, s"):
            table.add_column(column, justify="left" if column in texts else "right")
        for names in dict.fromkeys((r["policy"], r["scheduler"], r["deadlines"]) for r in rows):
            own = [r for r in rows if (r["policy"], r["scheduler"], r["deadlines"]) == names and r["kbit_s"] == kbit_s]
            means = [
                np.mean([float(r[name]) for r in own]) for name in ("mean_qoe", "p10_qoe", "ttft_p90_s", "bulk_mean_s")
            ]
            met = sum(int(r["bulk_met"]) for r in own) / sum(int(r["bulk"]) for r in own)
            deadlines = names[2] if names[1] in ("edf", "ml") else "-"
            cells = [f"{means[0]:.3f}", f"{means[1]:.3f}", f"{means[2]:.2f}", f"{met:.1%}", f"{means[3]:.1f}"]
            table.add_row(names[0], names[1], deadlines, *cells)
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main() -> None:
    parser = parser_for(__doc__, seeds=2, first_seed=0, out=FOLDER)
    parser.add_argument("--kbit-s", type=int, choices=LINKS_KBIT_S, action="append", help="one link alone")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    begun_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        files = write_certificate(Path(folder), make_certificate())
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            asked = requests_of(seed)
            times = {policy: token_times(asked, policy) for policy in dict.fromkeys(policy for policy, _, _ in RUNS)}
            for kbit_s in args.kbit_s or LINKS_KBIT_S:
                for policy, scheduler, deadlines in RUNS:
                    shape = LinkShape(kbit_s * 1e3, 0.005, RTT_S / 2, QUEUE_PACKETS, seed)
                    arrived, lost = play(asked, times[policy], scheduler, deadlines, shape, files)
                    names = {"kbit_s": kbit_s, "policy": policy, "scheduler": scheduler, "deadlines": deadlines}
                    rows.append({**names, "seed": seed, **row_of(asked, arrived), "lost": lost})
                    print(rows[-1], flush=True)
    rows.sort(key=lambda row: row["kbit_s"])
    write_rows(args.out / "runs.csv.gz", rows)
    write_table(args.out, table_of(rows), shown=True)
    print(f"{time.process_time() - begun_s:.0f} s of CPU time")


if __name__ == "__main__":
    main()
