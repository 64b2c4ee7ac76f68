"""What do Ray's own processes take of a machine: memory and seconds to start, of a head and of a further node?

A head and two nodes on this machine as ``ray start`` starts them (``ray[default]``, dashboard included), idle for
SETTLED_S. Memory is PSS: pages that processes share count once for all of them together.

    python -m benchmarks.fleet.ray_processes

Prints and writes benchmarks/results/fleet_ray_processes.json.gz: processes, PSS in MiB, seconds until the GCS knows the
node and CPU seconds until it has settled.
"""

import os
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.clock import SystemClock
from tests.fleet.pool.ray_cluster import agent_ports, be_patient

CLOCK = SystemClock()
SETTLED_S = 20.0
MIB = 2**20
_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> set[int]:
    """Processes that a process has started, and those that they have."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text(encoding="utf-8").split()):
            found |= {child} | descendants(child)
    return found


def pss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def cpu_s(pid: int) -> float:
    """With that of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def started(what: str, cluster: Cluster, **options: Any) -> dict[str, Any]:
    """A head or a node, and what it takes."""
    before, begun_s = descendants(os.getpid()), CLOCK.monotonic_s()
    cluster.add_node(object_store_memory=80 * MIB, node_name=what, **agent_ports(), **options)
    seconds = CLOCK.monotonic_s() - begun_s
    time.sleep(SETTLED_S)
    pids = sorted(descendants(os.getpid()) - before)
    return {
        "what": what,
        "processes": len(pids),
        "pss_mib": round(sum(pss_bytes(pid) for pid in pids) / MIB, 1),
        "start_s": round(seconds, 1),
        "cpu_s": round(sum(map(cpu_s, pids)), 1),
    }


def main() -> None:
    parser_for(__doc__).parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    be_patient()
    cluster = Cluster()
    try:
        rows = [started("head", cluster, num_cpus=0, include_dashboard=True)]
        rows += [started(name, cluster, num_cpus=1, include_log_monitor=True) for name in ("node one", "node two")]
    finally:
        cluster.shutdown()
    heads = ("what", "processes", "pss_mib", "start_s", "cpu_s")
    lines = aligned([heads, *([str(row[head]) for head in heads] for row in rows)]).splitlines()
    print("\n".join(lines))
    load = os.getloadavg()[0]
    write_result(
        RESULTS / "fleet_ray_processes.json.gz", {"ray": ray.__version__, "load": load, "table": lines, "runs": rows}
    )


if __name__ == "__main__":
    main()
