"""``model: auto`` before two real engines of different size: masked greedy and trained policies beside each model.

Real processes of `sloserve fleet`: gateway, agent, API servers, vLLM's schedulers. The engines wait as long as a GPU
would compute (``PacedWorker``): OPT-1.3B and OPT-6.7B, each step three times as long as on an A100, so that two CPU
cores keep up. One engine of each. Rates change every 8 s; each rule gets the same requests. A request earns the quality
of the model that served it (Table 1 of the paper), 0 if its last token is late.

    python -m benchmarks.router.engines --real-time

trains a policy for that system if ``--policy`` is not there, runs for 20 minutes, and writes results/router-engines/.
The rule ``explores`` is greedy with exploration, and logs its choices. From its logs of all seeds and those of greedy a
policy is trained, which begins at the simulated one's weights, and gets the same requests; ``sloserve train-router
--from-logs`` would write it only if its estimate, which is in the results, is not below greedy's. What the gateway
predicted of each request is compared with what it took, by sloserve:gateway_auto_completion_ratio.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.arguments import parser_for
from benchmarks.fleet.fleet_processes import PACED_ENGINE, PACED_ENVIRONMENT, FleetProcesses
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, RUNS, write_runs, write_table
from benchmarks.scaled_profile import scaled_profile
from benchmarks.servers import free_port
from sloserve.fleet.router.choice_records import read_choices
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import load_network
from sloserve.fleet.router.train_logs import judge, split
from sloserve.fleet.router.train_logs import train as train_on
from sloserve.fleet.router.training_settings import TrainingSettings

FOLDER = RESULTS / "router-engines"
SLOWER = 3.0
"""How many times as long a step takes."""
MODELS = {"opt-1.3b": "a100-opt-1.3b", "opt-6.7b": "a100-opt-6.7b"}
QUALITY = {
    "hellaswag": {"opt-1.3b": 0.78, "opt-6.7b": 1.0},
    "copa": {"opt-1.3b": 0.95, "opt-6.7b": 1.0},
    "piqa": {"opt-1.3b": 0.96, "opt-6.7b": 1.0},
    "openbookqa": {"opt-1.3b": 0.94, "opt-6.7b": 1.0},
}
PROMPT, OUTPUT, TOKEN_MS = 256, 64, 50.0
RATES, PHASE_S = (2.0, 12.0, 4.0, 20.0, 6.0, 2.0), 8.0
STEPS = 1_200_000
LEARNING_STEPS = 200_000
SEEDS = 3
EXPLORE = 0.1
READY_S, DRAIN_S = 240.0, 30.0
ARGUMENTS = [*PACED_ENGINE, "--no-enable-prefix-caching"]
RULES: Mapping[str, tuple[str, str]] = {
    "always opt-1.3b": ("greedy", "opt-1.3b"),
    "always opt-6.7b": ("greedy", "opt-6.7b"),
    "greedy": ("greedy", "auto"),
    "explores": ("greedy", "auto"),
    "dqn": ("policy.safetensors", "auto"),
    "dqn from logs": ("learned.safetensors", "auto"),
}
"""The router's policy, and what requests name as their model."""
LEARNED = "dqn from logs"


def router(folder: Path, policy: str, log: str | None = None, explore: float = 0.0) -> dict[str, Any]:
    return {
        "models": list(MODELS),
        "quality": QUALITY,
        "token_ms": TOKEN_MS,
        "policy": policy,
        "shadow": "greedy",
        "rollback": False,
        "explore": explore,
        **({} if log is None else {"log": log}),
        "system": {
            "speed": {model: {"profile": str(folder / f"{model}.yaml")} for model in MODELS},
            "devices": 1,
            "interference": 0.0,
            "prompt_tokens": PROMPT,
            "output_tokens": OUTPUT,
            "rates": [1.0, 40.0],
        },
    }


def fleet(folder: Path, policy: str, log: str | None, explore: float) -> str:
    models = {
        model: {
            "profile": f"{model}.yaml",
            "model": "builtin:tiny",
            "arguments": ARGUMENTS,
            "active_on": [f"a/{i}"],
            "flags": {"max_num_seqs": 128},
        }
        for i, model in enumerate(MODELS)
    }
    made = {
        "models": models,
        "hosts": {"a": {"device": "a100", "devices": 2, "host_memory_gib": 100}},
        "switching": {"min_active_s": 3600.0},
        "settings": {"policy": "fcfs"},
        "gateway": {"affinity": False},
        "router": router(folder, policy, log, explore),
    }
    return json.dumps(made, indent=1)


def train(folder: Path, out: Path) -> None:
    """A policy for this system; its processor time is printed."""
    (folder / "router.yaml").write_text(json.dumps(router(folder, "greedy")), encoding="utf-8")
    command = [sys.executable, "-m", "sloserve.cli", "train-router", str(folder / "router.yaml"), "--out", str(out)]
    subprocess.run([*command, "--steps", str(STEPS)], check=True)


