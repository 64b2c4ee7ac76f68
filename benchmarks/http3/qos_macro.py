"""What do stream scheduler and model router together earn, end to end (Tables 3 and 4 of the QoS paper)?

Requests of four tasks go over one slow, lossy link to a host with OPT-1.3B and OPT-2.7B on one A100: OpenBookQA is of
the priority class, PIQA's inputs are long (102.4 KB; all others 8 KB). A router chooses the model as the request
arrives there, knowing how long the network took; the answer goes back in one piece. Score: the quality of the model
that served it, 0 where its answer reached the client late.

First the network: QUIC in virtual time (quic_virtual.py), TLS over the kernel's TCP on an emulated link
(quic_network.py), by stream scheduler. What it took of each request then is given to the same engines, those of the
router's queueing simulator, under each rule of the router. Answers are small, so the way back is constant.

    python -m benchmarks.http3.qos_macro --policies router-policies [--no-tcp] [--out benchmarks/results/qos-macro]

``router-policies`` has ``network-N.safetensors``, of ``benchmarks/router/gain.py --train network N``.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.http3.quic_endpoints import window_bytes
from benchmarks.http3.quic_link import LinkShape, link, why_not
from benchmarks.http3.quic_network import Ends
from benchmarks.http3.quic_virtual import LinkLoop
from benchmarks.http3.quic_virtual import run as virtual_run
from benchmarks.publish import RESULTS, RUNS, read_rows, write_rows, write_table
from benchmarks.router.gain import system_called
from sloserve.fleet.router.arrivals import Changing, Phases, Stable
from sloserve.fleet.router.environment import Environment, System
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy
from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.client_connection import connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import head
from sloserve.http3.listener import listen
from sloserve.http3.stream_schedulers import SCHEDULERS
from sloserve.wire.optional_http3 import Http3Settings

FOLDER = RESULTS / "qos-macro"
REQUESTS, SEEDS = 200, 3
RTT_MS = 100
REPLY_S = RTT_MS / 2e3 + 1200 * 8 / 5e6
"""Way back of an answer of one packet."""
STABLE_PER_S, CHANGING_PER_S = 17.0, (5.0, 40.0)
PHASE_REQUESTS = (20, 60)
LONG, PRIORITY = "piqa", "openbookqa"
PAPER = {
    "stable": {
        "rr": "0.20 0.25 0.42", "fcfs": "0.19 0.24 0.36", "edf": "0.21 0.37 0.52", "abs": "0.20 0.35 0.49",
        "ml": "0.21 0.29 0.45", "tcp-n": "0.20 0.24 0.41", "tcp-1": "0.18 0.22 0.31",
    },
    "unpredictable": {
        "rr": "0.19 0.54 0.42", "fcfs": "0.17 0.53 0.36", "edf": "0.19 0.64 0.48", "abs": "0.18 0.62 0.46",
        "ml": "0.19 0.57 0.44", "tcp-n": "0.18 0.54 0.41", "tcp-1": "0.16 0.51 0.35",
    },
}  # fmt: skip
"""Tables 3 and 4: OPT-2.7B, OPT-1.3B, policy."""


@dataclass(frozen=True, slots=True)
class SentRequests:
    """Requests as they leave the client: when, in seconds from the first one, and of which task by its index."""

    arrival_s: np.ndarray
    task: np.ndarray

    @classmethod
    def draw(cls, system: System, workload: str, seed: int) -> "SentRequests":
        rng = np.random.default_rng((seed, 31))
        task = rng.integers(len(system.tasks), size=REQUESTS)
        if workload == "stable":
            arrivals: Stable | Changing = Stable(np.array([STABLE_PER_S]), np.inf, rng)
        else:
            arrivals = Changing(Phases(CHANGING_PER_S, PHASE_REQUESTS, timed=0.0), 1, rng)
        now_s, times = np.zeros(1), []
        for _ in range(REQUESTS):
            now_s = now_s + arrivals.gaps_s(np.array([0]), now_s)
            times.append(float(now_s[0]))
        return cls(np.array(times) - times[0], task)

    def sizes(self, system: System) -> list[int]:
        return [102_400 if system.tasks[t] == LONG else 8_000 for t in self.task]


def quic_times(system: System, sent: SentRequests, scheduler: str, seed: int, files: tuple[Path, Path]) -> list[float]:
    """How long each request took to the server, scheduled so by its client, in virtual time."""
    took = [float("inf")] * REQUESTS
    sizes, limit_s = sent.sizes(system), system.limit_s[sent.task]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        number = int(scope["path"][1:])
        took[number] = asyncio.get_running_loop().time() - begun_s - float(sent.arrival_s[number])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def both(loop: LinkLoop) -> None:
        nonlocal begun_s
        common: dict[str, Any] = {
            "congestion": "constant",
            "window_bytes": window_bytes(RTT_MS),
            "scheduler": scheduler,
        }
        certificates = CertificateFiles(str(files[0]), str(files[1]))
        listener = await listen(app, Http3Settings(streams=1000, **common), certificates, ("127.0.0.1", 0))
        client = await connect("127.0.0.1", listener.port, ClientSettings(ca_file=str(files[0]), **common))
        begun_s = loop.time()

        async def one(number: int) -> None:
            await asyncio.sleep(begun_s + float(sent.arrival_s[number]) - loop.time())
            urgent = system.tasks[sent.task[number]] == PRIORITY
            reply = client.request(
                head(b"POST", b"localhost", f"/{number}".encode(), []),
                body_follows=True,
                deadline_s=loop.time() + float(limit_s[number]),
                urgency=1 if urgent else 5,
            )
            await reply.send(bytes(sizes[number]), end=True)
            await reply.head()

        await asyncio.gather(*map(one, range(REQUESTS)))
        await client.end()

    begun_s = 0.0
    virtual_run(LinkShape(delay_s=RTT_MS / 2e3, seed=seed), both)
    return took


class NetworkEnvironment(Environment):
    """Engines that get requests as a network delivers them. Each system has its own network, ``[systems, n]`` each.

    arrival_s: at the server, ascending; of task ``task``, which the network takes ``network_s`` in all of its time.
    """

    def __init__(
        self, system: System, arrival_s: np.ndarray, task: np.ndarray, network_s: np.ndarray, rng: np.random.Generator
    ) -> None:
        self._given = task, network_s
        self._at = np.zeros(len(arrival_s), np.int64)
        super().__init__(system, _Times(arrival_s), len(arrival_s), rng)

    def _draw(self, systems: np.ndarray) -> None:
        super()._draw(systems)
        task, network_s = self._given
        at = np.minimum(self._at[systems], task.shape[1] - 1)
        self._task[systems], self._network_s[systems] = task[systems, at], network_s[systems, at]
        self._at[systems] += 1


class _Times:
    """Arrivals at given times, ``[systems, n]``."""

    def __init__(self, arrival_s: np.ndarray) -> None:
        self._arrival_s = arrival_s
        self._next = np.zeros(len(arrival_s), np.int64)
        self.rate_per_s = arrival_s.shape[1] / arrival_s[:, -1]
        self.entered = np.zeros(len(arrival_s), np.bool_)

    def gaps_s(self, systems: np.ndarray, now_s: np.ndarray) -> np.ndarray:
        self.entered[systems] = self._next[systems] % PHASE_REQUESTS[1] == 0  # the predictor's error is another
        at = self._next[systems]
        left = at < self._arrival_s.shape[1]
        at_s = self._arrival_s[systems, np.minimum(at, self._arrival_s.shape[1] - 1)]
        self._next[systems] += 1
        return np.where(left, np.maximum(at_s - now_s[systems], 0.0), np.inf)


def scores(
    system: System, rule: Rule, sent: SentRequests, took_s: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Score and model of each request under ``rule``; ``[transports, n]``, as ``took_s`` has them."""
    at_server_s = sent.arrival_s + took_s
    order = np.argsort(at_server_s, axis=1, kind="stable")
    task = np.take_along_axis(np.broadcast_to(sent.task, order.shape), order, axis=1)
    network_s = np.take_along_axis(took_s, order, axis=1) + REPLY_S
    world = NetworkEnvironment(
        system, np.take_along_axis(at_server_s, order, axis=1), task, network_s, np.random.default_rng(seed)
    )
    score, chosen = np.zeros(order.shape), np.zeros(order.shape, np.int64)
    count = np.zeros(len(order), np.int64)
    while not world.over:
        at = world.next_arrivals()
        if not at.size:
            continue
        models = rule(world.observe(at))
        chosen[at, order[at, count[at]]] = models
        world.serve(at, models, at * REQUESTS + order[at, count[at]])
        count[at] += 1
    tickets, rewards, _ = world.finished.take()
    score.flat[tickets] = rewards / system.weights[sent.task[tickets % REQUESTS]]
    return score, chosen


