"""How many batch lines a second does the store accept, and how many do agents claim and finish?

One client does what a gateway and then an agent do to a batch: it accepts lines 1,000 in a transaction, then claims 64
at a time and finishes them together, with bodies and results of 500 bytes. SQLite on the disk of TMPDIR, PostgreSQL on
this machine with ``fsync=off``: what a disk adds is one wait for each of these transactions, whatever they hold.

    python -m benchmarks.fleet.store_rates [--lines 20000] [--repetitions 3] [--beside CHECKOUT] [--quick]

``--beside`` measures the store of another checkout as well, in turn with this one's. Prints and writes
benchmarks/results/fleet_store_rates.json.gz: lines a second by database and operation, the median and the range of the
repetitions, with the client's CPU seconds for 1,000 lines.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from tests.fleet.store.databases import server

DATABASES = ("sqlite", "postgresql")
OPERATIONS = ("accept", "claim and finish")
_CLIENT = """
import json, sys, time
from sloserve.fleet.store.records import DurableRequest, RequestState, Result
from sloserve.fleet.store.store import open_store

store, lines, measured = open_store(sys.argv[1]).requests, int(sys.argv[2]), {}
began = time.perf_counter(), time.process_time()

def note(operation):
    global began
    now = time.perf_counter(), time.process_time()
    rate, cpu_s = lines / (now[0] - began[0]), 1e3 * (now[1] - began[1]) / lines
    measured[operation] = {"lines_per_s": rate, "cpu_s_per_1000": cpu_s}
    began = now

for first in range(0, lines, 1_000):
    part = range(first, min(first + 1_000, lines))
    store.accept([
        DurableRequest(f"breq_{n:032x}", "tenant", "model", "batch", n // 256, b"x" * 500, 200, 100.0, 86_400.0,
            "batch_1", n + 1, f"line-{n}")
        for n in part
    ])
note("accept")
finished = 0
for group in range(0, lines // 256 + 1):
    while (claim := store.claim("agent", group, 64, 30.0)) is not None:
        results = [Result(one.id, one.attempt, RequestState.DONE, 200, b"y" * 500) for one in claim.requests]
        finished += sum(store.finish(results))
note("claim and finish")
assert finished == lines
print(json.dumps(measured))
"""


def client(source: Path, address: str, lines: int) -> dict[str, dict[str, float]]:
    """Return what the store of the checkout ``source`` does, by operation."""
    # Without site the interpreter knows no editable installation, which would put this checkout before any other.
    packages = [path for path in sys.path if path.endswith("-packages")]
    command = [sys.executable, "-S", "-c", _CLIENT, address, str(lines)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *packages])}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return measured


def runs_of(sources: dict[str, Path], lines: int, repetitions: int) -> list[dict[str, Any]]:
    """Measure each checkout on each database, in turn; a run has databases of its own."""
    runs: list[dict[str, Any]] = []
    for repetition in range(repetitions):
        for database in DATABASES:
            for name, source in sources.items():
                with tempfile.TemporaryDirectory(prefix="store-rates-") as folder:
                    if database == "sqlite":
                        measured = client(source, f"sqlite:{folder}/store.sqlite", lines)
                    else:
                        Path(folder).chmod(0o755)
                        made = Path(folder) / "server"
                        made.mkdir()
                        with server(made) as address:
                            measured = client(source, address, lines)
                runs += [
                    {"database": database, "store": name, "operation": operation, "repetition": repetition, **figures}
                    for operation, figures in measured.items()
                ]
    return runs


def table(runs: list[dict[str, Any]]) -> str:
    rows = [("database", "operation", "store", "lines/s", "range", "CPU s of 1,000 lines")]
    for database in DATABASES:
        for operation in OPERATIONS:
            for name in dict.fromkeys(run["store"] for run in runs):
                key = (database, operation, name)
                found = [run for run in runs if (run["database"], run["operation"], run["store"]) == key]
                rates = sorted(run["lines_per_s"] for run in found)
                cpu_s = statistics.median(run["cpu_s_per_1000"] for run in found)
                middle, ends = f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
                rows.append((*key, middle, ends, f"{cpu_s:.3f}"))
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
        about = {"lines": lines, "table": table(runs).splitlines(), "runs": runs}
        write_result(RESULTS / "fleet_store_rates.json.gz", about)


if __name__ == "__main__":
    main()