def arrivals(seed: int) -> list[tuple[float, str]]:
    """When each request comes, and its task."""
    rng, found = np.random.default_rng(seed), []
    for phase, rate in enumerate(RATES):
        begin_s = phase * PHASE_S
        times = begin_s + np.sort(rng.uniform(0.0, PHASE_S, rng.poisson(rate * PHASE_S)))
        found += [(float(at_s), str(rng.choice(list(QUALITY)))) for at_s in times]
    return found


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """What became of a request. model: that served it, ``None`` for no whole answer. took_s: to its last token."""

    task: str
    model: str | None
    why: str
    took_s: float

    @property
    def reward(self) -> float:
        in_time = self.took_s <= OUTPUT * TOKEN_MS / 1e3
        return QUALITY[self.task][self.model] if self.model is not None and in_time else 0.0


async def ask(http: aiohttp.ClientSession, model: str, task: str, at_s: float, begun_s: float) -> TaskAnswer:
    loop = asyncio.get_running_loop()
    prompt = np.random.default_rng(round(1e6 * at_s)).integers(16, 99, PROMPT).tolist()
    body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    await asyncio.sleep(max(begun_s + at_s - loop.time(), 0.0))
    sent_s, served, why, last_s = loop.time(), None, "", float("inf")
    with suppress(aiohttp.ClientError, asyncio.TimeoutError):
        async with http.post("/v1/completions", json=body, headers={"x-slo-task": task}) as answer:
            served, _, why = answer.headers.get("x-sloserve-model", f"{model};why=named").partition(";why=")
            text = b"".join([part async for part in answer.content.iter_any()])
            last_s = loop.time()
        if answer.status != 200 or f'"completion_tokens":{OUTPUT}'.encode() not in text.replace(b" ", b""):
            served = None
        elif f'"model":"{served}"'.encode() not in text.replace(b" ", b""):
            raise AssertionError(f"the header says {served}, and the stream does not: {text[:200]!r}")
    return TaskAnswer(task, served, why, last_s - sent_s)


async def ratios(http: aiohttp.ClientSession) -> dict[str, float]:
    """Returns the mean completion ratio by the gateway's metric, and the share of ratios within 20 % of 1."""
    found: dict[str, float] = defaultdict(float)
    async with http.get("/metrics") as answer:
        for family in text_string_to_metric_families(await answer.text()):
            if family.name == "sloserve:gateway_auto_completion_ratio":
                for sample in family.samples:
                    found[sample.name.rpartition("_")[2] + sample.labels.get("le", "")] += sample.value
    count = max(found["count"], 1.0)
    return {"ratio": found["sum"] / count, "within_20": (found["bucket1.2"] - found["bucket0.8"]) / count}


async def run(http: aiohttp.ClientSession, model: str, seed: int) -> list[TaskAnswer]:
    begun_s = asyncio.get_running_loop().time() + 0.5
    return await asyncio.gather(*(ask(http, model, task, at_s, begun_s) for at_s, task in arrivals(seed)))


async def until_served(http: aiohttp.ClientSession) -> None:
    """Each model answers."""
    async with asyncio.timeout(READY_S):
        for model in MODELS:
            while (await ask(http, model, "piqa", 0.0, 0.0)).model is None:
                await asyncio.sleep(1.0)


def row(rule: str, seed: int, answers: Sequence[TaskAnswer]) -> dict[str, Any]:
    by_why = Counter(answer.why for answer in answers)
    large = [answer.model == "opt-6.7b" for answer in answers]
    limit_s = OUTPUT * TOKEN_MS / 1e3
    hard = [answer.model == "opt-6.7b" for answer in answers if answer.task == "hellaswag"]
    return {
        "rule": rule,
        "seed": seed,
        "requests": len(answers),
        "unanswered": sum(answer.model is None for answer in answers),
        "reward": round(float(np.mean([answer.reward for answer in answers])), 4),
        "in_time": round(float(np.mean([answer.took_s <= limit_s for answer in answers])), 4),
        "large": round(float(np.mean(large)), 4),
        "large_hellaswag": round(float(np.mean(hard)), 4),
        "mean_s": round(float(np.mean([answer.took_s for answer in answers])), 3),
        **{f"why_{why}": by_why[why] for why in ("named", "best", "policy", "soonest", "explored")},
    }


