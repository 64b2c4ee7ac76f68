"""Is a trained router better than masked greedy and than each model alone? And how true is what it learns in?

Four systems: constants of the published figures' shape (``paper``), the same with OpenBookQA prioritised
(``priority``), four A100s with OPT models (``opt``), and two models under priorities, long prompts and network times
(``network``). ``--train SYSTEM SEED`` trains one policy into ``--policies``; without it all that are there are judged,
beside masked greedy and single models, on the same requests; writes results/router/.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.router.arrivals import Phases
from sloserve.fleet.router.environment import System
from sloserve.fleet.router.evaluation import THRESHOLDS, Served, at_rates, unpredictable, windows
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy
from sloserve.fleet.router.settings import parse_router, system_of
from sloserve.report.runs_csv import write_runs
from sloserve.sim.model.engine import ModelEngine
from sloserve.vllm_plugin.virtual.engine_settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "router"
SEEDS = (0, 1, 2)
SEED = 1000
"""Of the requests that all are judged on."""
QUALITY = """
quality:
  hellaswag: {opt-125m: 0.45, opt-1.3b: 0.78, opt-6.7b: 1.0}
  copa: {opt-125m: 0.80, opt-1.3b: 0.95, opt-6.7b: 1.0}
  piqa: {opt-125m: 0.82, opt-1.3b: 0.96, opt-6.7b: 1.0}
  openbookqa: {opt-125m: 0.70, opt-1.3b: 0.94, opt-6.7b: 1.0}
models: [opt-125m, opt-1.3b, opt-6.7b]
"""
PAPER = """
token_ms: 40
system:
  speed:
    opt-125m: {base_ms: 5, seq_ms: 0.35}
    opt-1.3b: {base_ms: 10, seq_ms: 1}
    opt-6.7b: {base_ms: 25, seq_ms: 5}
  rates: [0.25, 64]
"""
OPT = """
token_ms: 15
system:
  speed:
    opt-125m: {profile: a100-opt-125m}
    opt-1.3b: {profile: a100-opt-1.3b}
    opt-6.7b: {profile: a100-opt-6.7b}
  prompt_tokens: 64
  rates: [4, 1600]
"""
# OPT-2.7B is not in Table 1: interpolated between 1.3B and 6.7B by the logarithm of the parameters.
NETWORK = """
models: [opt-1.3b, opt-2.7b]
quality:
  hellaswag: {opt-1.3b: 0.78, opt-2.7b: 0.878}
  copa: {opt-1.3b: 0.95, opt-2.7b: 0.972}
  piqa: {opt-1.3b: 0.96, opt-2.7b: 0.978}
  openbookqa: {opt-1.3b: 0.94, opt-2.7b: 0.967}
token_ms: 15
system:
  speed:
    opt-1.3b: {profile: a100-opt-1.3b}
    opt-2.7b: {profile: a100-opt-2.7b}
  prompt_tokens: {hellaswag: 512, copa: 512, openbookqa: 512, piqa: 1800}
  task_token_ms: {piqa: 30}
  task_weights: {openbookqa: 2}
  network_ms: [50, 1000]
  rates: [4, 160]
