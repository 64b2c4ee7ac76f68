"""How many batch lines a second does the store accept, and how many do agents claim and finish?

One client does what a gateway and then an agent do to a batch: it accepts lines 1,000 in a transaction, then claims 64
at a time and finishes them together, with bodies and results of 500 bytes. SQLite on the disk of TMPDIR, PostgreSQL on
this machine with ``fsync=off``: what a disk adds is one wait for each of these transactions, whatever they hold.

    python -m benchmarks.fleet.store_rates [--lines 20000] [--repetitions 3] [--beside CHECKOUT] [--quick]

``--beside`` measures the store of another checkout as well, in turn with this one's. Prints and writes
benchmarks/results/fleet_store_rates.json.gz: lines a second by database and operation, the median and the range of the
repetitions, and the processor time of client and server for a line, which other work of the machine changes less.
"""

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from tests.fleet.store.databases import Server, installed
from tests.ports import free_port

DATABASES = ("sqlite", "postgresql")
OPERATIONS = ("accept", "claim and finish")
_CPU = ("cpu_s", "server_cpu_s")
_CLIENT = """
import json, sys, time
from sloserve.fleet.store.records import DurableRequest, RequestState, Result
from sloserve.fleet.store.store import open_store

address, lines, operation = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = open_store(address).requests
began_s, began_cpu_s = time.perf_counter(), time.process_time()
if operation == "accept":
    for first in range(0, lines, 1_000):
        part = range(first, min(first + 1_000, lines))
        store.accept([
            DurableRequest(f"breq_{n:032x}", "tenant", "model", "batch", n // 256, b"x" * 500, 200, 100.0, 86_400.0,
                "batch_1", n + 1, f"line-{n}")
            for n in part
        ])
else:
    finished = 0
    for group in range(0, lines // 256 + 1):
        while (claim := store.claim("agent", group, 64, 30.0)) is not None:
            results = [Result(one.id, one.attempt, RequestState.DONE, 200, b"y" * 500) for one in claim.requests]
            finished += sum(store.finish(results))
    assert finished == lines
print(json.dumps({"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}))
"""


def client(source: Path, address: str, lines: int, operation: str) -> dict[str, float]:
    """Return the seconds, and the CPU seconds, that an operation takes with the store of the checkout ``source``."""
    # Without site the interpreter knows no editable installation, which would put this checkout before any other.
    packages = [path for path in sys.path if path.endswith("-packages")]
    command = [sys.executable, "-S", "-c", _CLIENT, address, str(lines), operation]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *packages])}
    done = subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.PIPE)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


@contextlib.contextmanager
def opened(database: str, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield the address of a new store, and what returns the CPU seconds that its server has taken."""
    if database == "sqlite":
        yield f"sqlite:{folder}/store.sqlite", lambda: 0.0
        return
    folder.chmod(0o755)
    (folder / "server").mkdir()
    made = Server(installed(folder / "server"), folder / "server", free_port())
    made.initialize()
    made.start()
    try:
        yield made.address, lambda: sum(map(cpu_s, made.processes()))
    finally:
        made.stop()


def cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def runs_of(sources: dict[str, Path], lines: int, repetitions: int) -> list[dict[str, Any]]:
    """Measure each checkout on each database, in turn; a run has a store of its own."""
    runs: list[dict[str, Any]] = []
    for repetition in range(repetitions):
        for database in DATABASES:
            for name, source in list(sources.items())[:: -1 if repetition % 2 else 1]:
                with (
                    tempfile.TemporaryDirectory(prefix="store-rates-") as folder,
                    opened(database, Path(folder)) as (address, server_s),
                ):
                    for operation in OPERATIONS:
                        before_s = server_s()
                        measured = client(source, address, lines, operation)
                        about = {"database": database, "operation": operation, "store": name, "lines": lines}
                        runs.append({**about, **measured, "server_cpu_s": server_s() - before_s})
    return runs


def table(runs: list[dict[str, Any]]) -> str:
    rows = [("database", "operation", "store", "lines/s", "range", "client us/line", "server us/line")]
    for database, operation in itertools.product(DATABASES, OPERATIONS):
        for name in sorted({run["store"] for run in runs}):
            key = (database, operation, name)
            found = [run for run in runs if (run["database"], run["operation"], run["store"]) == key]
            rates = sorted(run["lines"] / run["seconds"] for run in found)
            cpu = [statistics.median(1e6 * run[which] / run["lines"] for run in found) for which in _CPU]
            middle, ends = f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
            rows.append((*key, middle, ends, *(f"{us:.0f}" for us in cpu)))
    return aligned(rows)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    parser.add_argument("--quick", action="store_true", help="once, 512 lines; writes nothing")
    arguments = parser.parse_args()
    sources = {"this": Path(__file__).parents[2]}
    if arguments.beside is not None:
        sources = {"before": arguments.beside, **sources}
    lines, repetitions = (512, 1) if arguments.quick else (arguments.lines, arguments.repetitions)
    runs = runs_of(sources, lines, repetitions)
    print(table(runs), end="")
    if not arguments.quick:
        write_result(RESULTS / "fleet_store_rates.json.gz", {"table": table(runs).splitlines(), "runs": runs})


if __name__ == "__main__":
    main()