def rules_of(system: System, folder: Path) -> dict[str, Rule]:
    found: dict[str, Rule] = {model: always(i) for i, model in reversed(list(enumerate(system.models)))}
    found["greedy"] = masked_greedy(system)
    for path in sorted(folder.glob("network-[0-9].safetensors")):
        found[f"dqn {path.stem[-1]}"] = learned(
            system, load_network(path, Schema(len(system.models)).as_text(), system.models)
        )
    rule = found["greedy"]
    found["greedy blind"] = lambda seen: rule(replace(seen, network_s=np.zeros_like(seen.network_s)))
    return found


def rows_of(
    workload: str, seed: int, system: System, sent: SentRequests, took: dict[str, list[float]], rules: dict[str, Rule]
) -> Iterator[dict[str, Any]]:
    priority, long = (sent.task == system.tasks.index(name) for name in (PRIORITY, LONG))
    times = np.array(list(took.values()))
    for rule_name, rule in rules.items():
        score, model = scores(system, rule, sent, times, seed)
        for i, transport in enumerate(took):
            yield {
                "workload": workload, "seed": seed, "transport": transport,
                "backend": "tun" if transport.startswith("tcp") else "virtual", "rule": rule_name,
                "score": round(float(score[i].mean()), 4), "priority": round(float(score[i][priority].mean()), 4),
                "long": round(float(score[i][long].mean()), 4), "large": round(float(model[i].mean()), 3),
                "network_p95_s": round(float(np.quantile(times[i], 0.95)), 2),
            }  # fmt: skip


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each workload, transport and rule: the mean of its seeds."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("workload", "transport", "backend", "rule")), []).append(row)
    found = []
    for (workload, transport, backend, rule), of in groups.items():
        row = {"workload": workload, "seeds": len(of), "transport": transport, "backend": backend, "rule": rule}
        for name in ("score", "priority", "long", "large", "network_p95_s"):
            row[name] = round(float(np.mean([float(r[name]) for r in of])), 4)
        found.append(row)
    return found


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        rules = list(dict.fromkeys(row["rule"] for row in own))
        for what in ("score", "priority"):
            of_paper = "; in brackets the paper's: 2.7B, 1.3B, policy" if what == "score" else ", openbookqa alone"
            lines.append(f"{workload}: mean score of {own[0]['seeds']} seeds{of_paper}")
            lines.append(f"{'':8}{'backend':9}" + "".join(f"{name:>13}" for name in ("network p95", *rules)))
            for transport in dict.fromkeys(row["transport"] for row in own):
                of = {row["rule"]: row for row in own if row["transport"] == transport}
                first = next(iter(of.values()))
                numbers = "".join(f"{float(of[rule][what]):13.3f}" for rule in rules)
                told = f"   ({PAPER[workload][transport]})" if what == "score" else ""
                lines.append(f"{transport:8}{first['backend']:9}{float(first['network_p95_s']):13.2f}{numbers}{told}")
            lines.append("")
    return "\n".join(lines)


