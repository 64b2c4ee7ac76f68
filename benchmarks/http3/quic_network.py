"""What do stream schedulers gain on a slow, lossy link, against TLS on TCP with one connection and with many?

90 echo requests of three classes, drawn by seed: real-time (8 KB, 1 s), free (8 KB, 2 s), long (102.4 KB, 7 s), over
5 Mbit/s each way with 0.5 % loss each way. A request counts from its begin to the last byte of its echo; connections of
QUIC and of `tcp-1` stand before, those of `tcp-n` are made for each request.

QUIC runs in virtual time (quic_virtual.py), so that a busy machine changes nothing. TCP is the kernel's: it runs on an
emulated link (quic_link.py), which needs root; with `--wire` QUIC runs there too. Wire and ends have real-time priority
there. Each row has its backend.

    python -m benchmarks.http3.quic_network [--only burst-constant] [--wire] [--out benchmarks/results/quic-network]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import parser_for
from benchmarks.http3.quic_endpoints import CLASSES, TCP_CONGESTIONS, WINDOW, RunRequests, listen_echo, run_quic
from benchmarks.http3.quic_link import ADDRESSES, Link, LinkShape, link, why_not
from benchmarks.http3.quic_virtual import LinkLoop
from benchmarks.http3.quic_virtual import run as virtual_run
from benchmarks.publish import RESULTS, RUNS, caption, read_rows, write_rows, write_table
from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.stream_schedulers import SCHEDULERS
from sloserve.sim.report.statistics import Mean, mean_interval

REQUESTS = 90
FOLDER = RESULTS / "quic-network"
DRAWN = "burst-constant"
"""The condition that the bars are for, and the figure."""
LATE_MS = 25.0
"""A run whose wire or client got its turn later than this, at the 99th percentile, is repeated: the machine is busy."""


@dataclass(frozen=True, slots=True)
class Condition:
    """rate: Poisson arrivals per second, 0 for all at once. ends: schedulers of server and client. closing: scheduler,
    congestion control and number of connections of runs beside these, in virtual time. window: where it is constant and
    not as usual, in parts of what fills the link; then QUIC runs in virtual time alone. one_lower_level: whether free
    and long requests have the same urgency, as in the paper's ABS; then QUIC runs in virtual time alone.
    """

    name: str
    congestion: str
    tcp_congestion: str
    rtt_ms: int
    rate: float
    seeds: int
    ends: tuple[tuple[str, str], ...] = tuple((name, name) for name in SCHEDULERS)
    tcp: bool = True
    closing: tuple[tuple[str, str, int], ...] = ()
    window: float | None = None
    one_lower_level: bool = False


ASYMMETRIC = tuple((a, b) for a in ("edf", "rr", "fcfs") for b in ("edf", "rr", "fcfs") if "edf" in (a, b) and a != b)
CONDITIONS = (
    Condition("burst-constant", "constant", "bbr", 100, 0.0, 5),
    Condition("burst-window-1.5", "constant", "", 100, 0.0, 5, (("edf", "edf"), ("ml", "ml")), tcp=False, window=1.5),
    Condition("burst-one-lower-level", "constant", "", 100, 0.0, 5, (("abs", "abs"),), tcp=False, one_lower_level=True),
    Condition("burst-cubic", "cubic", "cubic", 100, 0.0, 3, closing=(("edf", "cubic", 2), ("edf", "cubic", 4))),
    Condition("burst-cubic-rtt50", "cubic", "cubic", 50, 0.0, 3),
    Condition("poisson20-constant", "constant", "bbr", 100, 20.0, 3),
    Condition(
        "poisson12-cubic",
        "cubic",
        "cubic",
        100,
        12.0,
        3,
        closing=(("edf", "cubic", 2), ("edf", "cubic", 4), ("edf", "cubic", 8), ("edf", "constant", 1)),
    ),
    Condition("asymmetric", "constant", "bbr", 100, 0.0, 3, ASYMMETRIC, tcp=False),
)


def runs_of(condition: Condition) -> Iterator[dict[str, Any]]:
    """Seeds in the outer loop, so that what the machine does meanwhile meets all alike."""
    for seed in range(1, condition.seeds + 1):
        common = {"condition": condition.name, "rtt_ms": condition.rtt_ms, "rate": condition.rate, "seed": seed}
        common |= {"requests": REQUESTS} | ({} if condition.window is None else {"window": condition.window})
        common |= {"one_lower_level": True} if condition.one_lower_level else {}
        for server, client in condition.ends:
            yield {
                **common,
                "transport": "quic",
                "server": server,
                "client": client,
                "congestion": condition.congestion,
            }
        for name, congestion, connections in condition.closing:
            ends = {"server": name, "client": name, "congestion": congestion, "connections": connections}
            yield {**common, "transport": "quic", **ends}
        for transport in ("tcp-n", "tcp-1") if condition.tcp else ():
            congestion = condition.tcp_congestion if condition.tcp_congestion in TCP_CONGESTIONS else "cubic"
            yield {**common, "transport": transport, "server": "", "client": "", "congestion": congestion}


class Ends:
    """The processes at the two ends of a link."""

    def __init__(self, line: Link, folder: str) -> None:
        script = [sys.executable, "-m", "benchmarks.http3.quic_endpoints"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(line.command(1, *script, "server", ADDRESSES[1], folder), **pipes)
        self.client = subprocess.Popen(line.command(0, *script, "client", ADDRESSES[1], folder), **pipes)
        assert self.server.stdout is not None and self.server.stdout.readline() == "ready\n"

    def run(self, run: dict[str, Any]) -> dict[str, Any]:
        assert self.client.stdin is not None and self.client.stdout is not None
        self.client.stdin.write(json.dumps(run) + "\n")
        self.client.stdin.flush()
        return dict(json.loads(self.client.stdout.readline()))

    def server_cpu_s(self) -> float:
        fields = Path(f"/proc/{self.server.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in (self.client, self.server):
            process.kill()
            process.communicate()


def measure(line: Link, ends: Ends, run: dict[str, Any]) -> dict[str, Any]:
    """One run on the wire, as a row."""
    line.shape(LinkShape(delay_s=run["rtt_ms"] / 2e3, seed=run["seed"]))
    cpu_s = ends.server_cpu_s()
    told = ends.run(run)
    wire = line.shape(LinkShape())
    late_ms = max(told["client_late_ms"], wire["late_ms"][1] if wire else 0.0)
    cpu_s = told["client_cpu_s"] + ends.server_cpu_s() - cpu_s
    return row_of(run, line.backend, told["classes"], told["latency_s"], wire, late_ms, cpu_s)


def simulate(run: dict[str, Any], files: tuple[Path, Path]) -> dict[str, Any]:
    """One run in virtual time, as a row."""
    requests, begun_s, window = RunRequests(run), time.process_time(), run.get("window", WINDOW)
    certificates = CertificateFiles(str(files[0]), str(files[1]))

    async def both(loop: LinkLoop) -> dict[str, Any]:
        listener = await listen_echo(
            "127.0.0.1", 0, run["server"], run["congestion"], run["rtt_ms"], certificates, window
        )
        await run_quic(run, "127.0.0.1", str(files[0]), requests, listener.port)
        return {"up": loop.up.counts, "down": loop.down.counts}

    wire = virtual_run(LinkShape(delay_s=run["rtt_ms"] / 2e3, seed=run["seed"]), both)
    cpu_s = time.process_time() - begun_s
    return row_of(run, "virtual", requests.classes, requests.latency_s, wire, 0.0, cpu_s)


def row_of(
    run: dict[str, Any], backend: str, kinds: Any, latency_s: Any, wire: dict[str, Any], late_ms: float, cpu_s: float
) -> dict[str, Any]:
    row = {k: v for k, v in run.items() if k not in ("requests", "window", "one_lower_level")} | {"backend": backend}
    row["connections"] = run.get("connections", "")
    latencies = np.array([np.inf if x is None else x for x in latency_s])
    for kind, (_, deadline_s, _, _) in CLASSES.items():
        own = latencies[np.array(kinds) == kind]
        row[f"{kind}/n"], row[f"{kind}/met"] = len(own), int((own <= deadline_s).sum())
        for q in (5, 25, 50, 75, 95) if run["condition"] == DRAWN else (95,):
            row[f"{kind}/p{q}_s"] = round(float(np.quantile(own, q / 100, method="lower")), 2)
    packets, lost = (sum(wire[way][what] for way in ("up", "down")) if wire else 0 for what in ("packets", "lost"))
    return row | {"packets": packets, "lost": lost, "late_ms": late_ms, "cpu_s": round(cpu_s, 1)}


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Share of requests in time, % over all seeds; in brackets the 95th percentile of their latency, mean of seeds."""
    out = StringIO()
    console = Console(file=out, width=140)
    for condition in dict.fromkeys(row["condition"] for row in rows):
        own = [row for row in rows if row["condition"] == condition]
        first = own[0]
        arrivals = f"Poisson {float(first['rate']):g}/s" if float(first["rate"]) else "all at once"
        seeds = len({str(row["seed"]) for row in own})
        title = f"{condition}: {arrivals}, RTT {first['rtt_ms']} ms, {seeds} seeds"
        table = Table(title=title, box=box.ASCII2, title_justify="left")
        texts = ("server / client", "control", "backend")
        for column in (*texts, *CLASSES, "all", "CPU s"):
            table.add_column(column, justify="left" if column in texts else "right")
        for key in dict.fromkeys(map(group_of, own)):
            group = [row for row in own if group_of(row) == key]
            name = key[0] if key[0] != "quic" else key[1] if key[1] == key[2] else f"{key[1]} / {key[2]}"
            name += f" x {key[5]}" if key[5] else ""
            cells = [f"{share(group, [kind]):.1f} ({p95(group, kind):.2f})" for kind in CLASSES]
            cpu_s = np.mean([float(r["cpu_s"]) for r in group])
            table.add_row(name, key[3], key[4], *cells, f"{share(group, list(CLASSES)):.1f}", f"{cpu_s:.1f}")
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def run_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Which run a row is of."""
    return *map(str, (row["condition"], row["seed"])), *group_of(row)


def group_of(row: dict[str, Any]) -> tuple[str, ...]:
    columns = ("transport", "server", "client", "congestion", "backend", "connections")
    return tuple(str(row.get(name) or "") for name in columns)


def share(rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> float:
    met = sum(int(row[f"{kind}/met"]) for row in rows for kind in kinds)
    return 100 * met / sum(int(row[f"{kind}/n"]) for row in rows for kind in kinds)


def p95(rows: Sequence[dict[str, Any]], kind: str) -> float:
    return float(np.mean([float(row[f"{kind}/p95_s"]) for row in rows]))


def of_name(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Runs of a stream scheduler in virtual time, or of a TCP transport."""
    return [r for r in rows if name == r["transport"] or (name == r["server"] and r["backend"] == "virtual")]


