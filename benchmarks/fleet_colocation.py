"""What do batches cost interactive requests on the same engine, and what does control cost the batch?

The scenario of llm-d-batch-gateway #491 in virtual time: one Llama 3 8B on one H100, Poisson streams with a TTFT target of
500 ms, and a batch that is there from the start and would fill the engine by itself. Four runs see the same requests:

- ``alone``: streams without a batch.
- ``uncontrolled``: all lines are sent at once, vLLM's own scheduler.
- ``priority``: a queue in front gives streams first and lines while there is room, vLLM's own scheduler.
- ``fleet``: lines are pulled while there is room, as agents do, and the engine's policy is edf with step_budget.

    python benchmarks/fleet_colocation.py [--seeds 3]

Prints and writes benchmarks/results/fleet_colocation.json: share of streams in time, TTFT p50 and p99, tokens a second
of the batch while streams came, in parts of ``uncontrolled``.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import SLO
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.fleet.file import Fleet, parse_fleet
from sloserve.sim.experiment import MODEL, engine_class
from sloserve.sim.fleet.contract import Dispatcher, Held
from sloserve.sim.fleet.dispatchers.assigned import Static
from sloserve.sim.fleet.dispatchers.pulling import OnDemand
from sloserve.sim.fleet.dispatchers.qlm import QLM
from sloserve.sim.fleet.loop import FleetRun
from sloserve.workloads.length_models import sharegpt
from sloserve.workloads.seeding import stream

TTFT_S, STREAMS_PER_S, SECONDS, LINES = 0.5, 8.0, 60.0, 6_000
FLEET = f"""
models:
  m: {{profile: h100-llama3-8b, active_on: [a/0], flags: {{max_num_seqs: 256, max_num_batched_tokens: 2048, max_model_len: 8192}}}}
hosts:
  a: {{device: h100, devices: 1, host_memory_gib: 64}}
settings:
  policy: edf
  policy_options: {{step_budget: true}}
  classes:
    interactive: {{rank: 1, ttft_ms: {TTFT_S * 1e3:g}}}
    batch: {{rank: 2}}
"""


class _Priority(OnDemand):
    """First the class, then the order of arrival."""

    @staticmethod
    def key(request: Held) -> float:
        return request.rank * 1e6 + request.arrival_s


RUNS: dict[str, tuple[type[Dispatcher], str | None]] = {
    "alone": (Static, None),
    "uncontrolled": (Static, None),
    "priority": (_Priority, None),
    "fleet": (QLM, "edf"),
}


def requests(fleet: Fleet, seed: int, *, batch: bool) -> list[WorkloadRequest]:
    classes = fleet.settings.classes
    rng = stream(seed, "colocation")
    arrivals = np.cumsum(rng.exponential(1.0 / STREAMS_PER_S, int(STREAMS_PER_S * SECONDS)))
    made = []
    for name, times in (("interactive", arrivals), ("batch", np.zeros(LINES if batch else 0))):
        slo_class = classes[name]
        prompts, outputs = lengths(stream(seed, name), len(times))
        made += [
            WorkloadRequest(f"{name}-{i}", float(at), int(p), int(o), SLO(slo_class, slo_class.targets), model="m")
            for i, (at, p, o) in enumerate(zip(times, prompts, outputs, strict=True))
        ]
    return sorted(made, key=lambda one: one.arrival_s)


def lengths(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    drawn = sharegpt().draw(n, rng)
    return np.clip(drawn[0], 1, 4_000), np.clip(drawn[1], 1, 2_000)


def measure(fleet: Fleet, name: str, seed: int) -> dict[str, float]:
    dispatcher, policy = RUNS[name]
    run = FleetRun(fleet, dispatcher(), engine_class(MODEL), policy=policy, seed=seed)
    logs = run.run(requests(fleet, seed, batch=name != "alone")).run.requests
    streams = [one for one in logs if one.request.slo.slo_class.name == "interactive"]
    ttft = np.array([one.token_times_s[0] - one.request.arrival_s for one in streams])
    return {
        "in_time": float(np.mean(ttft <= TTFT_S)),
        "ttft_p50_ms": float(np.quantile(ttft, 0.5) * 1e3),
        "ttft_p99_ms": float(np.quantile(ttft, 0.99) * 1e3),
        "batch_tokens_per_s": batch_rate(logs),
    }


def batch_rate(logs: list[RequestLog]) -> float:
    """Output tokens of lines that came while streams came."""
    lines = [one.token_times_s for one in logs if one.request.slo.slo_class.name == "batch"]
    return sum(int((times <= SECONDS).sum()) for times in lines) / SECONDS


def predicted_step_ms(fleet: Fleet) -> float:
    """A step that is full: of 256 sequences that decode, and prompts up to 2,048 tokens."""
    profile = fleet.models["m"].profiles["h100"]
    load = StepLoad.of([(2_048 - 256, 0)], [500] * 256)
    return profile.step_s(load) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    fleet = parse_fleet(FLEET)
    found: dict[str, dict[str, float]] = {}
    for name in RUNS:
        each = [measure(fleet, name, seed) for seed in range(args.seeds)]
        found[name] = {key: statistics.mean(one[key] for one in each) for key in each[0]}
        print(name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)
    step_ms = predicted_step_ms(fleet)
    for one in found.values():
        one["batch_share"] = one["batch_tokens_per_s"] / found["uncontrolled"]["batch_tokens_per_s"]
    print(f"a full step takes {step_ms:.1f} ms")
    result = {"provenance": provenance(), "seeds": args.seeds, "full_step_ms": step_ms, "runs": found}
    path = Path(__file__).parent / "results" / "fleet_colocation.json"
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
