"""What does each tenant of a fleet get while another asks for more than its share?

``INSTANCES`` H100s with Llama 3 8B in virtual time; the live fleet's own gateway, planner and agents decide. Prompts
have about 900 tokens and outputs 200, and each first token is due after 2 s. One instance completes 21 requests a
second.

- ``flood``: sessions stay on their instance. The first tenant sends 42 requests a second to one instance, and 18 to
  each other one, where another tenant sends 24: more than the first one there, and less than it in the fleet;
- ``burst``: three equal tenants ask for 0.8 of what the fleet serves, and the first for ten times as much for 4 s;
- ``heavy``: two heavy tenants ask for 0.35 of the requests each and ten light ones for the rest, twice what it serves.

The rows: ``stock`` sends each request at once to the instance with the fewest, whose engine serves in order of arrival;
``deficit round robin`` and ``least attained`` are gateways with a fair queue before such engines (``fair_gateway.py``);
``auto`` is the live fleet without shares; ``each engine`` has shares in every engine by its own figures; ``gateway``
orders what its gateway holds by the figures of the fleet as well; ``fleet`` also gives each engine the others' figures.

    python -m benchmarks.fleet.tenant_shares [--quick] [--out FILE]

Prints and writes benchmarks/results/fleet_tenant_shares.json.gz, a row for each run: % in time of the others and of the
tenants named ``first`` (of ``heavy`` both), output tokens/s, % refused after 60 s in the gateway, Jain's index of mean
slowdown over the others (where there are two), and for ``fleet`` the largest error in seconds of an engine's figure of
what a tenant had in all others, beside the bound of docs/tenants.md. Seeds draw the same requests for every row.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.baselines.tenants import DeficitRoundRobin, LeastAttained
from benchmarks.fleet.fair_gateway import FairGateway
from benchmarks.policies.tenants import by_tenant, slowdowns
from benchmarks.publish import RESULTS, aligned, provenance, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatcher import Dispatcher, Operation, SetElsewhere, SimulatedView
from sloserve.fleet.simulated.dispatchers.assigned import Static
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.statistics import jain_index

PROFILE, INSTANCES, SEEDS = "h100-llama3-8b", (2, 4, 8), 3
SERVED_PER_S = 21.0
"""Requests that one instance completes each second when they come all at once."""
OLDEST_S = 4.0
"""Greatest age of another host's figures, by docs/tenants.md."""
PLANNER = "qlm"

Stream = tuple[str, int, float, float, float]
"""Tenant, model, requests per second, and the seconds from and until which they come."""


def flood(instances: int) -> list[Stream]:
    """Return what comes where the first tenant floods the first instance, and has less of every other one."""
    others = [(f"t{i}", i, 24.0, 0.0, 15.0) for i in range(1, instances)]
    return [("t0", 0, 42.0, 0.0, 15.0), *(("t0", i, 18.0, 0.0, 15.0) for i in range(1, instances)), *others]


def burst(instances: int) -> list[Stream]:
    """Return what three tenants send, of which the first sends ten times as much in the second of three spans."""
    each = 0.8 / 3 * SERVED_PER_S * instances
    return [*((f"t{i}", 0, each, 0.0, 12.0) for i in range(3)), ("t0", 0, 9.0 * each, 4.0, 8.0)]


def heavy(instances: int) -> list[Stream]:
    """Return what two heavy and ten light tenants send."""
    rps = 2.0 * SERVED_PER_S * instances
    return [(f"t{i}", 0, (0.35 if i < 2 else 0.03) * rps, 0.0, 12.0) for i in range(12)]


SETTINGS: Mapping[str, tuple[Callable[[int], list[Stream]], int]] = {
    "flood": (flood, 1), "burst": (burst, 1), "heavy": (heavy, 2)
}  # fmt: skip
"""What comes to a number of instances, and how many of the tenants ask for more than their share."""


def fleet_of(instances: int, *, pinned: bool, shares: bool) -> Fleet:
    """Return a fleet of hosts with one instance. pinned: whether each instance has a model of its own."""
    models = [f"m{i}" for i in range(instances if pinned else 1)]
    lines = [f"  {name}: {{profile: {PROFILE}, flags: {{max_num_seqs: 256}}}}" for name in models]
    hosts = [f"  h{i}: {{device: h100, devices: 1}}" for i in range(instances)]
    settings = "policy: auto, classes: {urgent: {rank: 0, ttft_ms: 2000}}" + ", tenant_shares: {}" * shares
    return parse_fleet("\n".join(["models:", *lines, "hosts:", *hosts, f"settings: {{{settings}}}"]))


def requests_of(streams: Sequence[Stream], seed: int, fleet: Fleet) -> list[WorkloadRequest]:
    """Return the requests of all tenants, in order of arrival."""
    rng, found = np.random.default_rng(seed), []
    for tenant, model, rate, from_s, until_s in streams:
        for part in rng.random(int(rate * (until_s - from_s))):
            prompt, output = (int(x) for x in rng.lognormal(np.log([900, 200]), 0.5))
            found.append((from_s + float(part) * (until_s - from_s), tenant, model, max(prompt, 1), max(output, 1)))
    slo = fleet.settings.classes.slo("urgent", fleet.settings.classes["urgent"].targets)
    return [
        WorkloadRequest(f"r{i}", at_s, prompt, output, slo, model=f"m{model}", tenant=tenant)
        for i, (at_s, tenant, model, prompt, output) in enumerate(sorted(found))
    ]


