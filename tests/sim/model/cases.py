"""Runs on which vLLM's scheduler and the model are compared: policies crossed with what makes vLLM's rules differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups
from sloserve.core.request import PREFIX_BLOCK_TOKENS, WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import constant_cost, planning_costs
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.sim.workloads.tasks.react import react_tasks
from sloserve.sim.workloads.tasks.source import TaskHints, call_request
from sloserve.sim.workloads.workload_registry import workload

ROUNDS = 4

SLOTS = EngineSettings(kv_blocks=4000, max_num_seqs=12, max_num_batched_tokens=512, max_model_len=4096)
SCARCE = EngineSettings(kv_blocks=260, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=4096)
LONG = EngineSettings(kv_blocks=2000, max_num_seqs=24, max_num_batched_tokens=256, max_model_len=8192)
WIDE = EngineSettings(kv_blocks=3000, max_num_seqs=48, max_num_batched_tokens=4096, max_model_len=8192)
SWAPPED = replace(SCARCE, swap_space_gib=0.2, link_gb_per_s=2.0, swapping="always")
CACHED = EngineSettings(
    kv_blocks=1100, max_num_seqs=24, max_num_batched_tokens=1024, max_model_len=8192, enable_prefix_caching=True
)


def generated(name: str, n: int, rps: float, seed: int) -> list[WorkloadRequest]:
    """The first requests of a named workload."""
    return workload(name).requests(n, seed, rps)


def chats_in_rounds(n: int, rps: float, seed: int) -> list[WorkloadRequest]:
    """Chats of some rounds: each prompt begins with the one before, and every other chat with the same words.

    One prompt in eight shares nothing, and one is that of the request before, to the last token.
    """
    rng = np.random.default_rng([seed, 31])
    requests: list[WorkloadRequest] = []
    for request in workload("sharegpt-poisson").requests(n, seed, rps):
        chat, turn = int(rng.integers(n // ROUNDS)), int(rng.integers(1, ROUNDS + 1))
        ids = tuple([0] * (chat % 2) + [1 + ROUNDS * chat + k for k in range(turn)])
        prompt = int((len(ids) - 1) * PREFIX_BLOCK_TOKENS + rng.integers(1, PREFIX_BLOCK_TOKENS))
        kind = int(rng.integers(8))
        if kind == 0:
            requests.append(request)
        elif kind == 1 and requests:
            requests.append(replace(requests[-1], request_id=request.request_id, arrival_s=request.arrival_s))
        else:
            requests.append(replace(request, prompt_tokens=prompt, prefix_ids=ids))
    assert [r.request_id for r in requests] == [f"r{i}" for i in range(n)]
    return requests


def calls_of_tasks(n: int, seed: int, gap_s: float, *, states: bool) -> list[WorkloadRequest]:
    """The first calls of agents' tasks in an open loop, each some seconds after the one before.

    ``states`` says whether the calls state their task, its deadline, and which one is the last.
    """
    hints = TaskHints(last=True) if states else TaskHints(task=False)
    requests = []
    for number, plan in enumerate(react_tasks(n, seed)):
        begins_s = 0.4 * number
        due = replace(plan, calls=plan.calls[:5], due_s=begins_s + 12.0)
        slo = DEFAULT_CLASSES.slo(None, Targets())
        requests += [call_request(due, i, begins_s + gap_s * i, slo, hints) for i in range(len(due.calls))]
    return sorted(requests, key=lambda request: request.arrival_s)


@dataclass(frozen=True)
class Case:
    """One run. policy: ``None`` for stock. plan_cost_us: of every plan, ``None`` for the shipped table; plans that cost
    much are used again, and get stale. aborts: when clients of requests go away. tenant_shares: the setting.
    """

    name: str
    policy: str | None
    settings: EngineSettings
    requests: Sequence[WorkloadRequest]
    plan_cost_us: float | None = None
    aged_after_s: float = 1.0
    noise: float = 0.1
    aborts: Mapping[str, float] | None = None
    tenant_shares: Mapping[str, Any] | None = None

    @property
    def profile(self) -> Profile:
        return load_profile("h100-llama3-8b")

    @property
    def virtual_time(self) -> dict[str, Any]:
        """What else an engine in virtual time is told."""
        costs = planning_costs() if self.plan_cost_us is None else constant_cost(self.plan_cost_us)
        return {"planning_costs": costs, "noise": StepNoise(1, self.noise)}

    @property
    def config(self) -> dict[str, Any] | None:
        if self.policy is None:
            return None
        names = dict.fromkeys([*DEFAULT_CLASSES.names, *(request.slo.slo_class.name for request in self.requests)])
        classes = {
            name: {"rank": rank, "aged_after_s": self.aged_after_s, "tpot_ms": 30.0, "ttft_ms": 400.0}
            for rank, name in enumerate(names)
        }
        section = {"policy": self.policy, "classes": classes, "swapping": self.settings.swapping}
        return {"sloserve": section | ({} if self.tenant_shares is None else {"tenant_shares": self.tenant_shares})}


def cases() -> Iterator[Case]:
    """Those of the regular test."""
    for policy in (None, "fcfs", "edf", "andes"):
        yield Case("slots-bind", policy, SLOTS, generated("sharegpt-gamma3", 40, 30.0, 1))
    for policy in (None, "fcfs", "edf", "sjf:preempt=true:length=oracle", "econo", "priority"):
        yield Case("kv-scarce", policy, SCARCE, generated("sharegpt-bursts", 40, 20.0, 2))
    for policy in (None, "edf", "sarathi", "sa"):
        yield Case("long-prompts", policy, LONG, generated("multiround", 40, 12.0, 3))
    for policy in ("fcfs:step_budget=true", "edf:step_budget=true"):
        yield Case("step-budget", policy, WIDE, generated("multiround", 40, 30.0, 7))
    for policy in (None, "edf", "econo:length=oracle", "chaos"):
        yield Case("prefix-cache", policy, CACHED, chats_in_rounds(40, 25.0, 4))
    for policy in ("fcfs", "edf:preempt_margin_s=0.1", "andes"):
        yield Case("swap", policy, SWAPPED, generated("sharegpt-bursts", 40, 20.0, 2))
    by_cost = replace(SCARCE, swap_space_gib=4.0, link_gb_per_s=0.5)
    yield Case("swap-by-cost", "chaos:pause=0.3", by_cost, generated("sharegpt-bursts", 40, 20.0, 2))
    several = replace(CACHED, kv_blocks=520, swap_space_gib=1.0, link_gb_per_s=1.0, swapping="always")
    yield Case("swap-prefix-cache", "chaos", several, chats_in_rounds(40, 25.0, 4))
    kept = replace(CACHED, kv_blocks=700, swap_space_gib=2.0, link_gb_per_s=8.0)
    for policy, states in (("auto", True), ("auto", False), ("fcfs", True), ("chaos", True)):
        name = "tasks-kept" if states else "prompts-kept"
        yield Case(name, policy, kept, calls_of_tasks(15, 8, 2.5, states=states))
    yield Case("pauses", "chaos:pause=0.9", SCARCE, generated("alpaca-poisson", 50, 60.0, 5))
    yield Case("reused-plans", "andes", SCARCE, generated("reading-speed-gamma3", 50, 25.0, 6), plan_cost_us=3000.0)


MAX_LEN = 1024
STATE = {"window_tokens": STATE_WINDOW}
LAYOUTS: dict[str, tuple[KVGroups, ...]] = {
    "windows": (KVGroups(1, 16, window_tokens=64),),
    "gemma-3": (KVGroups(1, 16), KVGroups(5, 16, window_tokens=128)),
    "gpt-oss": (KVGroups(1, 16), KVGroups(1, 16, window_tokens=64)),
    "two-windows": (KVGroups(1, 16, window_tokens=48), KVGroups(1, 16), KVGroups(2, 16, window_tokens=200)),
    "llama-4": (KVGroups(1, 16), KVGroups(3, 16, chunk_tokens=256)),
    "chunks": (KVGroups(2, 16, chunk_tokens=128),),
    "mamba-none": (KVGroups(1, 64), KVGroups(3, MAX_LEN, **STATE)),
    "mamba-all": (KVGroups(1, 64), KVGroups(3, 64, **STATE)),
    "mamba-align": (KVGroups(1, 64), KVGroups(3, 64, states=2)),
    "mamba-align-windows": (KVGroups(1, 64, window_tokens=150), KVGroups(1, 64), KVGroups(2, 64, states=2)),
    "mamba-alone": (KVGroups(1, MAX_LEN, **STATE),),
}


OFTEN = (None, "chaos")
OTHERS = ("edf:preempt_margin_s=0.1", "econo", "auto")
"""Policies that layouts are tried under."""


def layout_cases() -> Iterator[Case]:
    """Every layout under several policies, where KV holds a few requests; with a prefix cache where that is known."""
    for name, groups in LAYOUTS.items():
        engine = EngineSettings(
            kv_blocks=10_000,
            block_size=groups[0].block_size,
            max_num_seqs=16,
            max_num_batched_tokens=160,
            max_model_len=MAX_LEN,
            kv_groups=groups,
        )
        layout = engine.layout
        few = max(5 * layout.mean(np.array([300.0]))[0], layout.to_admit(np.array([MAX_LEN]))[0] + 4)
        engine = replace(engine, kv_blocks=int(few))
        of_one_size = len({one.block_size for one in groups}) == 1 and groups[0].block_size < MAX_LEN
        for policy in (*OFTEN, *OTHERS):
            yield Case(name, policy, engine, prompts_by_halves(40, shared=False))
            if of_one_size:
                cached = replace(engine, enable_prefix_caching=True)
                yield Case(f"{name}-cache", policy, cached, prompts_by_halves(40, shared=True))


def swapped_layout_cases() -> Iterator[Case]:
    """Every layout but one with swap space, with a prefix cache where that is known.

    Swap space is refused with Mamba's mode `all`.
    """
    for case in layout_cases():
        if case.policy == "chaos" and not case.name.startswith("mamba-all"):
            engine = replace(case.settings, swap_space_gib=2.0, link_gb_per_s=4.0, swapping="always")
            yield replace(case, name=f"swap-{case.name}", settings=engine)


FEW_BLOCKS = {
    "h100-gpt-oss-20b": 900,
    "h100-gemma3-12b": 2500,
    "h100x2-qwen3-next-80b": 40,
    "h100-granite4-small": 100,
}


def profile_cases() -> Iterator[Case]:
    """The engines of the shipped profiles of hybrid models with few of their blocks, prefix cache on and off."""
    for name, blocks in FEW_BLOCKS.items():
        for caches, policy in product((False, True), (None, "edf")):
            engine = EngineSettings.of_profile(
                load_profile(name),
                kv_blocks=blocks,
                max_num_seqs=32,
                max_model_len=8192,
                enable_prefix_caching=caches,
            )
            requests = chats_in_rounds(40, 25.0, 4) if caches else generated("multiround", 40, 12.0, 3)
            yield Case(f"{name}-cache" if caches else name, policy, engine, requests)


def prompts_by_halves(n: int, *, shared: bool) -> list[WorkloadRequest]:
    """Prompts of 20 to 600 tokens. shared: every other one begins with what the longest of them begins with."""
    rng = np.random.default_rng(5)
    requests = []
    for i in range(n):
        prompt = int(rng.integers(20, 600))
        targets = Targets(ttft_s=2.0, e2e_s=(9.0, 30.0, 2.5, 60.0)[i % 4])
        ids = tuple(range(-(-prompt // PREFIX_BLOCK_TOKENS))) if shared and i % 2 else ()
        slo = DEFAULT_CLASSES.slo("interactive", targets)
        requests.append(WorkloadRequest(f"r{i}", 0.02 * i, prompt, int(rng.integers(4, 200)), slo, prefix_ids=ids))
    return requests