def learn(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Train on the logs in ``folder``, write the policy whatever its estimate is, and return the estimate."""
    models = tuple(MODELS)
    choices = read_choices(sorted(folder.glob("*.jsonl")), Schema(len(models)).as_text(), models)
    before = load_network(folder / "policy.safetensors", Schema(len(models)).as_text(), models)
    learned, held_out = split(choices)
    settings = TrainingSettings(steps=LEARNING_STEPS, seed=seed)
    network = train_on(learned, models, settings, before)
    network.save(folder / "learned.safetensors")
    found = judge(held_out, network, settings)
    return {"rule": "estimate from logs", "requests": choices.run.size, "explored": EXPLORE} | {
        "over_greedy": round(found.over_greedy.mean, 4),
        "over_greedy_low": round(found.over_greedy.low, 4),
        "over_greedy_high": round(found.over_greedy.high, 4),
        "differing": round(found.differing, 4),
    }


class Comparison:
    """Runs rules at one fleet in ``folder``."""

    def __init__(self, folder: Path, port: int, *, real_time: bool) -> None:
        environment = {**PACED_ENVIRONMENT, "XDG_RUNTIME_DIR": str(folder / "run")}
        self._folder, self._port = folder, port
        self.processes = FleetProcesses(folder, environment, real_time)

    def start_gateway(self, rule: str, seed: int) -> None:
        """Start a gateway with the rule's policy in place of the one that runs."""
        self.processes.stop("gateway")
        explore = EXPLORE if rule == "explores" else 0.0
        log = f"{rule}-{seed}.jsonl" if rule in ("greedy", "explores") else None
        self.processes.file.write_text(fleet(self._folder, RULES[rule][0], log, explore), encoding="utf-8")
        self.processes.start("gateway", "--port", str(self._port))

    async def rows(self, http: aiohttp.ClientSession, rules: Sequence[str], seed: int) -> list[dict[str, Any]]:
        """Return what each rule earns with the requests of ``seed``."""
        found = []
        for rule in rules:
            self.start_gateway(rule, seed)
            await until_served(http)
            with self.processes.hurried():
                answers = await run(http, RULES[rule][1], seed)
            found.append(row(rule, seed, answers) | (await ratios(http) if RULES[rule][1] == "auto" else {}))
            print(json.dumps(found[-1]), flush=True)
        return found


async def compare(folder: Path, seeds: int, port: int, *, real_time: bool) -> list[dict[str, Any]]:
    compared, found = Comparison(folder, port, real_time=real_time), []
    timeout = aiohttp.ClientTimeout(total=len(RATES) * PHASE_S + DRAIN_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as http:
        try:
            compared.start_gateway("greedy", 0)
            compared.processes.start("agent", "--host", "a")
            for seed in range(seeds):
                found += await compared.rows(http, [rule for rule in RULES if rule != LEARNED], seed)
            compared.processes.stop("gateway")
            found.append(await asyncio.to_thread(learn, folder))
            print(json.dumps(found[-1]), flush=True)
            for seed in range(seeds):
                found += await compared.rows(http, [LEARNED], seed)
        finally:
            compared.processes.stop()
    return found


_SHOWN = ("reward", "in_time", "large", "large_hellaswag", "mean_s", "ratio")


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean over seeds of each rule, and its reward minus greedy's with a 95 % interval, paired by seed."""
    lines = [
        f"{'':18}{'reward':>8}{'over greedy':>19}{'in time':>9}{'large':>8}{'hellaswag':>11}{'mean s':>8}{'ratio':>8}"
    ]
    by_rule = {rule: sorted((r for r in found if r["rule"] == rule), key=lambda r: r["seed"]) for rule in RULES}
    for rule, runs in by_rule.items():
        mean = {key: float(np.mean([run[key] for run in runs])) for key in _SHOWN if runs[0].get(key) is not None}
        over = np.array([run["reward"] - greedy["reward"] for run, greedy in zip(runs, by_rule["greedy"], strict=True)])
        text = "" if rule == "greedy" else f"{over.mean():+.3f} +- {half_95(over):.3f}"
        ratio = f"{mean['ratio']:8.3f}" if "ratio" in mean else ""
        lines.append(
            f"{rule:18}{mean['reward']:8.3f}{text:>19}{mean['in_time']:9.1%}{mean['large']:8.1%}"
            f"{mean['large_hellaswag']:11.1%}{mean['mean_s']:8.2f}{ratio}"
        )
    logs = next(run for run in found if run["rule"] == "estimate from logs")
    lines.append(
        f"\n{logs['requests']} logged choices, {logs['explored']:.0%} of half of them explore: the policy from them is "
        f"estimated at {logs['over_greedy']:+.3f} over greedy ({logs['over_greedy_low']:+.3f} to "
        f"{logs['over_greedy_high']:+.3f}), and differs from it in {logs['differing']:.0%} of the choices"
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains if need be, runs all rules, and writes the table."""
    parser = parser_for(__doc__, policy=Path("router-policies/engines.safetensors"), train_only=False, seeds=SEEDS)
    parser.add_argument(
        "--real-time", action="store_true", help="real-time scheduling, once engines are ready, where cores are shared"
    )
    parser.add_argument("--keep", type=Path, help="folder for logs, instead of one that is deleted")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sr-") as made:
        folder = arguments.keep or Path(made)
        (folder / "run").mkdir(parents=True, exist_ok=True)
        for model, profile in MODELS.items():
            scaled_profile(profile, SLOWER, folder).rename(folder / f"{model}.yaml")
        if not arguments.policy.is_file():
            arguments.policy.parent.mkdir(parents=True, exist_ok=True)
            train(folder, arguments.policy)
        if arguments.train_only:
            return
        (folder / "policy.safetensors").write_bytes(arguments.policy.read_bytes())
        found = asyncio.run(compare(folder, arguments.seeds, free_port(), real_time=arguments.real_time))
    write_runs(FOLDER / RUNS, found)
    write_table(FOLDER, table(found), shown=True)


if __name__ == "__main__":
    main()