"""
SYSTEMS = {
    "paper": QUALITY + PAPER,
    "opt": QUALITY + OPT,
    "priority": QUALITY + PAPER + "  task_weights: {openbookqa: 2}\n",
    "network": NETWORK,
}
RATES = {
    "paper": (0.25, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 24.0, 32.0, 48.0),
    "opt": (4.0, 30.0, 60.0, 90.0, 120.0, 240.0, 480.0, 1000.0),
    "network": (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 160.0),
}
RATES["priority"] = RATES["paper"]


def system_called(name: str) -> tuple[System, Phases]:
    return system_of(parse_router(SYSTEMS[name], name))


def train(name: str, seed: int, folder: Path, *, steps: int, masked: bool) -> None:
    """One policy, and beside it the processor time that it took."""
    from sloserve.fleet.router.train import Trainer, TrainingSettings

    system, phases = system_called(name)
    paper = {} if masked else {"masked": False, "horizon": np.inf, "centre": 0.0, "averaged": 0.0}
    trainer = Trainer(system, phases, TrainingSettings(steps=steps, seed=seed, **paper))
    began = time.process_time()
    trainer.run()
    found = trainer.network
    spent = {"cpu_s": f"{time.process_time() - began:.0f}"}
    folder.mkdir(parents=True, exist_ok=True)
    Network(found.layers, {**found.about, **spent}).save(folder / f"{policy_name(name, seed, masked)}.safetensors")
    print(name, seed, spent, flush=True)


def policy_name(name: str, seed: int, masked: bool) -> str:
    return f"{name}-{seed}" if masked else f"{name}-{seed}-unmasked"


def rules(name: str, system: System, folder: Path) -> dict[str, Rule]:
    """Single models, masked greedy, and the policies that were trained."""
    found: dict[str, Rule] = {model: always(i) for i, model in enumerate(system.models)}
    found["greedy"] = masked_greedy(system)
    schema = Schema(len(system.models)).as_text()
    for seed in SEEDS:
        for masked in (True, False):
            path = folder / f"{policy_name(name, seed, masked)}.safetensors"
            if path.is_file():
                network = load_network(path, schema, system.models)
                label = f"dqn {seed}" if masked else f"unmasked {seed}"
                found[label] = learned(system, network, masked=masked)
                print(f"{name} {label}: trained in {network.about['cpu_s']} s of processor time", flush=True)
    if name == "network":
        found["greedy, network unknown"] = _blind(system)
    return found


def _blind(system: System) -> Rule:
    """Masked greedy that takes the network for instant."""
    rule = masked_greedy(system)
    return lambda seen: rule(replace(seen, network_s=np.zeros_like(seen.network_s)))


def judge(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """A run for each rule and rate, and one for each rule and unpredictable process."""
    system, phases = system_called(name)
    limits, replicas, changing = {"opt": (2.0, 8, 4.0), "network": (4.0, 8, 10.0)}.get(name, (8.0, 16, 20.0))
    for rule_name, rule in rules(name, system, folder).items():
        for rate, served in zip(
            RATES[name], at_rates(system, rule, RATES[name], replicas=replicas, seed=SEED, limits=limits), strict=True
        ):
            yield {"system": name, "rule": rule_name, "arrivals": "stable", "rate": rate, **figures(system, served)}
        for process, timed in (("counted", 0.0), ("timed", 1.0)):
            served = unpredictable(
                system,
                rule,
                replace(phases, timed=timed),
                replicas=12,
                until_s=changing * float(system.limit_s.mean()),
                seed=SEED,
            )
            yield {"system": name, "rule": rule_name, "arrivals": process, "rate": "", **figures(system, served)}


def figures(system: System, served: Served) -> dict[str, Any]:
    """What a run comes to. reward: unweighted mean; weighted: as in training; large: share of the largest model, of all
    and by task.
    """
    weights = system.weights[served.task]
    of_20 = windows(served)
    largest = len(system.models) - 1
    return {
        "requests": served.reward.size,
        "reward": round(float(served.reward.mean()), 4),
        "weighted": round(float((served.reward * weights).sum() / weights.sum()), 4),
        "large": round(float((served.model == largest).mean()), 3),
        **{f"large_{task}": _mean(served.model[served.task == i] == largest) for i, task in enumerate(system.tasks)},
        **{f"windows_{t:g}": _mean(of_20 >= t - 1e-9) for t in THRESHOLDS},
    }


def _mean(of: Any) -> float | None:
    return round(float(of.mean()), 3) if of.size else None


def through_engines(name: str, served: Served, system: System) -> tuple[float, float, float]:
    """The same requests on the same replicas, each replica an engine of its own in virtual time.

    Returns the engines' mean quality in time, and the mean and mean absolute relative difference of the environment's
    latencies from theirs.
    """
    settings = parse_router(SYSTEMS[name], name)
    assert settings.system is not None
    latency_s = np.zeros(served.reward.size)
    slo = DEFAULT_CLASSES.slo(None, Targets())
    for model, model_name in enumerate(system.models):
        profile = load_profile(settings.system.speed[model_name].profile or "")
        for system_index in np.unique(served.system):
            for device in range(system.devices):
                mine = np.flatnonzero(
                    (served.system == system_index) & (served.device == device) & (served.model == model)
                )
                if not mine.size:
                    continue
                requests = [
                    WorkloadRequest(
                        f"r{i}",
                        float(served.arrival_s[i]),
                        max(int(system.prompt_tokens[served.task[i]]), 1),
                        system.output_tokens,
                        slo,
                    )
                    for i in mine.tolist()
                ]
                engine = ModelEngine(
                    EngineSettings(
                        kv_blocks=profile.kv_blocks, max_num_batched_tokens=2048, max_model_len=profile.max_model_len
                    ),
                    profile,
                    None,
                )
                log = engine.run(requests)
                latency_s[mine] = [each.latency.e2e_s for each in log.requests]
    quality = system.quality[served.task, served.model]
    in_time = latency_s + served.network_s <= system.limit_s[served.task]
    difference = served.latency_s / latency_s - 1.0
    return (
        float(np.where(in_time, quality, 0.0).mean()),
        float(difference.mean()),
        float(np.abs(difference).mean()),
    )


def engine_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Environment against the fast engine model; engines do not share devices, so neither do replicas here."""
    for name, rates in (("opt", (30.0, 120.0)), ("network", (20.0, 60.0))):
        system, phases = system_called(name)
        system = replace(system, interference=0.0)
        for rule_name, rule in rules(name, system, folder).items():
            if rule_name not in ("greedy", "dqn 0"):
                continue
            for rate, served in zip(
                rates, at_rates(system, rule, rates, replicas=1, seed=SEED, limits=4.0), strict=True
            ):
                yield engine_run(name, rule_name, "stable", rate, served, system)
            served = unpredictable(
                system,
                rule,
                replace(phases, timed=0.0, rates=(phases.rates[0], rates[-1])),
                replicas=1,
                until_s=8.0 * float(system.limit_s.mean()),
                seed=SEED,
            )
            yield engine_run(name, rule_name, "counted", "", served, system)


