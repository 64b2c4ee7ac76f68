"""How much KV does EconoServe promise that is not used, and how much do requests use beyond it? Its Fig. 5a and 4c.

Usage: python -m benchmarks.policies.econo_provision [--quick] [--out FILE]

Per request: what it was first granted (prompt and padded prediction, rounded up to a group's multiple) beside what it
came to. ``over`` and ``under``: tokens granted and not used, and used beyond the grant, as shares of the tokens
granted. ``within``: share of the requests that their grant sufficed for. Virtual time, OPT-13B with 12 GB of KV, about
stock's capacity, lengths with an error of 30 % or predicted by class; the paper's padding for each of its datasets
(10, 15, 20 %) beside none and the tuned one. BookCorpus-like prompts fill OPT's context: the engine's is doubled here.

Writes results/econo_provision.json.gz; ``--quick`` writes nothing without ``--out``.
"""

import json
import logging
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.core.rows import Rows
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.papers.econo_paper import EconoPaper
from sloserve.scheduler.policy import Plan, Snapshot
from sloserve.sim.workloads.workload_registry import workload
from sloserve.vllm_plugin.virtual.engine import VirtualEngine

PROFILE = "a100-opt-13b-12gb"
CONTEXT_TOKENS = 4096
SEEDS = (0, 1, 2)
REQUESTS = 300
CASES = {"sharegpt-poisson": (2.6, 0.15), "alpaca-poisson": (30.0, 0.10), "bookcorpus-poisson": (0.25, 0.20)}
"""Requests/s and the paper's padding."""
LENGTHS = {"error 30 %": "length=oracle:length_error=0.3", "predicted": "length=predicted"}


@dataclass
class GrantWatch:
    """What the requests of a run were granted at first and came to, in tokens. Watches a policy at work."""

    policy: EconoPaper
    granted: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    _first: dict[int, int] = field(default_factory=dict)

    def watch(self) -> None:
        plan, finished = self.policy.plan, self.policy.finished

        def planned(snapshot: Snapshot, now_s: float) -> Plan:
            found = plan(snapshot, now_s)
            goals = self.policy._grants.goal[snapshot.running]
            for slot, goal in zip(snapshot.running.tolist(), goals.tolist(), strict=True):
                if goal:
                    self._first.setdefault(slot, goal)
            return found

        def ended(rows: Rows, slot: int, now_s: float) -> None:
            if slot in self._first:
                self.granted.append(self._first.pop(slot))
                self.used.append(int(rows.prompt_tokens[slot] + rows.output_tokens[slot]))
            finished(rows, slot, now_s)

        self.policy.plan, self.policy.finished = planned, ended  # type: ignore[method-assign]


def run(name: str, policy: str, seed: int, n: int) -> GrantWatch:
    source, profile = workload(name), load_profile(PROFILE)
    engine = VirtualEngine(
        EngineSettings.of_profile(profile, max_model_len=CONTEXT_TOKENS),
        profile,
        {"sloserve": {"policy": policy, "seed": seed} | source.slos.table.as_config()},
    )
    grants = GrantWatch(engine.scheduler.policies.policy)
    grants.watch()
    engine.run(source.requests(n, seed, CASES[name][0]))
    return grants


def measured(name: str, lengths: str, padding: str, seeds: tuple[int, ...], n: int) -> dict[str, Any]:
    runs = [run(name, f"econo-paper:{LENGTHS[lengths]}:padding={padding}", seed, n) for seed in seeds]
    granted, used = (np.concatenate([getattr(one, side) for one in runs]) for side in ("granted", "used"))
    return {
        "workload": name,
        "lengths": lengths,
        "padding": padding,
        "requests": int(granted.size),
        "over": float(np.maximum(granted - used, 0).sum() / granted.sum()),
        "under": float(np.maximum(used - granted, 0).sum() / granted.sum()),
        "within": float((used <= granted).mean()),
        "shares_at_the_end": [asdict(one.policy.tuning.shares) for one in runs],
    }


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it would warn of this machine, and no model runs on it
    quick, out = quick_and_out(__doc__, RESULTS / "econo_provision.json.gz")
    rows = []
    for name in ["alpaca-poisson"] if quick else CASES:
        for lengths in LENGTHS:
            for padding in ("0", f"{CASES[name][1]:g}", "auto"):
                rows.append(measured(name, lengths, padding, SEEDS[:1] if quick else SEEDS, 40 if quick else REQUESTS))
                shown = {key: rows[-1][key] for key in ("over", "under", "within")}
                print(f"{name} {lengths} padding {padding}: {json.dumps(shown)}", flush=True)
    if out is not None:
        settings = {"profile": PROFILE, "seeds": SEEDS, "requests": REQUESTS, "cases": CASES}
        write_result(out, {**settings, "rows": rows})


if __name__ == "__main__":
    main()