def failed_bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What of the burst with a constant window is not as it should be; empty where all is."""
    own = [row for row in rows if row["condition"] == DRAWN]
    names = [*SCHEDULERS, "tcp-n", "tcp-1"]
    groups = {name: of_name(own, name) for name in names}
    real = {name: share(group, ["real-time"]) for name, group in groups.items() if group}
    found = [f"real-time under {name}: {real[name]:.1f} % < 99 %" for name in ("edf", "abs", "ml") if real[name] < 99]
    found += [f"real-time under {n}: {real[n]:.1f} % > 35 %" for n in ("rr", "fcfs", "tcp-n", "tcp-1") if real[n] > 35]
    edf, ml = (share(groups[name], list(CLASSES)) for name in ("edf", "ml"))
    return found + ([f"edf in total: {edf:.1f} % < {ml:.1f} % of ml"] if edf < ml else [])


def draw(rows: Sequence[dict[str, Any]], path: Path, about: str) -> None:
    """Shares in time, and the 5th to 95th percentile of latency, of the burst with a constant window: all from one
    backend, the wire where QUIC ran there too, else each name says which. Intervals: 95 %, of the mean over seeds.
    """
    from matplotlib.figure import Figure

    from sloserve.sim.report.figure_style import BLUE, VERMILION, write_figure

    groups, told = drawn_groups(rows)
    names = list(groups)
    figure = Figure(figsize=(9, 5.3), dpi=90, layout="constrained")
    for axis, (kind, (_, deadline_s, _, _)) in zip(figure.subplots(2, 3).T, CLASSES.items(), strict=True):
        means = [mean_interval([share([row], [kind]) for row in group]) for group in groups.values()]
        axis[0].bar(names, [mean.value for mean in means if mean], color=BLUE, yerr=_reach(means, 100.0), capsize=2)
        axis[0].set(title=f"{kind}, due in {deadline_s:g} s", ylim=(0, 101))
        for q, marker in ((5, "v"), (50, "o"), (95, "^")):
            means = [mean_interval([float(row[f"{kind}/p{q}_s"]) for row in group]) for group in groups.values()]
            values = [mean.value for mean in means if mean]
            style = {"fmt": marker, "markersize": 4, "capsize": 2, "color": BLUE}
            axis[1].errorbar(names, values, yerr=_reach(means), label=f"{q} %", **style)
        axis[1].axhline(deadline_s, color=VERMILION, linestyle="--", linewidth=1)
        axis[1].set_ylim(bottom=0)
        for one in axis:
            one.tick_params(axis="x", labelrotation=60, labelsize=7)
    figure.axes[0].set_ylabel("in time, %")
    figure.axes[3].set_ylabel("latency, s")
    figure.axes[3].legend(fontsize=7, title="percentile", title_fontsize=7)
    figure.supxlabel(f"{told}; 95 % intervals of means over seeds", fontsize=8)
    write_figure(figure, path, about)


def drawn_groups(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Rows of the drawn condition by the name that the figure has for them, and where they ran, in words."""
    own = [row for row in rows if row["condition"] == DRAWN]
    wire = [row for row in own if row["backend"] != "virtual"]
    if {row["server"] for row in wire} >= set(SCHEDULERS):
        names = [*SCHEDULERS, "tcp-n", "tcp-1"]
        return {name: [r for r in wire if name in (r["server"], r["transport"])] for name in names}, "all on the wire"
    names = {f"{name}, virtual": name for name in SCHEDULERS} | {f"{name}, wire": name for name in ("tcp-n", "tcp-1")}
    return {shown: of_name(own, name) for shown, name in names.items()}, "QUIC in virtual time, TCP on the wire"


