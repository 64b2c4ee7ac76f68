"""Fleets to plan for: h100s with models of one size, whose swaps take seconds."""

import math
from dataclasses import replace

from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums, InstanceState, ModelState, RunningSums
from sloserve.scheduler.virtual_queues.model_swap import ModelSwap
from sloserve.scheduler.virtual_queues.swaps import swap_table

MODELS = ("chat", "code", "tail")
SERVING = Serving(load_profile("h100-llama3-8b"), EngineSize(64, 2048, 400_000))
SERVING_OF = {(model, "h100"): SERVING for model in MODELS}
SWAP_S = swap_table({(model, "h100"): ModelSwap(16 * 10**9, 1.0, 1.0, 9.0) for model in MODELS})


def group(ref: int, model: str, requests: int, due_s: float = math.inf, arrival_s: float = 0.0) -> GroupSums:
    """Replies of 200 tokens: 64 of them are about two seconds of work."""
    return GroupSums(
        ref, model, requests, 200.0 * requests, 200.0 * requests, 200.0**2 * requests, due_s, due_s, arrival_s
    )


def instance(name: str, active: str | None = "chat", running: RunningSums | None = None) -> InstanceState:
    states = {model: ModelState.ACTIVE if model == active else ModelState.WARM for model in MODELS}
    return InstanceState(name, "h100", states, running=running or RunningSums())


def state(groups: list[GroupSums], *instances: InstanceState, now_s: float = 0.0) -> FleetState:
    return FleetState(now_s, tuple(groups), instances or (instance("a"),), SWAP_S)


def cold(one: InstanceState, *models: str) -> InstanceState:
    return replace(one, models={**one.models, **dict.fromkeys(models, ModelState.COLD)})
