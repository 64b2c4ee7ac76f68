"""Measures what chats have beside long prompts that have begun, which vLLM computes before it begins any other.

Half of the prompt tokens are of prompts of 30,000 tokens, with a target of 10 s for the first token; the rest are of
Azure's conversations (first half of the trace, prompts of at most 2,000 tokens), with a target of 1 s and of 100 ms a
token. On the 70B model all targets are three times as long. The load is a multiple of the rate at which stock serves
the conversations alone.

``stock, chunks of N`` is vLLM's own remedy, ``--long-prefill-token-threshold N``, which limits each prompt to N tokens
of a step. ``auto, in order`` is auto without what is measured here: it computes prompts that have begun in order. No
policy knows which requests are chats, beside their targets and lengths.

Writes results/long_prompts.json.gz, a row for each run: parts of the chats and of the long prompts in time, mean TTFT
of each, tokens/s, and the number of steps that paused requests skipped, for each request.

Usage: python -m benchmarks.policies.long_prompts [--loads 0.7,1,1.3] [--seeds 3] [--profiles h100-llama3-8b,...]
The trace is looked for in the folder that SLOSERVE_DATA names.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies import tenants
from benchmarks.policies.tenants import LONG_TOKENS, SETTINGS, experiment, requests_of
from benchmarks.publish import RESULTS, provenance, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import ClassTable, Targets
from sloserve.lso.step_budget import StepBudget
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from sloserve.sim.experiment import Point, measured_points

CHAT_S, LONG_S, TPOT_S = 1.0, 10.0, 0.1
"""Targets for the first token of chats and of long prompts, and for each further token, in seconds."""
PROFILES: Final = {"h100-llama3-8b": (12_000, 1.0), "a100-llama3-70b-tp4": (12_000, 3.0)}
"""KV blocks and the factor of all targets."""
CHUNKS: Final = (256, 1024)
IN_ORDER: Final = "auto, in order"
POLICIES: Final = (
    "stock",
    *(f"stock, chunks of {tokens}" for tokens in CHUNKS),
    "edf",
    "niyama:step_budget=true",
    "edf:step_budget=true",
    IN_ORDER,
    "auto",
)


class Chunked(Policy):
    """vLLM's own order, with at most so many prompt tokens of a request in a step."""

    needs = frozenset({"prompt_tokens"})

    def __init__(self, tokens: int) -> None:
        super().__init__(None)
        self._plan = Plan(prefill_chunk_tokens=tokens)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return self._plan


def is_long(request: WorkloadRequest) -> bool:
    """Return whether a request is one of the long prompts."""
    return request.prompt_tokens == LONG_TOKENS


def drawn(classes: ClassTable, rps: float, seed: int, factor: float) -> list[WorkloadRequest]:
    """Return the requests, without tenants; ``factor`` is of the targets."""
    chats, long = (
        classes.slo("chat", Targets(ttft_s=ttft_s * factor, tpot_s=TPOT_S * factor)) for ttft_s in (CHAT_S, LONG_S)
    )
    found = requests_of(SETTINGS["long prompts"], rps, seed, chats)
    return [replace(one, tenant="", slo=long if is_long(one) else chats) for one in found]


def figures(log: RunLog) -> dict[str, Any]:
    """Return the figures of one run."""
    row: dict[str, Any] = {}
    for name, chosen in (("chats", False), ("long", True)):
        of_kind = [one for one in log.requests if is_long(one.request) is chosen]
        first_s = [float(one.token_times_s[0]) - one.request.arrival_s for one in of_kind]
        row |= {
            f"{name}_in_time": round(float(np.mean([bool(one.good) for one in of_kind])), 4),
            f"{name}_ttft_s": round(float(np.mean(first_s)), 3),
        }
    ended_s = max(float(one.token_times_s[-1]) for one in log.requests)
    num = len(log.requests)
    return row | {
        "requests": num,
        "output_throughput": round(sum(one.token_times_s.size for one in log.requests) / ended_s, 1),
        "preemptions_per_request": round(sum(one.num_preemptions for one in log.requests) / num, 4),
        "pauses_per_request": round(log.counters.get("paused_steps", 0) / num, 3),
    }


def runs(profile: str, load: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy."""
    kv_blocks, factor = PROFILES[profile]
    with TemporaryDirectory() as name:
        ours = experiment(Path(name), profile, kv_blocks)
        assert ours.slos is not None
        rps = measured_points(replace(ours, seeds=(seed,)))[0].rps * load
        requests, point = drawn(ours.slos.table, rps, seed, factor), Point(seed, rps, load)
        for policy in POLICIES:
            asked: str | Policy = Chunked(int(policy.split()[-1])) if "chunks" in policy else policy
            with contextlib.ExitStack() as stack:
                if policy == IN_ORDER:
                    stack.enter_context(mock.patch.object(StepBudget, "turns", return_value=None))
                    asked = "auto"
                log = tenants.run(ours, asked, point, requests)
            yield {"profile": profile, "load": load, "seed": seed, "policy": policy} | figures(log)


def main() -> None:
    parser = parser_for(__doc__, loads="0.7,1,1.3", seeds=3, profiles=",".join(PROFILES))
    given = parser.parse_args()
    begun, rows = provenance(), []
    for seed, profile, load in itertools.product(
        range(given.seeds), given.profiles.split(","), map(float, given.loads.split(","))
    ):
        for row in runs(profile, load, seed):
            print(json.dumps(row), flush=True)
            rows.append(row)
    rows.sort(
        key=lambda row: (list(PROFILES).index(row["profile"]), row["load"], POLICIES.index(row["policy"]), row["seed"])
    )
    write_result(RESULTS / "long_prompts.json.gz", begun | {"runs": rows})


if __name__ == "__main__":
    main()
