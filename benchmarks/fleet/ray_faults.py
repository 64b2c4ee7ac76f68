"""What does a fleet on a Ray cluster lose when a part of the cluster dies?

``make ray`` kills the parts, and keeps a row for each in build/ray; this publishes them:

    make ray && python -m benchmarks.fleet.ray_faults

Writes benchmarks/results/fleet_ray_faults.json.gz: seconds from the fault until the fleet said so, the next pool had
found agents that go on, no process of the lost agent was left, there was another agent, its lines were claimed anew,
and all lines were done; lines lost and seen twice; streams broken, of those on lost hosts; processes left.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result

ROWS = Path(__file__).parents[2] / "build" / "ray" / "faults.jsonl"
COLUMNS = {
    "fault": "fault",
    "noticed_s": "said",
    "found_s": "found by the next pool",
    "ended_s": "processes gone",
    "agent_s": "agent again",
    "lines_s": "its lines claimed again",
    "done_s": "all lines done",
    "lost": "lost",
    "twice": "twice",
    "broken": "streams broken",
    "on_lost_hosts": "of those there",
    "left": "processes left",
}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """As docs/fleet-hosts.md has it."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    lines += [[str(row.get(column, "")) for column in COLUMNS] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main() -> None:
    parser_for(__doc__).parse_args()
    found = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    rows = list({row["fault"]: row for row in found}.values())  # the last of one that was tried again
    print("\n".join(table(rows)))
    figures = {"ray": ray.__version__, "load": os.getloadavg()[0], "table": table(rows), "rows": rows}
    write_result(RESULTS / "fleet_ray_faults.json.gz", figures)


if __name__ == "__main__":
    main()
