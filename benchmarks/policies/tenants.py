"""Measures what each of several tenants gets of one engine while another asks for much more than its share.

Tenants send Azure's conversations (first half of the trace) to one engine. The settings: three tenants of equal weight,
of which one sends ten times as much for the second of three minutes; two heavy tenants beside twenty light ones; the
same while one of the heavy ones bursts; three that all send alike, with weights 4, 2 and 1; one with prompts of 30,000
tokens, or with replies of a reasoning model, beside two that chat; and ten LoRA adapters of one tenant, of which one
bursts, and all or four may run at once. Except for the first setting a span has half a minute. The load is a multiple
of stock's capacity, outside of the burst.

Every policy runs with shares and without them, beside stock and the rivals of :mod:`benchmarks.baselines.tenants`.
``alone`` is each tenant under auto on an engine scaled to its share: KV and slots times the share, steps as many times
longer (where there are ten tenants or fewer). No engine has fewer than ``LEAST_KV_BLOCKS``.

Writes results/tenants.json.gz, a row for each run: attainment and mean slowdown (latency over the latency on an idle
engine) by tenant, tokens/s, preemptions a request, and Jain's index of attainment and of slowdown over all tenants.

A cell is a setting, a profile, a load and a seed. The file is written after each cell, and the first seed of all cells
is run before the second. Without ``--again`` only cells are run that the file lacks; with ``--again shares`` the runs
with shares of cells that it has, and with ``--again all`` every run. A run takes the place of the same one before.

Usage: python -m benchmarks.policies.tenants [--policies auto,edf] [--loads 0.7,1.2] [--seeds 3] [--settings burst,...]
[--profiles h100-llama3-8b] [--again shares] [--out FILE]
The trace is looked for in the folder that SLOSERVE_DATA names.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.baselines.tenants import rivals
from benchmarks.publish import RESULTS, merge_result, provenance, read_json
from benchmarks.scaled_profile import scaled_profile
from benchmarks.traces import TRACES
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.policy import Policy
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, engine_of, measured_points, task_of
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.statistics import jain_index
from sloserve.sim.workloads.length_models import reasoning
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.found import find_trace

PROFILE, SEATS = "h100-llama3-8b", 256
KV_BLOCKS = {PROFILE: 3000, "h200x4-qwen3-235b": 6000}
"""KV cache of each profile's engine, small enough to be short of it at these loads; at least ``LEAST_KV_BLOCKS``."""
TARGETS = {"ttft_ms": 1000, "tpot_ms": 100}
LONG_TOKENS = 30_000
LEAST_KV_BLOCKS = LONG_TOKENS // 8
"""KV blocks of every engine: two of the longest prompts. ``alone`` is often an engine with all of the KV thereby."""
MOST_REPLY_TOKENS = 8000
MOST_ALONE = 10
"""Most tenants that are run alone: a smaller share of an engine has steps too long for any first token in time."""
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Setting:
    """Tenants and what they send.

    Args:
        demand: Part of the load that each tenant sends, ``[tenants]``; they sum to 1.
        weights: Weight of each, ``[tenants]``.
        times: Factor by which the demand of the first tenant grows in the second of three spans.
        first: What the first tenant sends: ``chats``, ``long prompts`` or ``reasoning``.
        kv_times: Factor of the KV cache.
        span_s: Seconds of each span.
        adapters: LoRA adapters that may run at once, if the tenants are adapters of one tenant; else 0.
    """

    demand: tuple[float, ...]
    weights: tuple[float, ...]
    times: float = 1.0
    first: str = "chats"
    kv_times: float = 1.0
    span_s: float = 30.0
    adapters: int = 0


_THIRD = (1 / 3, 1 / 3, 1 / 3)
_EQUAL = (1.0, 1.0, 1.0)
SETTINGS = {
    "burst": Setting(_THIRD, _EQUAL, times=10.0, span_s=60.0),
    "heavy and light": Setting((0.35, 0.35, *(0.3 / 20,) * 20), (1.0,) * 22),
    "heavy burst": Setting((0.25, 0.25, *(0.5 / 20,) * 20), (1.0,) * 22, times=10.0),
    "weights 4:2:1": Setting(_THIRD, (4.0, 2.0, 1.0)),
    "long prompts": Setting((0.5, 0.25, 0.25), _EQUAL, first="long prompts", kv_times=4.0),
    "reasoning": Setting((0.5, 0.25, 0.25), _EQUAL, first="reasoning", kv_times=2.0),
    "adapters": Setting((0.1,) * 10, (1.0,) * 10, times=10.0, adapters=10),
    "adapters in four places": Setting((0.1,) * 10, (1.0,) * 10, times=10.0, adapters=4),
}


