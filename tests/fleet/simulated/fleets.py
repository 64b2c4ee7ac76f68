"""Small fleets and what arrives at them."""

from collections.abc import Sequence
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import ClassTable
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.dispatchers.by_name import FleetRunName
from sloserve.fleet.simulated.log import FleetLog
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine

TEXT = """
models:
{models}
hosts: {{n: {{device: h100, devices: {devices}, host_memory_gib: {memory_gib}, swap_space_gib: {swap_gib}}}}}
switching: {{min_active_s: {min_active_s}, max_wait_s: {max_wait_s}, drain_max_s: {drain_max_s}}}
settings: {{policy: edf, classes: {{urgent: {{rank: 0, e2e_ms: 20000}}, batch: {{rank: 1, e2e_ms: 300000}}}}}}
"""


def fleet_of(models: Sequence[str] = ("a", "b"), **given: float) -> Fleet:
    """A fleet of one profile. Host memory holds all that sleeps, and instances may switch at once, unless given."""
    values = {
        "devices": 1,
        "memory_gib": 999,
        "swap_gib": 0,
        "min_active_s": 0.0,
        "max_wait_s": 5.0,
        "drain_max_s": 600.0,
    } | given
    lines = "\n".join(f"  {name}: {{profile: h100-llama3-8b, flags: {{max_num_seqs: 32}}}}" for name in models)
    return parse_fleet(TEXT.format(models=lines, **values))


def scarce_fleet(swap_gib: float = 16.0) -> Fleet:
    """One instance of one model whose KV is short. swap_gib: of the host."""
    text = TEXT.format(
        models="  a: {profile: a100-opt-13b-12gb}",
        devices=1,
        memory_gib=0,
        swap_gib=swap_gib,
        min_active_s=0.0,
        max_wait_s=5.0,
        drain_max_s=600.0,
    )
    return parse_fleet(text.replace("device: h100", "device: a100"))


def request(
    name: str,
    model: str,
    arrival_s: float,
    output_tokens: int = 20,
    cls: str = "urgent",
    prompt_tokens: int = 50,
    prefix_ids: tuple[int, ...] = (),
) -> WorkloadRequest:
    classes: ClassTable = fleet_of().settings.classes
    slo = classes.slo(cls, classes[cls].targets)
    return WorkloadRequest(name, arrival_s, prompt_tokens, output_tokens, slo, model=model, prefix_ids=prefix_ids)


def run(fleet: Fleet, name: str, requests: Sequence[WorkloadRequest], engine_class: Any = ModelEngine) -> FleetLog:
    """One run of the dispatcher ``name``, with the policy of the fleet where engines are not stock's."""
    parsed = FleetRunName.parse(name)
    policy = parsed.engine_policy("edf")
    prefixes = any(request.prefix_ids for request in requests)
    return FleetRun(
        fleet, parsed.make(0), engine_class, policy=policy, oracle=parsed.oracle, prefix_caching=prefixes
    ).run(requests)
