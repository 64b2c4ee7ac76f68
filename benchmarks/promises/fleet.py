"""Measures promises in a fleet in virtual time: two models on three instances, each of which serves one at a time.

Four of five requests chat, with targets for the first token and the pace; the others are a batch with an e2e target.
One in two asks for each model. With ``chat`` the chats ask for a promise of 0.99 and are served without
it where it cannot be given. The gateway gives the promises, over all instances of a model and through swaps of models;
the engines take them over. Each run has the same requests with and without promises, beside fleets of stock engines:
``static`` keeps one model on each instance, ``on-demand`` swaps models, first come, first served.

Writes results/promises_fleet.json.gz, a row for each run as ``kept`` does; ``load`` is requests per second.

Usage: python -m benchmarks.promises.fleet [--rps 60,120] [--seeds 3] [--requests 4000]
"""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.promises.kept import LEVEL, row_of
from benchmarks.publish import RESULTS, write_result
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment, run_one
from sloserve.sim.workloads.multi_model import FleetWorkload

INSTANCES, SEATS = 3, 64
FILE = """
models:
  a: {{profile: h100-llama3-8b, flags: {{max_num_seqs: {seats}}}}}
  b: {{profile: h100-llama3-8b, flags: {{max_num_seqs: {seats}}}}}
hosts: {{node: {{device: h100, devices: {instances}, host_memory_gib: 300}}}}
settings:
  policy: auto
  classes: {{chat: {{rank: 0, ttft_ms: 1000, tpot_ms: 40{asks}}}, batch: {{rank: 1, e2e_ms: 300000}}}}
"""
ASKS = {"none": "", "chat": f", promise: {LEVEL}, promise_fallback: true"}
WORKLOAD = FleetWorkload.parse("w-a:latency_share=0.8")
STOCK, OURS = ("static", "on-demand"), "qlm"


def fleet_of(asks: str) -> Fleet:
    """Return the fleet in which the chats ask for promises, or no request does."""
    return parse_fleet(FILE.format(instances=INSTANCES, seats=SEATS, asks=ASKS[asks]))


def rows(rps: float, seeds: int, requests: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each run at one rate."""
    for seed in range(seeds):
        for name, asks in (*((stock, "none") for stock in STOCK), *((OURS, asks) for asks in ASKS)):
            experiment = FleetExperiment(fleet_of(asks), WORKLOAD, (name,), (rps,), (seed,), requests)
            log = run_one(experiment, name, seed, rps).run
            yield {"load": rps, "seed": seed, "policy": name, "asks": asks} | row_of(log)


def main() -> None:
    given = parser_for(__doc__, rps="60,120", seeds=3, requests=4000).parse_args()
    found = []
    for rps in map(float, given.rps.split(",")):
        for row in rows(rps, given.seeds, given.requests):
            found.append(row)
            print(json.dumps(row), flush=True)
    write_result(RESULTS / "promises_fleet.json.gz", {"level": LEVEL, "runs": found})


if __name__ == "__main__":
    main()