def experiment(folder: Path, profile: str, kv_blocks: int, share: float = 1.0) -> Experiment:
    """Return an experiment without requests of its own, on an engine with ``share`` of the KV and the slots."""
    slo = folder / "slo.yaml"
    slo.write_text(yaml.safe_dump({"classes": {"chat": {"share": 1} | TARGETS}}), encoding="utf-8")
    flags: dict[str, Any] = {"trace": TRACES["azure-conv"], "slo": str(slo), "profile": profile, "load": "1"}
    flags |= {
        "kv_blocks": max(round(kv_blocks * share), LEAST_KV_BLOCKS),
        "max_num_seqs": max(round(SEATS * share), 1),
    }
    flags["max_model_len"] = LONG_TOKENS + 4096
    return build_experiment(SimulateOptions(**flags, policy="stock", max_requests=200, seeds=1, engine=MODEL))


def requests_of(setting: Setting, rps: float, seed: int, slo: SLO) -> list[WorkloadRequest]:
    """Return the requests of all tenants, in order of arrival; ``rps`` is the rate of all outside the minute.

    The first tenant's requests are as many fewer as they are longer than chats.
    """
    rng = np.random.default_rng([seed, 1])
    trace = read_trace(find_trace(Path(TRACES["azure-conv"])))
    half = trace.prompt_tokens.size // 2
    prompts, outputs = trace.prompt_tokens[:half], trace.output_tokens[:half]
    replies = np.minimum(reasoning().draw(4096, rng)[1], MOST_REPLY_TOKENS)
    fewer = {
        "chats": 1.0,
        "long prompts": float(prompts.mean()) / LONG_TOKENS,
        "reasoning": float(outputs.mean() / replies.mean()),
    }[setting.first]
    arrivals: list[tuple[float, int]] = []
    seconds = setting.span_s
    for span in range(3):
        for tenant, demand in enumerate(setting.demand):
            rate = rps * demand * (setting.times if (span, tenant) == (1, 0) else 1.0) * (fewer if tenant == 0 else 1.0)
            arrivals += [(seconds * (span + x), tenant) for x in rng.random(rng.poisson(rate * seconds))]
    first = int(rng.integers(half))
    found = []
    for i, (at_s, tenant) in enumerate(sorted(arrivals)):
        place = (first + i) % half
        prompt, output = int(prompts[place]), int(outputs[place])
        if setting.first == "long prompts":
            prompt = LONG_TOKENS if tenant == 0 else min(prompt, 2000)
        elif setting.first == "reasoning" and tenant == 0:
            output = max(int(replies[i % replies.size]), 1)
        name = f"t{tenant}"
        whose = {"tenant": "t", "adapter": name} if setting.adapters else {"tenant": name}
        found.append(WorkloadRequest(f"r{i}", at_s, prompt, output, slo, **whose))
    return found


def name_of(request: WorkloadRequest) -> str:
    """Return the name under which a request is counted: its adapter if it names one, else its tenant."""
    return request.adapter or request.tenant


def by_tenant(log: RunLog) -> dict[str, float]:
    """Return the part of each tenant's requests that met their targets."""
    met: dict[str, list[bool]] = defaultdict(list)
    for one in log.requests:
        met[name_of(one.request)].append(bool(one.good))
    return {tenant: float(np.mean(of_tenant)) for tenant, of_tenant in sorted(met.items())}


def slowdowns(log: RunLog, profile: str) -> dict[str, float]:
    """Return the mean slowdown of each tenant."""
    latency = load_profile(profile)
    found: dict[str, list[float]] = defaultdict(list)
    for one in log.requests:
        if one.latency is not None:
            prompt, output = one.request.prompt_tokens, one.request.output_tokens
            idle_s = latency.step_s(StepLoad(prompt, 1, prefill_attention_tokens2=prompt**2))
            idle_s += (output - 1) * latency.step_s(StepLoad(decode_seqs=1, decode_context_tokens=prompt))
            found[name_of(one.request)].append(one.latency.e2e_s / idle_s)
    return {tenant: float(np.mean(of_tenant)) for tenant, of_tenant in sorted(found.items())}


def run(
    ours: Experiment,
    policy: str | Policy,
    point: Point,
    requests: list[WorkloadRequest],
    shares: Any = None,
    max_loras: int | None = None,
) -> RunLog:
    """Serve ``requests`` under ``policy``, with ``shares`` as the settings of that name."""
    task = task_of(ours, policy if isinstance(policy, str) else "edf", point, requests)
    task = replace(task, engine=replace(task.engine, max_loras=max_loras))
    if shares is not None and task.config is not None:
        task.config["sloserve"]["tenant_shares"] = shares
    if isinstance(policy, str):
        return engine_of(task).run(task.requests, None)
    assert task.config is not None
    task.config["sloserve"]["aged_share"] = 0.0  # which is no part of a rival
    return ModelEngine(task.engine, task.profile, task.config, policy=policy).run(task.requests)


