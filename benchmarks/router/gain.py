"""Is a trained router better than masked greedy and than each model alone? And how true is what it learns in?

Four systems: constants of the published figures' shape (``paper``), the same with OpenBookQA prioritised
(``priority``), four A100s with OPT models (``opt``), and two models under priorities, long prompts and network times
(``network``).

    python -m benchmarks.router.gain

trains what is not in ``--policies`` yet, judges every policy beside masked greedy and single models on the same
requests, holds the figures against the bars, and writes results/router/. What it has trained and judged stays in
``--policies``, so that it goes on where it was stopped; ``--plots FOLDER`` draws Fig. 4 to 6 of each system. ``--train
SYSTEM SEED`` trains one policy alone; ``--quick`` trains one on few requests, and keeps it in ``--out``.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, write_runs, write_table
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.router.arrivals import Phases
from sloserve.fleet.router.environment import System
from sloserve.fleet.router.evaluation import THRESHOLDS, Served, at_rates, unpredictable, windows
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy
from sloserve.fleet.router.settings import parse_router, system_of
from sloserve.fleet.router.train_command import draw
from sloserve.fleet.router.train_command import judge as judge_for_plots
from sloserve.fleet.router.train_command import rules as rules_for_plots
from sloserve.sim.model.engine import ModelEngine

FOLDER = RESULTS / "router"
SEEDS = (0, 1, 2)
STEPS = {"paper": 1_200_000, "opt": 1_200_000, "priority": 600_000, "network": 600_000}
TRAININGS = [("paper", seed, True) for seed in SEEDS] + [("paper", 0, False), ("priority", 0, True)]
TRAININGS += [(name, seed, True) for name in ("opt", "network") for seed in SEEDS]
"""System, seed, and whether it is masked; trained one after another."""
SEED = 1000
"""Seed of the requests that all policies are judged on."""
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
QUICK = {"SYSTEMS": {"paper": SYSTEMS["paper"]}, "TRAININGS": TRAININGS[:1], "STEPS": {"paper": 50_000}}


def system_called(name: str) -> tuple[System, Phases]:
    return system_of(parse_router(SYSTEMS[name], name))


def train(name: str, seed: int, masked: bool, folder: Path, steps: int | None = None) -> None:
    """One policy, with the processor time that it took."""
    from sloserve.fleet.router.train import Trainer
    from sloserve.fleet.router.training_settings import TrainingSettings

    system, phases = system_called(name)
    paper = {} if masked else {"masked": False, "horizon": np.inf, "centre": 0.0, "averaged": 0.0}
    steps = steps or STEPS[name]
    trainer = Trainer(system, phases, TrainingSettings(steps=steps, seed=seed, **paper))
    began = time.process_time()
    trainer.run()
    found = trainer.network
    spent = {"cpu_s": f"{time.process_time() - began:.0f}", "steps": str(steps)}
    folder.mkdir(parents=True, exist_ok=True)
    Network(found.layers, {**found.about, **spent}).save(folder / f"{policy_name(name, seed, masked)}.safetensors")
    print(name, seed, spent, flush=True)


def policy_name(name: str, seed: int, masked: bool) -> str:
    return f"{name}-{seed}" if masked else f"{name}-{seed}-unmasked"


def rules(name: str, system: System, folder: Path) -> dict[str, Rule]:
    """Single models, masked greedy, and the policies that were trained."""
    found: dict[str, Rule] = {}
    if name != "priority":  # where models alone do as in "paper"
        found |= {model: always(i) for i, model in enumerate(system.models)}
    found["greedy"] = masked_greedy(system)
    schema = Schema(len(system.models)).as_text()
    for of, seed, masked in TRAININGS:
        if of == name:
            network = load_network(folder / f"{policy_name(name, seed, masked)}.safetensors", schema, system.models)
            label = f"dqn {seed}" if masked else f"unmasked {seed}"
            found[label] = learned(system, network, masked=masked)
    if name == "network":
        found["greedy, network unknown"] = _blind(system)
    return found


def _blind(system: System) -> Rule:
    """Masked greedy that takes the network for instant."""
    rule = masked_greedy(system)
    return lambda seen: rule(replace(seen, network_s=np.zeros_like(seen.network_s)))


def kept(path: Path, make: Callable[[], Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What is in the file at ``path``, made and written if there is none."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(list(make())), encoding="utf-8")
    return list(json.loads(path.read_text(encoding="utf-8")))


def judge(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """A run for each rule and rate, and one for each rule and unpredictable process."""
    system, _ = system_called(name)
    for rule_name, rule in rules(name, system, folder).items():
        path = folder / "judged" / f"{name}, {rule_name}.json"
        yield from kept(path, lambda rule_name=rule_name, rule=rule: judged(name, rule_name, rule))  # type: ignore[misc]


def judged(name: str, rule_name: str, rule: Rule) -> Iterator[dict[str, Any]]:
    system, phases = system_called(name)
    limits, replicas, changing = {"opt": (2.0, 8, 4.0), "network": (4.0, 8, 10.0)}.get(name, (8.0, 16, 20.0))
    for rate, served in zip(
        RATES[name], at_rates(system, rule, RATES[name], replicas=replicas, seed=SEED, limits=limits), strict=True
    ):
        yield {
            "system": name,
            "rule": rule_name,
            "arrivals": "stable",
            "rate": rate,
            **figures(system, served, with_windows=False),
        }
    for process, timed in (("counted", 0.0), ("timed", 1.0)):
        served = unpredictable(
            system,
            rule,
            replace(phases, timed=timed),
            replicas=12,
            until_s=changing * float(system.limit_s.mean()),
            seed=SEED,
        )
        yield {
            "system": name,
            "rule": rule_name,
            "arrivals": process,
            "rate": "",
            **figures(system, served, with_windows=True),
        }


def figures(system: System, served: Served, *, with_windows: bool) -> dict[str, Any]:
    """What a run comes to. reward: unweighted mean; weighted: as in training, where tasks have weights; large: share of
    the largest model, of all and by task.
    """
    weights = system.weights[served.task]
    of_20 = windows(served) if with_windows else np.empty(0)
    largest = len(system.models) - 1
    return {
        "requests": served.reward.size,
        "reward": round(float(served.reward.mean()), 4),
        "weighted": round(float((served.reward * weights).sum() / weights.sum()), 4) if weights.std() else None,
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
                log = ModelEngine(EngineSettings.of_profile(profile), profile, None).run(requests)
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


def draw_all(name: str, folder: Path, plots: Path) -> None:
    """Fig. 4, 5 and 6 for seed 0 of a system."""
    system, phases = system_called(name)
    schema = Schema(len(system.models)).as_text()
    network = load_network(folder / f"{policy_name(name, 0, True)}.safetensors", schema, system.models)
    (plots / name).mkdir(parents=True, exist_ok=True)
    draw(system, judge_for_plots(system, phases, rules_for_plots(system, network)), plots / name)


def main() -> None:
    """Trains and judges what is not there yet, and writes the tables."""
    from benchmarks.router.router_tables import table

    parser = parser_for(__doc__, policies=Path("router-policies"), out=FOLDER)
    parser.add_argument("--quick", action="store_true", help="the first system and one policy alone")
    parser.add_argument("--train", nargs=2, metavar=("SYSTEM", "SEED"))
    parser.add_argument("--unmasked", action="store_true", help="with --train: as in the paper, without masks")
    parser.add_argument("--plots", type=Path, help="folder for figures of seed 0 of each system")
    arguments = parser.parse_args()
    if arguments.train:
        name, seed = arguments.train
        train(name, int(seed), not arguments.unmasked, arguments.policies)
        return
    if arguments.quick:
        if arguments.out == FOLDER:
            parser.error("--quick: give --out FOLDER, for results/router has the published size")
        globals().update(QUICK)
        arguments.policies = arguments.out / "policies"
    for name, seed, masked in TRAININGS:
        if not (arguments.policies / f"{policy_name(name, seed, masked)}.safetensors").is_file():
            train(name, seed, masked, arguments.policies)
    engines = []
    if not arguments.quick:
        engines = kept(arguments.policies / "judged" / "engines.json", lambda: engine_runs(arguments.policies))
    found = [run for name in SYSTEMS for run in judge(name, arguments.policies)]
    text = table(RATES, found, engines)
    print(text)
    write_runs(arguments.out / RUNS, found)
    write_runs(arguments.out / "engines.csv", engines)
    write_table(arguments.out, text)
    for name in SYSTEMS if arguments.plots is not None else ():
        draw_all(name, arguments.policies, arguments.plots)


if __name__ == "__main__":
    main()