def tcp_times(
    sent: dict[tuple[str, int], SentRequests], system: System, files: Path
) -> dict[tuple[str, int], dict[str, list[float]]]:
    """The same of TLS over TCP, by workload and seed: from the request to the answer, less the way back."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    with link() as line:
        ends = Ends(line, str(files))
        try:
            for (workload, seed), requests in sent.items():
                for transport in ("tcp-n", "tcp-1"):
                    line.shape(LinkShape(delay_s=RTT_MS / 2e3, seed=seed))
                    asked = {"transport": transport, "congestion": "bbr", "sizes": requests.sizes(system)}
                    told = ends.run({**asked, "arrivals_s": requests.arrival_s.tolist(), "reply_bytes": 1})
                    took = [np.inf if x is None else max(x - RTT_MS / 2e3, 0.0) for x in told["latency_s"]]
                    found.setdefault((workload, seed), {})[transport] = took
                    print(workload, seed, transport, f"late {told['client_late_ms']} ms", flush=True)
        finally:
            ends.stop()
    return found


def main() -> None:
    parser = parser_for(__doc__, policies=Path("router-policies"), seeds=SEEDS, out=FOLDER)
    parser.add_argument("--no-tcp", action="store_true", help="only what needs no root")
    args = parser.parse_args()
    impossible = None if args.no_tcp else why_not()
    if impossible is not None:
        parser.exit(1, f"cannot emulate a link: {impossible}; --no-tcp runs what needs none\n")
    begun_s, rows = time.process_time(), []
    system = replace(system_called("network")[0], devices=1)
    rules = rules_of(system, args.policies)
    sent = {(w, s): SentRequests.draw(system, w, s) for w in PAPER for s in range(1, args.seeds + 1)}
    with tempfile.TemporaryDirectory() as folder:
        files = write_certificate(Path(folder), make_certificate(("localhost", "127.0.0.1", "10.231.7.2")))
        tcp = {} if args.no_tcp else tcp_times(sent, system, Path(folder))
        for (workload, seed), requests in sent.items():
            took = {name: quic_times(system, requests, name, seed, files) for name in SCHEDULERS}
            took |= tcp.get((workload, seed), {})
            rows += rows_of(workload, seed, system, requests, took, rules)
            print(f"{workload} {seed}: {time.process_time() - begun_s:.0f} s of CPU time", flush=True)
    rows = means(rows)
    write_rows(args.out / RUNS, rows)
    write_table(args.out, table_of(rows))
    print(table_of(read_rows(args.out / RUNS)))


if __name__ == "__main__":
    main()
