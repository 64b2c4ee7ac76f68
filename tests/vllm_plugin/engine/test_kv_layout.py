"""Blocks of every layout of a KV cache, as vLLM's own scheduler counts them, step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups, KVLayout
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from tests.other_vllm import has_mamba_all
from tests.whole import WHOLE, sampled

pytestmark = pytest.mark.vllm

MAX_LEN = 1024
STATE = {"window_tokens": STATE_WINDOW}
LAYOUTS: dict[str, tuple[tuple[KVGroups, ...], bool]] = {  # and whether the prefix cache is on
    "windows alone": ((KVGroups(1, 16, window_tokens=64),), True),
    "gemma-3": ((KVGroups(1, 16), KVGroups(5, 16, window_tokens=128)), True),
    "gpt-oss": ((KVGroups(1, 16), KVGroups(1, 16, window_tokens=64)), True),
    "gpt-oss without cache": ((KVGroups(1, 16), KVGroups(1, 16, window_tokens=64)), False),
    "llama-4": ((KVGroups(1, 16), KVGroups(3, 16, chunk_tokens=256)), True),
    "mamba none": ((KVGroups(1, 64), KVGroups(3, MAX_LEN, **STATE)), False),
    "mamba all": ((KVGroups(1, 64), KVGroups(3, 64, **STATE)), True),
    "mamba align": ((KVGroups(1, 64), KVGroups(3, 64, states=2)), True),
    "mamba alone": ((KVGroups(1, MAX_LEN, **STATE),), False),
}
POLICIES = ["edf:preempt_margin_s=0.1", "econo", "andes", "auto"]


class Watched:
    """An engine that serves the workload of ``serve``, and what it and the layout count at each step."""

    def __init__(self, engine: Any, layout: KVLayout) -> None:
        self.steps: list[tuple[tuple[str, int], ...]] = []
        self.checked = self.above = self.preempted = 0
        self._scheduler, self._layout = engine.scheduler, layout
        engine.on_step = self._look
        preempt = engine.scheduler._preempt_request

        def preempting(*args: Any, **kwargs: Any) -> None:
            self.preempted += 1
            preempt(*args, **kwargs)

        engine.scheduler._preempt_request = preempting

    def _look(self, output: Any) -> None:
        from sloserve.vllm_plugin.engine import compat

        self.steps.append(tuple(output.num_scheduled_tokens.items()))
        for request in self._scheduler.running:
            if request.request_id not in output.num_scheduled_tokens:
                continue
            computed, in_flight = request.num_computed_tokens, request.num_in_flight_tokens
            counted = int(self._layout.held(np.array([computed]), np.array([in_flight]))[0])
            held = compat.blocks_held(self._scheduler, request)
            assert held <= counted, (request.request_id, computed, in_flight)
            self.checked += 1
            self.above += counted - held


def serve(build: Callable[..., Any], request_of: Callable[..., Any], name: str, policy: str | None) -> tuple[Any, Any]:
    """Serves 40 requests with far too few blocks. Returns what was watched, and the log."""
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.vllm_plugin.kv_groups import layout_of

    groups, cache = LAYOUTS[name]
    size = {
        "block_size": groups[0].block_size,
        "kv_groups": groups,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 160,
        "max_model_len": MAX_LEN,
        "enable_prefix_caching": cache,
    }
    layout = layout_of(build(None, kv_blocks=10_000, **size).scheduler)
    assert layout == EngineSettings(10_000, **size).layout
    blocks = int(max(5 * layout.mean(np.array([300.0]))[0], layout.to_admit(np.array([MAX_LEN]))[0] + 4))
    engine = build(policy, section={"plan_share": 1.0}, kv_blocks=blocks, **size)
    watched = Watched(engine, layout)
    rng, workload = np.random.default_rng(5), []
    for i in range(40):
        prompt = int(rng.integers(20, 600))
        targets = {"e2e_s": (9.0, 30.0, 2.5, 60.0)[i % 4], "ttft_s": 2.0}
        shared = {"prefix_ids": tuple(range(-(-prompt // 16)))} if cache and i % 2 else {}
        workload.append(request_of(f"r{i}", 0.02 * i, prompt, int(rng.integers(4, 200)), **targets, **shared))
    log = engine.run(workload)
    assert [r.outcome.name for r in log.requests] == ["COMPLETED"] * 40
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # all came back
    return watched, log


@pytest.mark.parametrize("name", sampled(LAYOUTS, ["windows alone", "llama-4", "mamba align"]))
def test_every_layout_is_counted_as_vllm_counts_it(
    build: Callable[..., Any], request_of: Callable[..., Any], name: str
) -> None:
    if name == "mamba all" and not has_mamba_all():
        pytest.skip("this vLLM has no Mamba mode `all`")
    stock, _ = serve(build, request_of, name, None)
    assert stock.checked > 1000
    assert stock.above <= (0.05 * stock.checked if name == "mamba align" else 0)
    fcfs, _ = serve(build, request_of, name, "fcfs")
    assert fcfs.steps == stock.steps
    preempted = stock.preempted
    for policy in POLICIES if WHOLE else ("econo", "auto"):
        watched, log = serve(build, request_of, name, policy)
        assert watched.above <= (0.1 * watched.checked if name == "mamba align" else 0)
        assert log.counters["plans"] > 0 and not log.counters.get("plan_errors", 0)
        preempted += watched.preempted
    assert preempted or "alone" in name  # there one layer's blocks are given back as fast as they are taken


@pytest.mark.parametrize("tokens", sampled([150, 528, 600, 2048], [150]))
def test_no_limit_on_a_step_holds_a_prompt_up(
    build: Callable[..., Any], request_of: Callable[..., Any], tokens: int
) -> None:
    """With states at multiples of 528 tokens, 100 decodes beside, and a limit that leaves less than 528."""

    class Limits(Policy):
        needs = frozenset({"arrival_s"})

        def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
            return Plan(token_budget=tokens)

    engine = build(
        Limits(),
        section={"plan_share": 1.0},
        kv_blocks=4000,
        block_size=528,
        kv_groups=(KVGroups(1, 528), KVGroups(3, 528, states=2)),
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_model_len=4096,
        enable_prefix_caching=True,
    )
    decodes = [request_of(f"d{i}", 0.0, 20, 700) for i in range(100)]
    log = engine.run([*decodes, request_of("prompt", 1.0, 3000, 4)])
    prompt = log.requests[-1]
    # 0.10 s with 2,048 tokens; until the decodes had ended, 3 s, with 600 before limits were moved.
    assert prompt.token_times_s[0] - 1.0 < (0.8 if tokens == 150 else 0.25)


def test_a_hit_that_has_not_changed_is_found_by_a_few_questions(
    build: Callable[..., Any], request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prefix of 60 blocks, that all groups hold, then only the front of, and then not at all."""
    from sloserve.vllm_plugin.engine import prefix_cache
    from sloserve.vllm_plugin.kv_groups import layout_of

    groups = (KVGroups(1, 16), KVGroups(2, 16, window_tokens=64))
    engine = build("auto", kv_blocks=300, kv_groups=groups, max_model_len=MAX_LEN, enable_prefix_caching=True)
    scheduler, found = engine.scheduler, {}
    monkeypatch.setattr(scheduler, "add_request", lambda request: found.setdefault(request.request_id, request))
    engine._add([request_of("again", 0.0, 960, 4, prefix_ids=(1, 2))], 0.0)
    monkeypatch.undo()
    request, layout, pool, asked = found["again"], layout_of(scheduler), scheduler.kv_cache_manager.block_pool, [0]
    look_up = pool.get_cached_block

    def counting(*args: Any) -> Any:
        asked[0] += 1
        return look_up(*args)

    monkeypatch.setattr(pool, "get_cached_block", counting)
    engine.run([request_of("first", 0.0, 960, 4, prefix_ids=(1, 2))])
    hit = prefix_cache.hit_tokens(scheduler, layout, request, 0)
    assert hit == 944 and asked[0] > 60
    asked[0] = 0
    assert prefix_cache.hit_tokens(scheduler, layout, request, hit) == hit
    assert asked[0] <= 2 * 3
    assert prefix_cache.hit_tokens(scheduler, layout, request, 480) == hit  # a longer one has come
    pool.evict_blocks({look_up(request.block_hashes[58], [0])[0].block_id})
    fresh = prefix_cache.hit_tokens(scheduler, layout, request, 0)
    assert prefix_cache.hit_tokens(scheduler, layout, request, hit) == fresh < hit
