"""The planner's input, from the last reports of the members of a fleet."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sloserve.core.spans import Phase
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.latency import StepLatency
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.shaped import PairLatency, StagedLatency
from sloserve.fleet.contract.reports import AgentReport, Demand, InstanceReport, agent_report, gateway_report
from sloserve.fleet.file_sections import EngineFlags
from sloserve.fleet.fleet import AttachedShape, Fleet
from sloserve.fleet.planning.waiting_groups import HORIZON_S, Group, streamed_groups
from sloserve.fleet.store.records import AgentRecord
from sloserve.scheduler.virtual_queues.contract import FleetPlan, FleetState, InstanceState, RunningSums, Swap
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.swaps import swap_table

ALIVE_S: Final = 5.0
"""Seconds without a sign of life after which a member is left out of plans."""


def serving_of(fleet: Fleet) -> dict[tuple[str, str], Serving]:
    """Return each model's step times and engine size on each kind of device."""
    shapes = {host.device: host.shape for host in fleet.hosts.values()}
    return {
        (model.name, device): serving_with(profile, model.flags, shapes.get(device))
        for model in fleet.models.values()
        for device, profile in model.profiles.items()
    }


def serving_with(profile: Profile, flags: EngineFlags, shape: AttachedShape | None = None) -> Serving:
    """Return the step times and the size of an engine that was started with these flags.

    Args:
        profile: Profile of the model; of a server with a shape, on the devices of one stage or of the decode engine.
        flags: Flags of vLLM that differ from the profile's.
        shape: Use that an attached server makes of its devices; ``None`` for one engine.
    """
    size = EngineSize(
        flags.max_num_seqs or profile.max_num_seqs,
        flags.max_num_batched_tokens or profile.max_num_batched_tokens,
        profile.kv_capacity_tokens,
    )
    if shape is None:
        return Serving(profile, size)
    stages = shape.pipeline_parallel
    latency: StepLatency = profile if stages == 1 else StagedLatency(profile, stages)
    size = replace(size, token_budget=size.token_budget * stages, kv_tokens=size.kv_tokens * stages)
    if shape.prefill is not None:
        budget = shape.prefill.max_num_batched_tokens * shape.prefill_engines
        size = replace(size, token_budget=budget + size.max_num_seqs)
        latency = PairLatency(shape.prefill, shape.prefill_engines, latency)
    return Serving(latency, size)


def plan_settings(fleet: Fleet) -> PlanSettings:
    """Return the settings by which plans of this fleet are weighed."""
    switching = fleet.switching
    return PlanSettings(
        min_active_s=switching.min_active_s, tail_max_wait_s=max(switching.max_wait_s, 1.0), use_idle=True
    )


@dataclass(frozen=True, slots=True)
class LiveMembers:
    """Agents and gateways that are alive, each with the age of its report in seconds."""

    agents: tuple[tuple[AgentReport, float], ...]
    demands: tuple[tuple[Demand, float], ...]

    @classmethod
    def of(cls, rows: Iterable[AgentRecord]) -> "LiveMembers":
        """Return the members in the rows that are recent enough, and that this version can read."""
        young = [row for row in rows if row.age_s <= ALIVE_S]
        agents = [(agent_report(row.state), row.age_s) for row in young]
        gateways = [(gateway_report(row.state), row.age_s) for row in young]
        return cls(
            tuple((report, age_s) for report, age_s in agents if report is not None),
            tuple((demand, age_s) for report, age_s in gateways if report is not None for demand in report.demand),
        )


class Swaps:
    """The table of swap times: measurements of agents, and the values of profiles for the rest."""

    def __init__(self, fleet: Fleet) -> None:
        self._profiles = swap_table(fleet.swaps())
        self._measured: dict[Swap, float] = {}
        self.table: Mapping[Swap, float] = self._profiles

    def note(self, reports: Iterable[AgentReport]) -> None:
        """Take over the swap times that agents measured; the table stays the same object while none of it changes."""
        found: dict[Swap, list[float]] = {}
        for report in reports:
            for one in report.swaps:
                swap = Swap(one.device, one.leaving, one.coming, one.state)
                if swap in self._profiles:
                    found.setdefault(swap, []).append(one.seconds)
        measured = {swap: round(sum(seconds) / len(seconds), 2) for swap, seconds in found.items()}
        if measured != self._measured:
            self._measured, self.table = measured, {**self._profiles, **measured}


def fleet_state(
    now_s: float,
    durable: Iterable[Group],
    members: LiveMembers,
    swap_s: Mapping[Swap, float],
    last: FleetPlan | None,
    *,
    horizon_s: float = HORIZON_S,
) -> tuple[FleetState, dict[int, Group]]:
    """Return the state, and its groups by their references.

    Args:
        now_s: Epoch seconds by the store's clock.
        durable: Groups that the store holds.
        members: Agents and gateways that are alive.
        swap_s: Seconds that each swap takes.
        last: The plan in force, or ``None`` if there is none.
        horizon_s: Seconds within which expected streams count as waiting.
    """
    instances = tuple(_state(now_s - age_s, one) for report, age_s in members.agents for one in report.instances)
    can = Counter(model for instance in instances for model in instance.models)
    groups = [*durable, *streamed_groups(now_s, members.demands, can, horizon_s)]
    named = {group.sums.ref: group for group in groups if group.sums.requests}
    state = FleetState(now_s, tuple(group.sums for group in named.values()), instances, swap_s, last)
    return state, named


def _state(reported_s: float, report: InstanceReport) -> InstanceState:
    """Return the state of an instance, reported at ``reported_s`` by the store's clock."""
    # Running requests end before the coming model is ready, and do not delay it.
    leaves = report.phase is Phase.DRAINING
    return InstanceState(
        report.name,
        report.device,
        report.models,
        _activated_s(reported_s, report),
        reported_s + report.ready_in_s if report.ready_in_s else float("-inf"),
        RunningSums() if leaves else report.running,
        reported_s + (report.ready_in_s if leaves else report.drain_s),
    )


def _activated_s(reported_s: float, report: InstanceReport) -> float:
    """Return the time when the active model came or will come, by the store's clock; -inf if there is none.

    From that time the model stays for its minimum time.
    """
    if report.active_for_s is not None:
        return reported_s - report.active_for_s
    return reported_s + report.ready_in_s if report.active is not None else float("-inf")
