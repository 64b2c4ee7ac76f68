"""What does `sloserve serve` add to the start of vLLM's server: processor time to the first token, seconds, memory?

Usage: python -m benchmarks.serving.start_cost [--rounds 7] [--policy auto] [--flag=--swap-space-gib=1]

Starts vLLM's own server and `sloserve serve` in turn, with the same model and flags, asks for one token as soon as
/health answers, and reads what all processes of the server have used by then: CPU seconds, seconds on the clock, and
the memory of each process (proportional set size). Writes results/start_cost.json.gz: medians, and differences paired
by round with 95 % intervals.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.stats import bootstrap

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import free_port, plain_vllm_command, processes_of, running, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME

POLL_S = 0.1
MIB = 2**20


def one_start(command: list[str], log: Path, **variables: str) -> dict[str, float]:
    """Runs a server up to its first token."""
    began_s = time.perf_counter()
    with running(command, free_port(), log, poll_s=POLL_S, **variables) as (url, process):
        body = {"model": NAME, "prompt": "a", "max_tokens": 1, "temperature": 0}
        httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()
        took_s = time.perf_counter() - began_s
        of_server = processes_of(process)
        processes = [of_server["api"], *of_server["api"].children(recursive=True)]
        times = [one.cpu_times() for one in processes]
        return {
            "cpu_s": sum(one.user + one.system for one in times),
            "seconds": took_s,
            "api_mib": of_server["api"].memory_full_info().pss / MIB,
            "core_mib": of_server["core"].memory_full_info().pss / MIB,
            "all_mib": sum(one.memory_full_info().pss for one in processes) / MIB,
        }


def figures(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    rows = {}
    for name in found["vllm"][0]:
        stock, ours = (np.array([one[name] for one in found[server]]) for server in ("vllm", "sloserve"))
        interval = bootstrap((ours - stock,), np.median, rng=np.random.default_rng(0)).confidence_interval
        rows[name] = {
            "vllm": round(float(np.median(stock)), 2),
            "sloserve": round(float(np.median(ours)), 2),
            "ratio": round(float(np.median(ours / stock)), 3),
            "added_95": [round(float(interval.low), 2), round(float(interval.high), 2)],
        }
    return rows


def main() -> None:
    parser = parser_for(__doc__, rounds=7, policy="auto")
    parser.add_argument("--flag", action="append", default=[], help="another flag of `sloserve serve`")
    given = parser.parse_args()
    servers: dict[str, tuple[list[str], dict[str, str]]] = {
        # Without a plugin, not even an idle one.
        "vllm": (plain_vllm_command(), {"VLLM_PLUGINS": ""}),
        "sloserve": ([*sloserve_command(given.policy), *given.flag], {}),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds + 1):
            for name, (command, variables) in list(servers.items())[:: 1 if number % 2 else -1]:
                one = one_start(command, Path(folder, "log"), **variables)
                print(number, name, {what: round(value, 2) for what, value in one.items()}, flush=True)
                if number:  # the first fills the file system's caches
                    found[name].append(one)
    settings = {"rounds": given.rounds, "policy": given.policy, "flags": given.flag}
    write_result(RESULTS / "start_cost.json.gz", {"settings": settings, "rows": figures(found)})


if __name__ == "__main__":
    main()