class SharesApart(LiveFleet):
    """The live fleet where no engine is given what tenants had in the others; its gateway knows it."""

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        return [one for one in super().tick(view) if not isinstance(one, SetElsewhere)]


class SharesTogether(LiveFleet):
    """The live fleet with a check of the figures that its engines have.

    ``error_s`` is the largest difference yet between what a tenant had in all other engines by an engine's figure, just
    before it was replaced, and by what they report at that moment.
    """

    def __init__(self, planner: str, options: Options | None = None, seed: int = 0) -> None:
        super().__init__(planner, options, seed)
        self.error_s = 0.0
        self._given: dict[str, tuple[Mapping[str, float], float]] = {}

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        operations = super().tick(view)
        shares = view.fleet.settings.tenant_shares
        coming = [one for one in operations if isinstance(one, SetElsewhere)]
        if coming and shares is not None:
            had = {one.name: one.service_s() or {} for one in view.instances}
            for one in coming:
                given, at_s = self._given.get(one.instance, ({}, view.now_s))
                kept = 0.5 ** ((view.now_s - at_s) / shares.half_life_s)
                for tenant in {*given, *(name for of in had.values() for name in of)}:
                    true_s = sum(of.get(tenant, 0.0) for name, of in had.items() if name != one.instance)
                    self.error_s = max(self.error_s, abs(given.get(tenant, 0.0) * kept - true_s))
                self._given[one.instance] = one.service_s, view.now_s
        return operations


ROWS: Mapping[str, Callable[[int], Dispatcher]] = {
    "stock": lambda seed: Static(),
    "deficit round robin": lambda seed: FairGateway(DeficitRoundRobin),
    "least attained": lambda seed: FairGateway(LeastAttained),
    "auto": lambda seed: LiveFleet(PLANNER, seed=seed),
    "each engine": lambda seed: LiveFleet(PLANNER, Options(share=False), seed),
    "gateway": lambda seed: SharesApart(PLANNER, seed=seed),
    "fleet": lambda seed: SharesTogether(PLANNER, seed=seed),
}
STOCKS, WITHOUT_SHARES = ("stock", "deficit round robin", "least attained"), ("auto",)


def run(setting: str, instances: int, seed: int, row: str) -> dict[str, Any]:
    """Return the figures of one run."""
    made, _ = SETTINGS[setting]
    shares = row not in (*STOCKS, *WITHOUT_SHARES)
    fleet = fleet_of(instances, pinned=setting == "flood", shares=shares)
    requests = requests_of(made(instances), seed, fleet)
    dispatcher = ROWS[row](seed)
    policy = None if row in STOCKS else "auto"
    log = FleetRun(fleet, dispatcher, ModelEngine, policy=policy, seed=seed).run(requests).run
    found = {"setting": setting, "instances": instances, "seed": seed, "row": row} | figures(log, setting)
    if isinstance(dispatcher, SharesTogether):
        found |= {"error_s": round(dispatcher.error_s, 3), "bound_s": (instances - 1) * OLDEST_S}
    return found


def figures(log: RunLog, setting: str) -> dict[str, Any]:
    """Return what the tenants got in one run."""
    _, heavy_ones = SETTINGS[setting]
    first = [f"t{i}" for i in range(heavy_ones)]
    met, slow = by_tenant(log), slowdowns(log, PROFILE)
    others = [name for name in met if name not in first]
    ended_s = max(float(one.token_times_s[-1]) for one in log.requests if one.token_times_s.size)
    found = {
        "others": round(100.0 * float(np.mean([met[name] for name in others])), 2),
        "first": round(100.0 * float(np.mean([met[name] for name in first])), 2),
        "tokens_per_s": round(sum(one.token_times_s.size for one in log.requests) / ended_s),
        "refused": round(100.0 * float(np.mean([not one.token_times_s.size for one in log.requests])), 2),
    }
    jain = jain_index([slow[name] for name in others]) if len(others) > 1 else None
    return found if jain is None else found | {"jain": round(jain, 3)}


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the means over seeds as texts."""
    heads = ["others", "first", "tokens_per_s", "refused", "jain", "error_s", "bound_s"]
    shown = [["setting", "instances", "row", *heads]]
    for key in dict.fromkeys((one["setting"], one["instances"], one["row"]) for one in rows):
        own = [one for one in rows if (one["setting"], one["instances"], one["row"]) == key]
        means = [[one[head] for one in own if head in one] for head in heads]
        shown.append([*map(str, key), *(f"{np.mean(values):.3f}" if values else "" for values in means)])
    return shown


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "fleet_tenant_shares.json.gz")
    begun, rows = provenance(), []
    for seed in range(1 if quick else SEEDS):
        for setting in ("burst",) if quick else SETTINGS:
            for instances in INSTANCES[:1] if quick else INSTANCES:
                for name in ("stock", "least attained", "fleet") if quick else ROWS:
                    rows.append(run(setting, instances, seed, name))
                    print(json.dumps(rows[-1]), flush=True)
    print(aligned(table(rows)), end="")
    if out is not None:
        write_result(out, begun | {"profile": PROFILE, "runs": rows})


if __name__ == "__main__":
    main()
