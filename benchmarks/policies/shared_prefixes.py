"""Measures attainment and tokens/s where KV of a shared prefix counts once, and KV to be found again stays.

One workload is chats behind one system prompt of 8,192 tokens, which all running requests share. Another is
conversations of several rounds with their real prefixes (Mooncake's trace, the earlier half). In the third, four
requests at a time ask about one document that is new to the cache. KV is short and, where no system prompt fills it,
ample too. The engine model has a prefix cache. Each policy runs as it is ("once, awaited"), with each
running request counted as if it shared nothing and nothing left free for what will be found again ("in full"), and with
shared KV counted once alone ("once").

The trace is looked for in the folder that SLOSERVE_DATA names. Writes results/shared_prefixes.json.gz, a row a run.

Usage: python -m benchmarks.policies.shared_prefixes [--policies auto] [--seeds 3] [--workloads chats,bursts,mooncake]
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.step_sizes import FIGURES, HALVES
from benchmarks.publish import RESULTS, write_result
from benchmarks.traces import MOONCAKE
from sloserve.engine.request_table import RequestTable
from sloserve.scheduler.policy import Snapshot
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions

VARIANTS: dict[str, dict[str, Any]] = {
    "in full": {"shared_blocks": 0, "awaited_blocks": 0.0},
    "once": {"awaited_blocks": 0.0},
    "once, awaited": {},
}
STRETCH = 512
SYSTEM_TOKENS = 8192
CELLS = (("h100-llama3-8b", None), ("h100-llama3-8b", 9000), ("a100-llama3-70b-tp4", 9000))
"""Profiles, and KV blocks; ``None`` for all that the profile has, which no queue of chats fills."""


@contextmanager
def counted(variant: str) -> Iterator[None]:
    """Make snapshots say of shared and awaited KV what ``variant`` does."""
    stock: Callable[..., Snapshot] = RequestTable.snapshot

    def snapshot(self: RequestTable, *args: Any, **kwargs: Any) -> Snapshot:
        return replace(stock(self, *args, **kwargs), **VARIANTS[variant])

    with mock.patch.object(RequestTable, "snapshot", snapshot):
        yield


def write_bursts(path: Path, requests: int, together: int = 4, document_tokens: int = 4096) -> None:
    """Write a trace of requests that come together, within 50 ms, about one document that no other request has."""
    rng = np.random.default_rng(document_tokens)
    rows: list[dict[str, Any]] = []
    for burst, at_s in enumerate(np.cumsum(rng.exponential(1.0, requests // together))):
        document = [1000 * burst + i for i in range(document_tokens // STRETCH)]
        for _ in range(together):
            question, reply = (max(int(rng.lognormal(np.log(median), 0.75)), 2) for median in (150, 200))
            ids = [*document, *(10**8 + 100 * len(rows) + j for j in range(-(-question // STRETCH)))]
            sizes = {"input_length": document_tokens + question, "output_length": reply}
            rows.append({"timestamp": int(1000 * (at_s + 0.05 * rng.random()))} | sizes | {"hash_ids": ids})
    rows.sort(key=lambda row: row["timestamp"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_chats(path: Path, requests: int) -> None:
    """Write a trace of chats behind one system prompt: questions of 300 and outputs of 200 tokens at the median."""
    rng = np.random.default_rng(SYSTEM_TOKENS)
    with path.open("w", encoding="utf-8") as file:
        for i, at_s in enumerate(np.cumsum(rng.exponential(0.1, requests))):
            question, reply = (max(int(rng.lognormal(np.log(median), 0.75)), 2) for median in (300, 200))
            ids = [*range(SYSTEM_TOKENS // STRETCH), *(10**6 + 100 * i + j for j in range(-(-question // STRETCH)))]
            row = {"timestamp": int(1000 * at_s), "input_length": SYSTEM_TOKENS + question, "output_length": reply}
            file.write(json.dumps(row | {"hash_ids": ids}) + "\n")


def experiment(trace: Path, window: Any, profile: str, blocks: int | None, args: Any) -> Experiment:
    built = build_experiment(
        SimulateOptions(
            trace=trace,
            policy=f"stock,{args.policies}",
            load=args.loads,
            max_requests=args.max_requests,
            seeds=args.seeds,
            profile=profile,
            kv_blocks=blocks,
        )
    )
    engine = replace(built.engine, enable_prefix_caching=True)
    return replace(built, engine=engine, engine_kind=MODEL, **({} if window is None else {"window": window}))


def main() -> None:
    parser = parser_for(
        __doc__, policies="auto", loads="1.5", seeds=3, max_requests=200, workloads="chats,bursts,mooncake"
    )
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        chats, bursts = Path(folder) / "chats.jsonl", Path(folder) / "bursts.jsonl"
        write_chats(chats, 4 * args.max_requests)
        write_bursts(bursts, 4 * args.max_requests)
        workloads: dict[str, tuple[Path, Any]] = {
            "chats": (chats, None),
            "bursts": (bursts, None),
            "mooncake": (Path(MOONCAKE), HALVES["earlier"]),
        }
        for name in args.workloads.split(","):
            path, window = workloads[name]
            for profile, blocks in CELLS[name == "chats" :]:
                ours = experiment(path, window, profile, blocks, args)
                points = measured_points(ours)
                for variant in VARIANTS:
                    policies = ours.policies if variant == "in full" else ours.policies[1:]
                    with counted(variant):
                        for run in run_experiment(replace(ours, policies=policies), points=points):
                            point, record = run.point, run.record()
                            row = {"workload": name, "profile": profile, "kv_blocks": ours.engine.kv_blocks}
                            row |= {"variant": variant if run.policy != "stock" else "", "policy": run.policy}
                            row |= {"load": point.load, "seed": point.seed}
                            rows.append(row | {figure: record[figure] for figure in FIGURES})
                            print(json.dumps(rows[-1]), flush=True)
    write_result(RESULTS / "shared_prefixes.json.gz", {"max_requests": args.max_requests, "runs": rows})


if __name__ == "__main__":
    main()