def row_of(log: RunLog, profile: str, **labels: Any) -> dict[str, Any]:
    """Return the figures of one run."""
    ended_s = max(float(one.token_times_s[-1]) for one in log.requests if one.token_times_s.size)
    attainment, slowdown = by_tenant(log), slowdowns(log, profile)
    return labels | {
        "attainment": {tenant: round(value, 4) for tenant, value in attainment.items()},
        "slowdown": {tenant: round(value, 3) for tenant, value in slowdown.items()},
        "output_throughput": round(sum(one.token_times_s.size for one in log.requests) / ended_s, 1),
        "preemptions_per_request": round(float(np.mean([one.num_preemptions for one in log.requests])), 3),
        "jain_attainment": round(jain_index(list(attainment.values())) or 0.0, 4),
        "jain_slowdown": round(jain_index(list(slowdown.values())) or 0.0, 4),
    }


def rival_rows(
    ours: Experiment, setting: Setting, point: Point, requests: list[WorkloadRequest], profile: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each rival."""
    of_name = {f"t{i}": weight for i, weight in enumerate(setting.weights)}
    # Accounts have numbers in the order in which they come; an adapter's comes after its tenant's own account.
    names = list(dict.fromkeys(map(name_of, requests)))
    weights = [1.0, *([1.0] if setting.adapters else []), *(of_name[name] for name in names)]
    tokens = float(np.mean([one.prompt_tokens + one.output_tokens for one in requests]))
    in_flight = round(KV_BLOCKS[profile] * setting.kv_times * BLOCK_TOKENS / tokens)
    loras = setting.adapters or None
    for name, build in rivals(weights, in_flight).items():
        yield row_of(run(ours, build(), point, requests, max_loras=loras), profile, policy=name, shares=False)


def runs(
    setting: Setting, load: float, seed: int, policies: Sequence[str], profile: str, shares_only: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row for stock, each policy with shares and without, each rival, and each tenant alone.

    shares_only: whether to leave out all but the policies with shares.
    """
    with TemporaryDirectory() as name:
        folder, kv_blocks = Path(name), round(KV_BLOCKS[profile] * setting.kv_times)
        ours = experiment(folder, profile, kv_blocks)
        assert ours.slos is not None
        slo = ours.slos.table.slo("chat", Targets())
        rps = measured_points(replace(ours, seeds=(seed,)))[0].rps * load
        requests, point = requests_of(setting, rps, seed, slo), Point(seed, rps, load)
        weights = {f"t{i}": weight for i, weight in enumerate(setting.weights)}
        loras = setting.adapters or None

        def one(policy: str, shares: Any = None) -> dict[str, Any]:
            log = run(ours, policy, point, requests, shares, loras)
            return row_of(log, profile, policy=policy, shares=shares is not None)

        if not shares_only:
            yield one("stock")
        for policy in policies:
            if not shares_only:
                yield one(policy)
            yield one(policy, {"weights": weights})
        if shares_only:
            return
        yield from rival_rows(ours, setting, point, requests, profile)
        if len(setting.demand) > MOST_ALONE:
            return
        alone: dict[str, float] = {}
        for i in range(min(len(setting.demand), 3)):
            share = setting.weights[i] / sum(setting.weights)
            mine = [request for request in requests if name_of(request) == f"t{i}"]
            scaled = scaled_profile(profile, 1.0 / share, folder)
            alone |= by_tenant(run(experiment(folder, str(scaled), kv_blocks, share), "auto", point, mine))
        yield {"policy": "alone", "shares": False, "attainment": {k: round(v, 4) for k, v in alone.items()}}


Cell = tuple[str, str, float, int]
"""Setting, profile, load and seed."""


def cell_of(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a row."""
    return row["setting"], row["profile"], row["load"], row["seed"]


def run_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cell, the policy and whether it had shares."""
    return *cell_of(row), row["policy"], row["shares"]


def in_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the place of a row in the file, whatever the order in which cells were run."""
    setting, profile, load, seed = cell_of(row)
    return list(SETTINGS).index(setting), list(KV_BLOCKS).index(profile), load, seed


def main() -> None:
    parser = parser_for(
        __doc__, policies="auto", loads="0.7,1.2,2", seeds=3, settings=",".join(SETTINGS), profiles=",".join(KV_BLOCKS),
        out=RESULTS / "tenants.json.gz",
    )  # fmt: skip
    parser.add_argument("--again", choices=("shares", "all"), help="what to run of cells that the file has")
    given = parser.parse_args()
    begun, rows = provenance(), {run_of(row): row for row in read_json(given.out).get("runs", [])}
    there, shares_only = set(map(cell_of, rows.values())), given.again == "shares"
    for seed, name, load, profile in itertools.product(
        range(given.seeds), given.settings.split(","), map(float, given.loads.split(",")), given.profiles.split(",")
    ):
        cell = (name, profile, load, seed)
        if given.again != "all" and (cell in there) is not shares_only:
            continue
        for row in runs(SETTINGS[name], load, seed, given.policies.split(","), profile, shares_only):
            found = {"setting": name, "profile": profile, "load": load, "seed": seed} | row
            print(json.dumps(found), flush=True)
            rows[run_of(found)] = found
        merge_result(given.out, begun | {"runs": sorted(rows.values(), key=in_order)})


if __name__ == "__main__":
    main()
