"""Measures what each of several tenants gets of one engine while another asks for much more than its share.

Tenants send Azure's conversations (first half of the trace) to one engine: three of equal weight, of which one sends
ten times as much for a minute; two heavy tenants beside twenty light ones; three that all send more than their share,
with weights 4, 2 and 1; and one with prompts of 30,000 tokens beside two that chat. Every policy runs with shares and
without them, and stock. ``alone`` is each tenant under auto on an engine scaled to its share: KV and slots times the
share, steps as many times longer. The load is a multiple of stock's capacity, outside of the minute.

Writes results/tenants.json.gz, a row for each run: attainment by tenant, tokens/s, preemptions a request, and Jain's
index over the tenants' mean slowdown (latency over the latency on an idle engine).

Usage: python -m benchmarks.policies.tenants [--policies auto,edf] [--loads 0.7,1.2] [--seeds 3] [--settings burst,...]
The trace is looked for in the folder that SLOSERVE_DATA names.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.scaled_profile import scaled_profile
from benchmarks.traces import TRACES
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, engine_of, measured_points, task_of
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.found import find_trace

PROFILE, KV_BLOCKS, SEATS = "h100-llama3-8b", 3000, 256
SPANS = (60.0, 60.0, 60.0)
"""Seconds before the minute in question, of it, and after it."""
TARGETS = {"ttft_ms": 1000, "tpot_ms": 100}
LONG_TOKENS = 30_000


@dataclass(frozen=True, slots=True)
class Setting:
    """Tenants and what they send.

    Args:
        demand: Part of the load that each tenant sends, ``[tenants]``; they sum to 1.
        weights: Weight of each, ``[tenants]``.
        times: Factor by which the demand of the first tenant grows in the second minute.
        long_prompts: Whether the prompts of the first tenant have ``LONG_TOKENS`` tokens.
    """

    demand: tuple[float, ...]
    weights: tuple[float, ...]
    times: float = 1.0
    long_prompts: bool = False


_THIRD = (1 / 3, 1 / 3, 1 / 3)
SETTINGS = {
    "burst": Setting(_THIRD, (1.0, 1.0, 1.0), times=10.0),
    "heavy and light": Setting((0.35, 0.35, *(0.3 / 20,) * 20), (1.0,) * 22),
    "weights 4:2:1": Setting(_THIRD, (4.0, 2.0, 1.0)),
    "long prompts": Setting((0.5, 0.25, 0.25), (1.0, 1.0, 1.0), long_prompts=True),
}


def experiment(folder: Path, profile: str, share: float = 1.0) -> Experiment:
    """Return an experiment without requests of its own, on an engine with ``share`` of the KV and the slots."""
    slo = folder / "slo.yaml"
    slo.write_text(yaml.safe_dump({"classes": {"chat": {"share": 1} | TARGETS}}), encoding="utf-8")
    flags: dict[str, Any] = {"trace": TRACES["azure-conv"], "slo": str(slo), "profile": profile, "load": "1"}
    flags |= {"kv_blocks": round(KV_BLOCKS * share), "max_num_seqs": max(round(SEATS * share), 1)}
    return build_experiment(SimulateOptions(**flags, policy="", max_requests=200, seeds=1, engine=MODEL))


def requests_of(setting: Setting, rps: float, seed: int, slo: SLO) -> list[WorkloadRequest]:
    """Return the requests of all tenants, in order of arrival; ``rps`` is the rate of all outside the minute."""
    rng = np.random.default_rng([seed, 1])
    trace = read_trace(find_trace(Path(TRACES["azure-conv"])))
    half = trace.prompt_tokens.size // 2
    arrivals: list[tuple[float, int]] = []
    start_s = 0.0
    for span, seconds in enumerate(SPANS):
        for tenant, demand in enumerate(setting.demand):
            times = setting.times if (span, tenant) == (1, 0) else 1.0
            rate = rps * demand * times
            if setting.long_prompts and tenant == 0:  # as many prompt tokens, in fewer requests
                rate *= float(trace.prompt_tokens[:half].mean()) / LONG_TOKENS
            arrivals += [(start_s + seconds * x, tenant) for x in rng.random(rng.poisson(rate * seconds))]
        start_s += seconds
    first = int(rng.integers(half))
    found = []
    for i, (at_s, tenant) in enumerate(sorted(arrivals)):
        place = (first + i) % half
        prompt = int(trace.prompt_tokens[place])
        if setting.long_prompts:
            prompt = LONG_TOKENS if tenant == 0 else min(prompt, 2000)
        output = int(trace.output_tokens[place])
        found.append(WorkloadRequest(f"r{i}", at_s, prompt, output, slo, tenant=f"t{tenant}"))
    return found


def by_tenant(log: RunLog) -> dict[str, float]:
    """Return the part of each tenant's requests that met their targets."""
    met: dict[str, list[bool]] = defaultdict(list)
    for one in log.requests:
        met[one.request.tenant].append(bool(one.good))
    return {tenant: float(np.mean(of_tenant)) for tenant, of_tenant in sorted(met.items())}


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of ``values``: 1 if all are equal, 1 / n if one has everything."""
    array = np.array(values)
    return float(array.sum() ** 2 / (array.size * (array**2).sum()))


def slowdowns(log: RunLog) -> list[float]:
    """Return the mean slowdown of each tenant."""
    latency = load_profile(PROFILE)
    found: dict[str, list[float]] = defaultdict(list)
    for one in log.requests:
        if one.latency is not None:
            prompt, output = one.request.prompt_tokens, one.request.output_tokens
            idle_s = latency.step_s(StepLoad(prompt, 1, prefill_attention_tokens2=prompt**2))
            idle_s += (output - 1) * latency.step_s(StepLoad(decode_seqs=1, decode_context_tokens=prompt))
            found[one.request.tenant].append(one.latency.e2e_s / idle_s)
    return [float(np.mean(of_tenant)) for of_tenant in found.values()]


def run(ours: Experiment, policy: str, point: Point, requests: list[WorkloadRequest], shares: Any = None) -> RunLog:
    """Serve ``requests`` under ``policy``, with ``shares`` as the settings of that name."""
    task = task_of(ours, policy, point, requests)
    if shares is not None and task.config is not None:
        task.config["sloserve"]["tenant_shares"] = shares
    return engine_of(task).run(task.requests, None)


def row_of(log: RunLog, **labels: Any) -> dict[str, Any]:
    """Return the figures of one run."""
    ended_s = max(float(one.token_times_s[-1]) for one in log.requests if one.token_times_s.size)
    return labels | {
        "attainment": {tenant: round(value, 4) for tenant, value in by_tenant(log).items()},
        "output_throughput": round(sum(one.token_times_s.size for one in log.requests) / ended_s, 1),
        "preemptions_per_request": round(float(np.mean([one.num_preemptions for one in log.requests])), 3),
        "jain_slowdown": round(jain(slowdowns(log)), 4),
    }


def runs(setting: Setting, load: float, seed: int, policies: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for stock, each policy with shares and without, and each tenant alone."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        ours = experiment(folder, PROFILE)
        assert ours.slos is not None
        slo = ours.slos.table.slo("chat", Targets())
        rps = measured_points(replace(ours, seeds=(seed,)))[0].rps * load
        requests, point = requests_of(setting, rps, seed, slo), Point(seed, rps, load)
        weights = {f"t{i}": weight for i, weight in enumerate(setting.weights)}
        yield row_of(run(ours, "stock", point, requests), policy="stock", shares=False)
        for policy in policies:
            yield row_of(run(ours, policy, point, requests), policy=policy, shares=False)
            yield row_of(run(ours, policy, point, requests, {"weights": weights}), policy=policy, shares=True)
        alone: dict[str, float] = {}
        for i in range(min(len(setting.demand), 3)):
            share = setting.weights[i] / sum(setting.weights)
            mine = [one for one in requests if one.tenant == f"t{i}"]
            profile = scaled_profile(PROFILE, 1.0 / share, folder)
            alone |= by_tenant(run(experiment(folder, str(profile), share), "auto", point, mine))
        yield {"policy": "alone", "shares": False, "attainment": {k: round(v, 4) for k, v in alone.items()}}


def main() -> None:
    names = ",".join(SETTINGS)
    given = parser_for(__doc__, policies="auto", loads="0.7,1.2", seeds=3, settings=names).parse_args()
    rows = []
    for name in given.settings.split(","):
        for load in map(float, given.loads.split(",")):
            for seed in range(given.seeds):
                for row in runs(SETTINGS[name], load, seed, given.policies.split(",")):
                    rows.append({"setting": name, "load": load, "seed": seed} | row)
                    print(json.dumps(rows[-1]), flush=True)
    write_result(RESULTS / "tenants.json.gz", {"runs": rows})


if __name__ == "__main__":
    main()