def engine_run(
    name: str, rule: str, arrivals: str, rate: float | str, served: Served, system: System
) -> dict[str, Any]:
    reward, bias, error = through_engines(name, served, system)
    return {
        "system": name,
        "rule": rule,
        "arrivals": arrivals,
        "rate": rate,
        "requests": served.reward.size,
        "reward": round(float(served.reward.mean()), 4),
        "engine_reward": round(reward, 4),
        "latency_bias": round(bias, 4),
        "latency_error": round(error, 4),
    }


def table(found: list[dict[str, Any]], engines: list[dict[str, Any]]) -> str:
    lines = []
    for name in SYSTEMS:
        of = [run for run in found if run["system"] == name]
        if not of:
            continue
        names = list(dict.fromkeys(run["rule"] for run in of))
        for key in ("reward", "weighted") if name in ("network", "priority") else ("reward",):
            heads = "".join(f"{rate:>7g}" for rate in RATES[name]) + f"{'counted':>9}{'timed':>7}"
            lines.append(f"{name}: {key}, by requests/s; unpredictable arrivals\n{'':26}{heads}")
            for rule in names:
                row = [run[key] for run in of if run["rule"] == rule]
                lines.append(f"{rule:26}" + "".join(f"{x:7.3f}" for x in row[:-2]) + f"{row[-2]:9.3f}{row[-1]:7.3f}")
        for rule in ("greedy", "dqn 0"):
            for task in ("", *(key for key in of[0] if key.startswith("large_"))):
                row = [run[task or "large"] for run in of if run["rule"] == rule and run["arrivals"] == "stable"]
                if row:
                    what = f"{rule}, {task.removeprefix('large_') or 'all'}"
                    lines.append(f"  to largest: {what:28}" + "".join(f"{x:7.2f}" for x in row))
        lines.append(
            "windows of 20 under counted arrivals, % with at least " + ", ".join(f"{t:.2f}" for t in THRESHOLDS)
        )
        for run in of:
            if run["arrivals"] == "counted":
                lines.append(f"{run['rule']:26}" + "".join(f"{100 * run[f'windows_{t:g}']:7.1f}" for t in THRESHOLDS))
        lines.append("")
    lines.append("the same requests through the engine model, replicas on devices of their own")
    lines.append(f"{'system':9}{'rule':14}{'arrivals':10}{'rate':>6}{'reward':>8}{'engines':>9}{'bias':>8}{'error':>8}")
    for run in engines:
        lines.append(
            f"{run['system']:9}{run['rule']:14}{run['arrivals']:10}{run['rate']:>6}{run['reward']:8.3f}"
            f"{run['engine_reward']:9.3f}{run['latency_bias']:8.1%}{run['latency_error']:8.1%}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains one policy, or judges what was trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", nargs=2, metavar=("SYSTEM", "SEED"))
    parser.add_argument("--policies", type=Path, default=Path("router-policies"))
    parser.add_argument("--steps", type=int, default=1_200_000)
    parser.add_argument("--unmasked", action="store_true")
    arguments = parser.parse_args()
    if arguments.train:
        name, seed = arguments.train
        train(name, int(seed), arguments.policies, steps=arguments.steps, masked=not arguments.unmasked)
        return
    trained = [name for name in SYSTEMS if any(arguments.policies.glob(f"{name}-*"))]
    engines = list(engine_runs(arguments.policies))
    found = [run for name in reversed(trained) for run in judge(name, arguments.policies)]
    text = table(found, engines)
    print(text)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_runs(RESULTS / "runs.csv", found)
    write_runs(RESULTS / "engines.csv", engines)
    (RESULTS / "table.txt").write_text(text)


if __name__ == "__main__":
    main()