def _reach(means: Sequence[Mean | None], highest: float = float("inf")) -> list[list[float]]:
    """How far intervals reach below and above their means, within 0 and the highest possible value."""
    ends = [(mean.value, mean.low, mean.high) for mean in means if mean]
    below = [0.0 if low is None else value - max(low, 0.0) for value, low, _ in ends]
    return [below, [0.0 if high is None else min(high, highest) - value for value, _, high in ends]]


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_rows(folder / RUNS, rows)
    write_table(folder, table_of(rows))


def main() -> None:
    parser = parser_for(__doc__, out=FOLDER)
    parser.add_argument("--only", choices=[c.name for c in CONDITIONS], action="append")
    parser.add_argument("--seeds", type=int, help="fewer than a condition has, for a try")
    parser.add_argument("--wire", action="store_true", help="QUIC on the emulated link too, beside virtual time")
    parser.add_argument("--no-tcp", action="store_true", help="only what needs no root")
    parser.add_argument("--no-virtual", action="store_true", help="only what needs root; other rows are kept")
    parser.add_argument("--closing", action="store_true", help="only the runs with other windows and connections")
    parser.add_argument("--late", action="store_true", help="runs on the link during which the machine was busy, again")
    parser.add_argument("--draw", action="store_true", help="the figure from the rows that are there; nothing is run")
    args = parser.parse_args()
    path = args.out / RUNS
    if args.draw:
        draw(read_rows(path), args.out / "latency.png", caption(args.out))
        return
    chosen = args.only or [c.name for c in CONDITIONS]
    runs = [run for c in CONDITIONS if c.name in chosen for run in runs_of(c) if run["seed"] <= (args.seeds or c.seeds)]
    rows = read_rows(path)
    if args.late:
        late = {run_of(row) for row in rows if float(row["late_ms"]) > LATE_MS}
        rows = [row for row in rows if run_of(row) not in late]
        again = [{**r, "backend": "tun"} for r in (run for c in CONDITIONS for run in runs_of(c))]
        runs, chosen, args.wire, args.no_virtual = [r for r in again if run_of(r) in late], [], True, True
    if args.closing:
        rows = [row for row in rows if not (row.get("connections") and row["condition"] in chosen)]
        runs, chosen, args.no_tcp = [run for run in runs if "connections" in run], [], True
    rows = [row for row in rows if row["condition"] not in chosen or (args.no_virtual and row["backend"] == "virtual")]
    with tempfile.TemporaryDirectory() as folder:
        files = write_certificate(Path(folder), make_certificate(("localhost", "127.0.0.1", ADDRESSES[1])))
        for run in runs:
            if run["transport"] == "quic" and not args.no_virtual:
                rows.append(told(simulate(run, files)))
        write(args.out, rows)
        virtual = {"connections", "window", "one_lower_level"}
        on_wire = [run for run in runs if run["transport"] != "quic" or (args.wire and not virtual & run.keys())]
        if on_wire and not args.no_tcp:
            rows += wired(on_wire, folder)
    order = [c.name for c in CONDITIONS]
    rows.sort(key=lambda row: (order.index(row["condition"]), int(row["seed"])))
    write(args.out, rows)
    print(table_of(rows))
    print(f"{sum(float(r['cpu_s']) for r in rows):.0f} s of CPU time")
    if {"quic", "tcp-n", "tcp-1"} <= {row["transport"] for row in rows if row["condition"] == DRAWN}:
        draw(rows, args.out / "latency.png", caption(args.out))
        print("\n".join(failed_bars(rows)) or "all bars are met")


def wired(runs: Sequence[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """The rows of runs on the emulated link."""
    impossible = why_not()
    if impossible is not None:
        sys.exit(f"cannot emulate a link: {impossible}; --no-tcp without --wire runs what needs none")
    rows = []
    with link() as line:
        ends = Ends(line, folder)
        try:
            for run in runs:
                row = measure(line, ends, run)
                if row["late_ms"] > LATE_MS:
                    print(f"again, since the machine was busy ({row['late_ms']} ms late)", flush=True)
                    row = min(row, measure(line, ends, run), key=lambda one: one["late_ms"])
                rows.append(told(row))
        finally:
            ends.stop()
    return rows


def told(row: dict[str, Any]) -> dict[str, Any]:
    print(" ".join(f"{key}={value}" for key, value in row.items() if "/p" not in key), flush=True)
    return row


if __name__ == "__main__":
    main()
