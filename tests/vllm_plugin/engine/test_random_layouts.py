"""Blocks held and taken in KV caches of random groups, against vLLM's own scheduler."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups
from tests.seeds import seeds

pytestmark = pytest.mark.vllm

MAX_LEN = 512


def random_groups(rng: np.random.Generator) -> tuple[KVGroups, ...]:
    """One to three kinds; Mamba states at chunk ends are none of them, whose counts are bounds."""
    size = int(rng.choice([8, 16, 32]))
    rules = [
        {},
        {"window_tokens": int(rng.integers(3, 200))},
        {"chunk_tokens": size * int(rng.integers(1, 12))},
        {"window_tokens": STATE_WINDOW},
    ]
    kinds = rng.choice(len(rules), int(rng.integers(1, 4)), replace=False).tolist()
    return tuple(KVGroups(int(rng.integers(1, 4)), size, **rules[kind]) for kind in kinds)


@pytest.mark.parametrize("seed", seeds(2, 10))
@pytest.mark.parametrize("policy", [None, "auto"])
def test_held_is_vllm_s_and_taken_is_never_more_than_foreseen(
    build: Callable[..., Any], request_of: Callable[..., Any], seed: int, policy: str | None
) -> None:
    from sloserve.vllm_plugin.engine import compat
    from sloserve.vllm_plugin.kv_groups import layout_of

    rng = np.random.default_rng(seed)
    groups = random_groups(rng)
    size: dict[str, Any] = {
        "block_size": groups[0].block_size,
        "kv_groups": groups,
        "max_num_batched_tokens": int(rng.integers(40, 200)),
        "max_num_seqs": 8,
        "max_model_len": MAX_LEN,
        "enable_prefix_caching": False,
    }
    layout = layout_of(build(None, kv_blocks=10_000, **size).scheduler)
    most = int(layout.to_admit(np.array([MAX_LEN]))[0])
    engine = build(policy, section={"plan_share": 1.0}, kv_blocks=int(most * rng.uniform(1.05, 3.0)), **size)
    scheduler, checked = engine.scheduler, 0
    free = compat.free_blocks(scheduler)

    def look(output: Any) -> None:
        nonlocal checked
        scheduled = output.num_scheduled_tokens
        served = [r for r in scheduler.running if r.request_id in scheduled]
        before = np.array([r.num_computed_tokens - scheduled[r.request_id] for r in served], np.int64)
        foreseen = sum(int(layout.growth(before[i : i + 1], scheduled[r.request_id])[0]) for i, r in enumerate(served))
        assert free - compat.free_blocks(scheduler) <= foreseen
        computed = np.array([r.num_computed_tokens for r in served], np.int64)
        in_flight = np.array([r.num_in_flight_tokens for r in served], np.int64)
        assert layout.held(computed, in_flight).tolist() == [compat.blocks_held(scheduler, r) for r in served]
        checked += len(served)

    schedule = scheduler.schedule

    def scheduling(*args: Any, **kwargs: Any) -> Any:
        nonlocal free
        free = compat.free_blocks(scheduler)
        return schedule(*args, **kwargs)

    scheduler.schedule = scheduling
    engine.on_step = look
    workload = [
        request_of(f"r{i}", 0.01 * i, int(rng.integers(5, 400)), int(rng.integers(3, 100)), e2e_s=float(1 + i % 5))
        for i in range(16)
    ]
    log = engine.run(workload)
    assert [r.outcome.name for r in log.requests] == ["COMPLETED"] * 16
    assert checked > 300
