"""What does learning from a gateway's log gain where the world is not the system that a policy was trained on?

Simulated: the two models of ``engines``, under changing rates. Worlds: as in the system's description (``as trained``);
the large model takes 1.3 times as long, and predictions do not know (``slower``), or know as a gateway does that has
compared them with measured times (``slower, known``); the large model slows down twice as much with each request beside
it, while predictions are the description's times the median ratio that was measured, as a gateway learns it (``slower
when full``); and 70 % of the requests are of the task that gains most from the large model (``other tasks``). In each,
greedy serves with exploration and is logged; a policy is trained on the log, from the weights of the policy that was
trained on the description; and all serve the same requests.

    python -m benchmarks.router.logs --policy POLICY

POLICY is the one that ``benchmarks.router.engines --train-only`` makes. Writes results/router-logs/.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, RUNS, write_runs, write_table
from benchmarks.router.engines import MODELS, SLOWER, router
from benchmarks.scaled_profile import scaled_profile
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.fleet.router.arrivals import Phases
from sloserve.fleet.router.choice_records import LoggedChoices
from sloserve.fleet.router.environment import Observation, System
from sloserve.fleet.router.evaluation import unpredictable
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.greedy import greedy
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.routing import Rule, allowed_by, always, features_of, learned, masked_greedy
from sloserve.fleet.router.settings import parse_router, system_of
from sloserve.fleet.router.train_logs import judge, split, train
from sloserve.fleet.router.training_settings import TrainingSettings

FOLDER = RESULTS / "router-logs"
EXPLORE = 0.05
SYSTEMS = 8
LOGGED_S, JUDGED_S = 400.0, 120.0
SEEDS = (0, 1, 2)
STEPS = 48_000
TRUE_SLOWER, FULL_SLOWER = 1.3, 2.0
CALIBRATED, CALIBRATIONS, CALIBRATED_SEED = "slower when full", 2, 500
"""World in which predictions are multiplied by what was measured, and how often, since routes change with them."""
HARD_TASKS = 7
"""Of ten requests in ``other tasks``, those of the first task; the others have one each."""


Believes = Callable[[Observation], FloatArray]
"""A function that returns the predicted seconds of each request at each model, ``[n, models]``."""


def worlds(system: System) -> dict[str, tuple[System, Believes]]:
    """Return each world, and what is predicted in it."""
    large = system.speeds[-1]
    slow = replace(
        large,
        base_s=TRUE_SLOWER * large.base_s,
        seq_s=TRUE_SLOWER * large.seq_s,
        prompt_token_s=TRUE_SLOWER * large.prompt_token_s,
    )
    slower = replace(system, speeds=(*system.speeds[:-1], slow))
    fuller = replace(large, seq_s=FULL_SLOWER * large.seq_s, prompt_token_s=FULL_SLOWER * large.prompt_token_s)
    full = replace(system, speeds=(*system.speeds[:-1], fuller))
    rows = [0] * HARD_TASKS + list(range(1, len(system.tasks)))
    others = replace(
        system,
        tasks=tuple(f"{system.tasks[row]}-{i}" for i, row in enumerate(rows)),
        quality=system.quality[rows],
        weights=system.weights[rows],
        prompt_tokens=system.prompt_tokens[rows],
        token_s=system.token_s[rows],
    )
    wrong = np.array([1.0] * (len(system.models) - 1) + [1.0 / TRUE_SLOWER])
    # A request's time beside n others is that of n + 1 sequences in each step, and of n + 1 prompts.
    request_s = (fuller.seq_s - large.seq_s) * system.output_tokens
    request_s += (fuller.prompt_token_s - large.prompt_token_s) * float(system.prompt_tokens.mean())

    def described(seen: Observation) -> FloatArray:
        predicted_s = seen.predicted_s.copy()
        predicted_s[:, -1] = np.maximum(predicted_s[:, -1] - request_s * (seen.least[:, -1] + 1.0), 1e-3)
        return predicted_s

    return {
        "as trained": (system, lambda seen: seen.predicted_s),
        "slower": (slower, lambda seen: seen.predicted_s * wrong),
        "slower, known": (slower, lambda seen: seen.predicted_s),
        "slower when full": (full, described),
        "other tasks": (others, lambda seen: seen.predicted_s),
    }


class World:
    """One world, in which rules serve and are logged."""

    def __init__(self, system: System, believes: Believes, phases: Phases) -> None:
        self.system, self._believes, self._phases = system, believes, phases
        self._factor = np.ones(len(system.models))

    def calibrate(self) -> None:
        """Multiply predictions by the median ratio of measured to predicted times of each model, under greedy."""
        for _ in range(CALIBRATIONS):
            self._factor = self._factor * self._median_ratios()

    def _median_ratios(self) -> FloatArray:
        rows, prefers = [], masked_greedy(self.system)

        def noting(seen: Observation) -> IntArray:
            chosen = prefers(seen)
            rows.append(seen.predicted_s[np.arange(chosen.size), chosen])
            return chosen

        served = self._served(noting, CALIBRATED_SEED, JUDGED_S)
        ratio = served.latency_s / np.concatenate(rows)[served.ticket]
        return np.array([np.median(ratio[served.model == model]) for model in range(self._factor.size)])

    def reward(self, rule: Rule, seed: int) -> float:
        """Return the mean quality in time of a rule, on requests that no log has."""
        return float(self._served(rule, (1000 + seed), JUDGED_S).reward.mean())

    def log(self, seed: int) -> LoggedChoices:
        """Return the log of greedy with exploration."""
        rng, rows = np.random.default_rng((seed, 7)), []
        prefers = masked_greedy(self.system)

        def explores(seen: Observation) -> IntArray:
            allowed, preferred = allowed_by(self.system, seen), prefers(seen)
            options = allowed.sum(axis=1)
            drawn = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
            explore = (rng.random(preferred.size) < EXPLORE) & (options > 1)
            chosen = np.where(explore, drawn, preferred)
            chance = np.where(options > 1, EXPLORE / options + (1.0 - EXPLORE) * (chosen == preferred), 1.0)
            best = greedy(seen.quality, seen.predicted_s, allowed)
            limit_s = self.system.limit_s[seen.task]
            rows.append((features_of(self.system, seen), allowed, best, chosen, chance, limit_s))
            return np.asarray(chosen, np.int64)

        served = self._served(explores, seed, LOGGED_S)
        states, allowed, best, chosen, chance, limit_s = (
            np.concatenate(column)[served.ticket] for column in zip(*rows, strict=True)
        )
        return LoggedChoices(
            run=served.system,
            at_s=served.arrival_s,
            states=states,
            allowed=allowed,
            best=best,
            chosen=chosen,
            propensity=chance,
            fixed=np.zeros(chosen.size, np.bool_),
            reward=served.reward,
            limit_s=limit_s,
        )

    def _served(self, rule: Rule, seed: int, until_s: float) -> Any:
        def believing(seen: Observation) -> IntArray:
            return rule(replace(seen, predicted_s=self._believes(seen) * self._factor))

        return unpredictable(self.system, believing, self._phases, replicas=SYSTEMS, until_s=until_s, seed=seed)


def rows(name: str, world: World, trained: Network, seed: int) -> list[dict[str, Any]]:
    """Return what each rule earns in a world with the requests of ``seed``."""
    if name == CALIBRATED:
        world.calibrate()
    system = world.system
    log = world.log(seed)
    learnt_from, held_out = split(log)
    settings = TrainingSettings(steps=STEPS, seed=seed, batch=256)
    found: list[dict[str, Any]] = []

    def add(rule_name: str, rule: Rule, **more: Any) -> None:
        found.append({"world": name, "seed": seed, "rule": rule_name, "reward": round(world.reward(rule, seed), 4)})
        found[-1] |= more
        print(json.dumps(found[-1]), flush=True)

    for i, model in enumerate(system.models):
        add(f"always {model}", always(i))
    add("greedy", masked_greedy(system))
    add("trained on the description", learned(system, trained), **_estimate(held_out, trained, settings))
    network = train(learnt_from, system.models, settings, trained)
    add("from logs", learned(system, network), logged=log.run.size, **_estimate(held_out, network, settings))
    return found


def _estimate(held_out: LoggedChoices, network: Network, settings: TrainingSettings) -> dict[str, float]:
    found = judge(held_out, network, settings).over_greedy
    return {"estimate": round(found.mean, 4), "low": round(found.low, 4), "high": round(found.high, 4)}


def table(found: list[dict[str, Any]]) -> str:
    """Return the mean over seeds of each rule, its difference from greedy paired by seed, and the log's estimate."""
    lines = [f"{'':40}{'reward':>8}{'over greedy':>18}{'estimate':>10}{'low':>9}{'written':>9}"]
    for world in dict.fromkeys(run["world"] for run in found):
        seeds = {run["seed"] for run in found if run["world"] == world}
        lines.append(f"{world} ({len(seeds)} seeds)")
        of: Mapping[str, list[dict[str, Any]]] = {}
        of = {r["rule"]: [one for one in found if (one["world"], one["rule"]) == (world, r["rule"])] for r in found}
        for rule, runs in of.items():
            over = np.array([run["reward"] - base["reward"] for run, base in zip(runs, of["greedy"], strict=True)])
            line = f"  {rule:38}{np.mean([run['reward'] for run in runs]):8.3f}"
            line += " " * 18 if rule == "greedy" else f"{f'{over.mean():+.3f} +- {half_95(over):.3f}':>18}"
            if "low" in runs[0]:
                estimates, lows = (np.array([run[key] for run in runs]) for key in ("estimate", "low"))
                line += f"{estimates.mean():+10.3f}{lows.mean():+9.3f}{f'{(lows >= 0.0).sum()} of {lows.size}':>9}"
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains on the logs of every world, judges every rule, and writes the table."""
    parser = parser_for(__doc__, policy=Path("router-policies/engines.safetensors"), out=FOLDER)
    parser.add_argument("--worlds", nargs="*", help="these alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sr-") as made:
        for model, profile in MODELS.items():
            scaled_profile(profile, SLOWER, Path(made)).rename(Path(made) / f"{model}.yaml")
        system, phases = system_of(parse_router(json.dumps(router(Path(made), "greedy")), "router"))
    trained = load_network(arguments.policy, Schema(len(system.models)).as_text(), system.models)
    found = [
        row
        for seed in SEEDS
        for name, (of, believes) in worlds(system).items()
        if not arguments.worlds or name in arguments.worlds
        for row in rows(name, World(of, believes, phases), trained, seed)
    ]
    write_runs(arguments.out / RUNS, found)
    write_table(arguments.out, table(found), shown=True)


if __name__ == "__main__":
    main()
