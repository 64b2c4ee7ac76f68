"""Where `auto` writes fewer tokens per second than stock over a whole run: does it while requests still come?

Usage: python -m benchmarks.policies.tokens_in_overload [--seeds 3] [--requests 800]

The cells of auto_cells.py in which `auto` misses 97 % of stock's tokens per second. A run ends when its last request
does, long after the last arrival: the rate over all of it charges a policy that serves short requests first for the
long ones that are left. So two rates are told apart: over the whole run, and until the last request came, which is what
a server in lasting overload does. On the engine model; writes results/tokens_in_overload.json.gz.
"""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AUTOS, STOCK, experiment, read_cells
from benchmarks.publish import RESULTS, write_result
from sloserve.core.errors import ConfigError
from sloserve.core.runlog import RunLog
from sloserve.sim.experiment import run_experiment

CELLS = (25, 27, 31, 39, 40)
POLICIES = (STOCK, *AUTOS, "sjf", "econo", "niyama:step_budget=true")


def tokens_per_s(log: RunLog) -> tuple[float, float]:
    """Output tokens per second: of the whole run, and until its last arrival."""
    times = np.sort(np.concatenate([one.token_times_s for one in log.requests]))
    last = max(one.request.arrival_s for one in log.requests)
    return times.size / times[-1], int(np.searchsorted(times, last, side="right")) / last


def main() -> None:
    given = parser_for(__doc__, seeds=3, requests=800, out=RESULTS / "tokens_in_overload.json.gz").parse_args()
    cells, rows = read_cells(), []
    for number in CELLS:
        rates: dict[str, list[tuple[float, float]]] = defaultdict(list)
        attained: dict[str, list[float]] = defaultdict(list)
        for seed in range(given.seeds):
            with TemporaryDirectory() as folder:
                try:
                    ours = experiment(cells[number], "later", seed, Path(folder), max_requests=given.requests)
                except ConfigError as error:
                    print(f"cell {number}: left out: {error}", flush=True)
                    break
                for one in run_experiment(replace(ours, policies=POLICIES)):
                    rates[one.policy].append(tokens_per_s(one.log))
                    share = one.record()["slo_attainment"]
                    attained[one.policy].append(np.nan if share is None else share)
        if not rates:
            continue
        stock = np.array(rates[STOCK])
        for policy, found in rates.items():
            whole, coming = (np.array(found) / stock).mean(axis=0)
            in_time = float(np.mean(attained[policy]))
            rows.append(
                {
                    "cell": number,
                    "name": ", ".join(cells[number]),
                    "policy": policy,
                    "whole_run_of_stock": round(float(whole), 3),
                    "until_last_arrival_of_stock": round(float(coming), 3),
                    "slo_attainment": None if np.isnan(in_time) else round(in_time, 4),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    write_result(given.out, {"seeds": given.seeds, "requests": given.requests, "rows": rows})


if __name__ == "__main__":
    main()
