"""Measures promises: how many are given and broken, and what they cost the requests without one.

Azure's conversations (the first two thirds of the trace) are sent to an engine that is short of KV cache. Half of them
chat, with targets for the first token and the pace; the other half is a batch with an e2e target. ``chat`` asks for a
promise of 0.99 for the chats alone, ``all`` for every request; a request that gets no promise is served without one.
Each policy runs with and without promises on the same requests, beside stock vLLM. The load is a multiple of stock's
capacity.

Writes results/promises_kept.json.gz, a row for each run: by class the requests, the share in time, and how many
promises were given, kept and broken; the seconds by which promises delayed others; and the output tokens a second.

Usage: python -m benchmarks.promises.kept [--policies auto,edf,qlm] [--loads 1,1.5,2] [--seeds 3] [--asks chat,all]
[--requests 3000]
The trace is looked for in the folder that SLOSERVE_DATA names.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.traces import TRACES
from sloserve.core.runlog import RunLog
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, engine_of, measured_points, task_of
from sloserve.sim.experiment_options import SimulateOptions

KV_BLOCKS, SEATS, LEVEL = 3000, 256, 0.99
CLASSES: dict[str, dict[str, Any]] = {
    "chat": {"share": 0.5, "ttft_ms": 1000, "tpot_ms": 60},
    "batch": {"share": 0.5, "e2e_ms": 60000, "rank": 5},
}
ASKS = {"none": (), "chat": ("chat",), "all": ("chat", "batch")}
"""Classes that ask for a promise."""


def experiment(folder: Path, asks: str, policies: str, loads: str, seeds: int, requests: int) -> Experiment:
    """Return an experiment in which the classes of ``asks`` want a promise."""
    slo = folder / f"{asks}.yaml"
    classes = {name: given | ({"promise": LEVEL} if name in ASKS[asks] else {}) for name, given in CLASSES.items()}
    slo.write_text(yaml.safe_dump({"classes": classes}), encoding="utf-8")
    return build_experiment(
        SimulateOptions(
            trace=TRACES["azure-conv"],
            slo=str(slo),
            profile="h100-llama3-8b",
            load=loads,
            kv_blocks=KV_BLOCKS,
            max_num_seqs=SEATS,
            policy=policies,
            max_requests=requests,
            seeds=seeds,
            engine=MODEL,
        )
    )


def row_of(log: RunLog) -> dict[str, Any]:
    """Return what a run shows of promises."""
    found: dict[str, Any] = {}
    for name in CLASSES:
        of_class = [one for one in log.requests if one.request.slo.slo_class.name == name]
        ended = Counter(one.promise for one in of_class if one.promise is not None)
        found[name] = {
            "requests": len(of_class),
            "good": sum(bool(one.good) for one in of_class),
            "given": ended.total(),
            "broken": ended["broken"],
            "delayed_s": round(sum(one.promised.delayed_s for one in of_class if one.promised is not None), 1),
        }
    last_s = max((float(one.token_times_s[-1]) for one in log.requests if one.token_times_s.size), default=0.0)
    found["good"] = float(np.mean([bool(one.good) for one in log.requests]))
    found["tokens_per_s"] = sum(one.token_times_s.size for one in log.requests) / max(last_s, 1e-9)
    return found


def rows(policies: str, loads: str, seeds: int, asks: str, requests: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each run."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        plain = experiment(folder, "none", policies, loads, seeds, requests)
        for point in measured_points(plain):
            place = {"load": point.load, "seed": point.seed}
            yield place | {"policy": "stock", "asks": "none"} | row_of(_run(plain, "stock", point))
            for policy in policies.split(","):
                for who in ("none", *asks.split(",")):
                    of_who = experiment(folder, who, policies, loads, seeds, requests)
                    yield place | {"policy": policy, "asks": who} | row_of(_run(of_who, policy, point))


def _run(of: Experiment, policy: str, point: Any) -> RunLog:
    task = task_of(of, policy, point)
    return engine_of(task).run(task.requests)


def main() -> None:
    given = parser_for(
        __doc__, policies="auto,edf,qlm", loads="1,1.5,2", seeds=3, asks="chat,all", requests=3000
    ).parse_args()
    found = []
    for row in rows(given.policies, given.loads, given.seeds, given.asks, given.requests):
        found.append(row)
        print(json.dumps(row), flush=True)
    write_result(RESULTS / "promises_kept.json.gz", {"level": LEVEL, "runs": found})


if __name__ == "__main__":
    main()
