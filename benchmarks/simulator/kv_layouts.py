"""Does a policy gain from counting KV blocks by a model's layout, where KV is scarce?

Three runs of the same requests in the engine model, which schedules each layout as vLLM does: stock; auto that counts
blocks as if all layers kept the whole context (flat), as it did before it knew layouts; and auto with the layout. Flat
counts exist here only: no setting of the product brings them back. The KV cache holds REQUESTS_HELD requests of a
workload's mean length, or one of the longest; LOAD is a multiple of what stock can do then. Differences are paired by
seed.

Three generated workloads, and those of TRACES that the folder has that SLOSERVE_DATA names. Writes
benchmarks/results/kv_layouts.json.gz.

    python -m benchmarks.simulator.kv_layouts [--seeds 3] [--requests 80]
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import Experiment, Point, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import summarize
from sloserve.sim.workloads.readers.found import find_trace

PROFILES = ("h100-gpt-oss-20b", "h100x2-qwen3-next-80b")
WORKLOADS = ("sharegpt-bursts", "multiround", "reasoning-poisson")
"""Chats; conversations whose contexts grow long; replies of thousands of tokens."""
TRACES = ("azure2023_code_first_two_thirds.csv.gz", "mooncake_conversation_first_half.csv.gz")
REQUESTS_HELD, LOAD = 24, "1.5"
STOCK, FLAT, LAYOUT = "stock", "flat", "layout"
Found = dict[str, list[dict[str, float]]]
"""The figures of each variant, by seed."""
FIGURES = ("slo_attainment", "preemptions_per_request", "output_throughput")


@contextmanager
def flat_counts() -> Iterator[None]:
    """Policies are told of one group of full attention, whatever the engine has."""
    told = ModelPort.facts

    def flat(self: ModelPort, *args: Any) -> Any:
        return replace(told(self, *args), layout=KVLayout.full(self._scheduler.settings.block_size))

    ModelPort.facts = flat  # type: ignore[method-assign]
    try:
        yield
    finally:
        ModelPort.facts = told  # type: ignore[method-assign]


def experiment_of(profile: str, workload: dict[str, str], seeds: int, requests: int) -> Experiment:
    """Stock and auto above stock's capacity, with few KV blocks."""
    options = SimulateOptions(
        profile=profile, policy="stock,auto", load=LOAD, seeds=seeds, max_requests=requests, engine="model", **workload
    )
    experiment = build_experiment(options)
    tokens = [r.prompt_tokens + r.output_tokens for s in range(seeds) for r in experiment.requests(s)]
    layout, longest = experiment.engine.layout, min(max(tokens) + 1, experiment.engine.max_model_len)
    wanted = max(
        REQUESTS_HELD * float(layout.mean(np.array([float(np.mean(tokens))]))[0]),
        float(layout.to_admit(np.array([longest]))[0]),
    )
    few = min(int(wanted) + 1, experiment.engine.kv_blocks)
    return replace(experiment, engine=replace(experiment.engine, kv_blocks=few, max_model_len=longest))


def runs_of(experiment: Experiment) -> Found:
    """All three variants."""
    points = measured_points(experiment)
    found: Found = {STOCK: [], FLAT: [], LAYOUT: []}
    for run in run_experiment(experiment, points=points):
        found[LAYOUT if run.policy == "auto" else STOCK].append(_figures(run.policy, run.point, run.log))
    with flat_counts():
        for run in run_experiment(replace(experiment, policies=("auto",)), points=points):
            found[FLAT].append(_figures(run.policy, run.point, run.log))
    return found


def _figures(policy: str, point: Point, log: Any) -> dict[str, float]:
    record = summarize(log, policy=policy, seed=point.seed, rps=point.rps, load=point.load)
    return {name: record[name] for name in FIGURES} | {"rps": point.rps, "evictions": log.counters.get("evictions", 0)}


def differences(found: Found) -> dict[str, Any]:
    """Of attainment, paired by seed, with 95 % intervals."""
    attained = {name: np.array([run["slo_attainment"] for run in runs]) for name, runs in found.items()}
    pairs = {
        "flat_less_stock": (FLAT, STOCK),
        "layout_less_stock": (LAYOUT, STOCK),
        "layout_less_flat": (LAYOUT, FLAT),
    }
    return {name: asdict(mean_interval(attained[a] - attained[b])) for name, (a, b) in pairs.items()}  # type: ignore[arg-type]


def workloads() -> list[dict[str, str]]:
    """The generated ones, and the traces that are here."""
    here: list[dict[str, str]] = [{"workload": name} for name in WORKLOADS]
    for name in TRACES:
        try:
            here.append({"trace": str(find_trace(name))})
        except ConfigError as error:
            print(f"left out: {error}")
    return here


def main() -> None:
    args = parser_for(__doc__, seeds=3, requests=80).parse_args()
    size = {"seeds": args.seeds, "requests": args.requests, "requests_held": REQUESTS_HELD, "load": LOAD}
    cells: list[dict[str, Any]] = []
    for workload, profile in product(workloads(), PROFILES):
        experiment = experiment_of(profile, workload, args.seeds, args.requests)
        found = runs_of(experiment)
        cell = {
            "profile": profile,
            "workload": experiment.workload.name,
            "kv_blocks": experiment.engine.kv_blocks,
            "enable_prefix_caching": experiment.engine.enable_prefix_caching,
            "mean": {n: {f: float(np.mean([r[f] for r in runs])) for f in runs[0]} for n, runs in found.items()},
            **differences(found),
            "runs": found,
        }
        cells.append(cell)
        print(json.dumps({name: value for name, value in cell.items() if name != "runs"}), flush=True)
        # After each cell: a run that is stopped leaves those that it ended.
        over_all = {name: differences(pooled(cells, name)) for name in PROFILES if pooled(cells, name)[STOCK]}
        write_result(RESULTS / "kv_layouts.json.gz", {**size, "over_all_workloads": over_all, "cells": cells})


def pooled(cells: Sequence[Mapping[str, Any]], profile: str) -> Found:
    """The runs of a profile's cells, by variant."""
    of = [cell["runs"] for cell in cells if cell["profile"] == profile]
    return {name: [run for runs in of for run in runs[name]] for name in (STOCK, FLAT, LAYOUT)}


if __name__ == "__main__":
    main()
