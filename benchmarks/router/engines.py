"""``model: auto`` before two real engines of different size: masked greedy and a trained policy beside each model.

Real processes of `sloserve fleet`: gateway, agent, API servers, vLLM's schedulers. The engines wait as long as a GPU
would compute (``PacedWorker``): OPT-1.3B and OPT-6.7B, each step three times as long as on an A100, so that two CPU
cores keep up. One engine of each. Rates change every 8 s; each rule gets the same requests. A request earns the quality
of the model that served it (Table 1 of the paper), 0 if its last token is late.

    python -m benchmarks.router.engines --real-time

trains a policy for that system if ``--policy`` is not there, runs for five minutes, and writes results/router-engines/.
What the gateway foresaw of each request is held against what it took, by sloserve:gateway_auto_completion_ratio.
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
from benchmarks.publish import RESULTS, RUNS, write_runs, write_table
from benchmarks.scaled_profile import scaled_profile
from benchmarks.servers import free_port

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
STEPS = 120_000
READY_S, DRAIN_S = 240.0, 30.0
ARGUMENTS = [*PACED_ENGINE, "--no-enable-prefix-caching"]
RULES: Mapping[str, tuple[str, str]] = {
    "always opt-1.3b": ("greedy", "opt-1.3b"),
    "always opt-6.7b": ("greedy", "opt-6.7b"),
    "greedy": ("greedy", "auto"),
    "dqn": ("policy.safetensors", "auto"),
}
"""The router's policy, and what requests name as their model."""


def router(folder: Path, policy: str) -> dict[str, Any]:
    return {
        "models": list(MODELS),
        "quality": QUALITY,
        "token_ms": TOKEN_MS,
        "policy": policy,
        "shadow": "greedy",
        "system": {
            "speed": {model: {"profile": str(folder / f"{model}.yaml")} for model in MODELS},
            "devices": 1,
            "interference": 0.0,
            "prompt_tokens": PROMPT,
            "output_tokens": OUTPUT,
            "rates": [1.0, 40.0],
        },
    }


def fleet(folder: Path, policy: str) -> str:
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
        "router": router(folder, policy),
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
        **{f"why_{why}": by_why[why] for why in ("named", "best", "policy", "soonest")},
    }


async def compare(folder: Path, seed: int, port: int, *, real_time: bool) -> list[dict[str, Any]]:
    environment = {**PACED_ENVIRONMENT, "XDG_RUNTIME_DIR": str(folder / "run")}
    processes, found = FleetProcesses(folder, environment, real_time), []

    def start_gateway(policy: str) -> None:
        processes.stop("gateway")
        processes.file.write_text(fleet(folder, policy), encoding="utf-8")
        processes.start("gateway", "--port", str(port))

    timeout = aiohttp.ClientTimeout(total=len(RATES) * PHASE_S + DRAIN_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as http:
        try:
            policy = next(iter(RULES.values()))[0]
            start_gateway(policy)
            processes.start("agent", "--host", "a")
            for rule, (wanted, model) in RULES.items():
                if wanted != policy:
                    policy = wanted
                    start_gateway(policy)
                await until_served(http)
                with processes.hurried():
                    answers = await run(http, model, seed)
                found.append(row(rule, seed, answers) | (await ratios(http) if model == "auto" else {}))
                print(json.dumps(found[-1]), flush=True)
        finally:
            processes.stop()
    return found


def table(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{'':18}{'reward':>8}{'in time':>9}{'large':>8}{'hellaswag':>11}{'mean s':>8}{'ratio':>8}{'within 20 %':>13}"
    ]
    for one in found:
        foreseen = f"{one['ratio']:8.3f}{one['within_20']:13.1%}" if "ratio" in one else ""
        lines.append(
            f"{one['rule']:18}{one['reward']:8.3f}{one['in_time']:9.1%}{one['large']:8.1%}{one['large_hellaswag']:11.1%}"
            f"{one['mean_s']:8.2f}{foreseen}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains if need be, runs all rules, and writes the table."""
    parser = parser_for(__doc__, policy=Path("router-policies/engines.safetensors"), train_only=False, seed=0)
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
        found = asyncio.run(compare(folder, arguments.seed, free_port(), real_time=arguments.real_time))
    write_runs(FOLDER / RUNS, found)
    write_table(FOLDER, table(found), shown=True)


if __name__ == "__main__":
    main()
