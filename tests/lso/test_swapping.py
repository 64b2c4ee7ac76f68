"""Recompute or swap: what each costs, where the one overtakes the other, and what a preemption then costs a policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.lso.swapping import (
    cheaper_later,
    preemption_price,
    recompute_s,
    retention_cost_s,
    swap_s,
    swap_worth_s,
)
from tests.snapshots import make_snapshot

PROFILES = {name: load_profile(name) for name in profile_names()}
profiles = st.sampled_from(list(PROFILES.values()))
contexts = st.integers(1, 40_000)
loads = st.builds(
    lambda n, each: StepLoad(decode_seqs=n, decode_context_tokens=n * each), st.integers(0, 200), contexts
)

LAYOUT = KVLayout.full(16)


def pool_of(profile: Profile, link: float = 1.0, **others: float) -> SwapFacts:
    block_bytes = profile.kv_bytes_per_token * profile.block_size
    rate = profile.link_bandwidth_gb_per_s * 1e9 * link
    facts = SwapFacts(block_bytes, profile.kv_blocks, profile.kv_blocks, rate)
    return replace(facts, **others)  # type: ignore[arg-type]


def engine_of(profile: Profile, swap: SwapFacts | None) -> EngineFacts:
    return EngineFacts(
        0, profile.kv_blocks, KVLayout.full(profile.block_size), 256, 2048, 0, step_latency=profile, swap=swap
    )


def stepwise_s(profile: Profile, tokens: int, running: StepLoad) -> float:
    """As recompute_s, chunk by chunk."""
    chunk, taken_s, done = 2048 - running.decode_seqs, 0.0, 0
    seqs, context = running.decode_seqs, running.decode_context_tokens
    while done < tokens:
        new = min(chunk, tokens - done)
        with_it = StepLoad(new + 1, 2, seqs, context, new * (new + 2 * done) + 1)
        taken_s += profile.step_s(with_it) - profile.step_s(StepLoad(1, 1, seqs, context, 1))
        done += new
    return taken_s


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("tokens", [1, 500, 2048, 30_000])
def test_recomputation_takes_its_chunks_beside_what_runs(name: str, tokens: int) -> None:
    running = StepLoad(decode_seqs=64, decode_context_tokens=32_000)
    found = recompute_s(tokens, running, engine_of(PROFILES[name], None))
    assert found == pytest.approx(stepwise_s(PROFILES[name], tokens, running), rel=0.01, abs=1e-9)


@given(profiles, contexts, contexts, loads)
def test_recomputation_never_falls_with_the_context(profile: Profile, a: int, b: int, running: StepLoad) -> None:
    engine = engine_of(profile, None)
    low, high = (recompute_s(tokens, running, engine) for tokens in sorted((a, b)))
    assert 0.0 <= low <= high * (1 + 1e-9) + 1e-12


@given(
    profiles, contexts, contexts, st.floats(0.01, 2.0), st.floats(1.0, 4.0), st.floats(0.0, 9.0), st.floats(0.0, 9.0)
)
def test_swapping_costs_more_behind_a_queue_and_less_on_a_faster_link(
    profile: Profile, a: int, b: int, link: float, faster: float, queued_s: float, wait_s: float
) -> None:
    pool = pool_of(profile, link)
    cost = swap_s(a, LAYOUT, pool)
    assert cost > 0.0
    assert swap_s(min(a, b), LAYOUT, pool) <= swap_s(max(a, b), LAYOUT, pool)
    assert swap_s(a, LAYOUT, replace(pool, bytes_per_s=pool.bytes_per_s * faster)) <= cost
    for queue in ("out_s", "in_s"):
        assert swap_s(a, LAYOUT, replace(pool, **{queue: queued_s})) >= cost  # type: ignore[arg-type]
    assert swap_s(a, LAYOUT, replace(pool, wait_s=wait_s)) <= cost


@given(profiles, contexts, loads, st.floats(0.1, 1.0))
def test_nothing_is_swapped_that_is_computed_sooner(
    profile: Profile, tokens: int, running: StepLoad, link: float
) -> None:
    """Copies that nobody waits for otherwise, out and in, count in full."""
    pool = pool_of(profile, link)
    worth_s = swap_worth_s(tokens, running, engine_of(profile, pool))
    copies_s = 2.0 * -(-tokens // profile.block_size) * pool.block_bytes / pool.bytes_per_s
    again_s = recompute_s(tokens, running, engine_of(profile, pool))
    assert worth_s <= 0.0 or again_s > copies_s


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("h100-llama2-7b", 4097, 4097),
        ("a100-llama2-7b", 128, 352),
        ("h100-llama3-8b", 208, 304),
        ("h200-llama3-8b", 144, 224),
        ("a100-llama3-70b-tp4", 16, 32),
        ("a100-opt-13b", 16, 16),
        ("v100x2-qwen2.5-7b", 16, 16),
    ],
)
@pytest.mark.parametrize("seqs", [32, 64])
def test_the_context_from_which_on_swapping_is_cheaper(name: str, least: int, most: int, seqs: int) -> None:
    """Without a queue, and for a victim that would run on at once."""
    profile = PROFILES[name]
    engine = engine_of(profile, pool_of(profile))
    running = StepLoad(decode_seqs=seqs, decode_context_tokens=seqs * 500)
    wins = [tokens for tokens in range(16, 4097, 16) if swap_worth_s(tokens, running, engine) > 0.0]
    assert least <= (wins[0] if wins else 4097) <= most
    assert not wins or wins == list(range(wins[0], 4097, 16))  # it stays cheaper


def test_a_victim_that_waits_long_costs_packing_and_what_staging_does_not_hold() -> None:
    profile = PROFILES["h100-llama3-8b"]
    pool = pool_of(profile, wait_s=10.0)
    held = pool.staging_bytes // profile.kv_bytes_per_token
    packing_s = 2.0 * profile.kv_bytes_per_token / 0.7e12
    assert swap_s(held, LAYOUT, pool) == pytest.approx(held * packing_s)
    beyond_s = held * profile.kv_bytes_per_token / pool.bytes_per_s
    assert swap_s(2 * held, LAYOUT, pool) == pytest.approx(2 * held * packing_s + beyond_s)
    assert swap_s(held, LAYOUT, replace(pool, out_s=0.5)) == pytest.approx(held * packing_s + 0.5)


def test_kv_of_a_request_that_ends_costs_packing_and_what_steps_cannot_leave_unwritten() -> None:
    profile = PROFILES["h100-llama3-8b"]
    pool, running = pool_of(profile), StepLoad(decode_seqs=64, decode_context_tokens=32_000)
    tokens = 4 * pool.staging_bytes // profile.kv_bytes_per_token
    packing_s = tokens * profile.kv_bytes_per_token / 0.7e12
    rest_s = 3 * pool.staging_bytes / pool.bytes_per_s
    engine = engine_of(profile, pool)
    assert retention_cost_s(tokens, running, engine) == pytest.approx(packing_s + rest_s)
    assert retention_cost_s(tokens, running, replace(engine, free_blocks=1000)) == pytest.approx(packing_s)
    full = replace(pool, out_s=0.5)  # the link has more to copy than these steps take
    step_s = profile.step_s(StepLoad(1984, 1, 64, 32_000, 1984**2))
    left_s = rest_s + 0.5 - 1000 // (1984 // 16 + 65) * step_s
    found = retention_cost_s(tokens, running, replace(engine, free_blocks=1000, swap=full))
    assert found == pytest.approx(packing_s + left_s) and left_s > 0.0
    assert retention_cost_s(0, running, engine) == retention_cost_s(1, running, replace(engine, swap=None)) == 0.0


def test_the_price_of_a_preemption_is_a_share_of_computing_it_again() -> None:
    profile = PROFILES["h100-llama3-8b"]
    running = [{"prompt_tokens": tokens, "computed_tokens": tokens} for tokens in (64, 500, 3000, 20_000)]
    snapshot = make_snapshot(running=running)
    slots = snapshot.running
    assert preemption_price(snapshot.rows, slots, engine_of(profile, None)).tolist() == [1.0] * 4
    price = preemption_price(snapshot.rows, slots, engine_of(profile, pool_of(profile)))
    assert price[0] == 1.0 and (np.diff(price) < 0.0).all() and price[-1] > 0.0
    small = engine_of(profile, pool_of(profile, free_blocks=200))
    assert preemption_price(snapshot.rows, slots, small)[-1] == 1.0  # more than the pool has room for
    assert preemption_price(snapshot.rows, slots[:0], small).size == 0
    full = engine_of(profile, pool_of(profile, free_blocks=0, yielding_blocks=profile.kv_blocks))
    assert preemption_price(snapshot.rows, slots, full).tolist() == price.tolist(), "it displaces KV of ended requests"


class Noted:
    """Steps that take as long as they have tokens; notes their loads."""

    def __init__(self, per_token_s: float) -> None:
        self.per_token_s = per_token_s
        self.loads: list[StepLoad] = []

    def step_s(self, load: StepLoad) -> float:
        self.loads.append(load)
        return 1.0 + self.per_token_s * load.prefill_tokens

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        raise NotImplementedError


def test_drafts_of_the_decodes_leave_less_room_for_chunks() -> None:
    engine = replace(engine_of(PROFILES["h100-llama3-8b"], None), step_latency=(steps := Noted(0.01)), token_budget=100)
    recompute_s(500, StepLoad(decode_seqs=10), replace(engine, decode_tokens=4))
    assert max(load.prefill_tokens for load in steps.loads) - 1 == 100 - 10 * 4


def test_a_preemption_is_priced_beside_all_that_runs() -> None:
    snapshot = make_snapshot(running=[{"prompt_tokens": 100, "output_tokens": 30}, {"prompt_tokens": 50}])
    engine = engine_of(PROFILES["h100-llama3-8b"], pool_of(PROFILES["h100-llama3-8b"]))
    preemption_price(snapshot.rows, snapshot.running, replace(engine, step_latency=(steps := Noted(0.01))))
    assert {(load.decode_seqs, load.decode_context_tokens) for load in steps.loads} == {(2, 180)}


def test_swapping_saves_nothing_where_computing_again_costs_nothing() -> None:
    snapshot = make_snapshot(running=[{"prompt_tokens": 100}])
    engine = replace(
        engine_of(PROFILES["h100-llama3-8b"], pool_of(PROFILES["h100-llama3-8b"])), step_latency=Noted(0.0)
    )
    assert preemption_price(snapshot.rows, snapshot.running, engine).tolist() == [1.0]


def test_a_cheap_victim_affords_its_wait_for_another_turn_where_keys_are_times() -> None:
    key, price = np.array([100.0, 100.0]), np.array([0.1, 1.0])
    # A margin of 30 s: 3 s are enough for the first, unless preempted requests of late waited longer.
    assert cheaper_later(key, 30.0, price).tolist() == pytest.approx([127.0, 100.0])
    assert cheaper_later(key, 30.0, price, wait_s=2.0).tolist() == pytest.approx([127.0, 100.0])
    assert cheaper_later(key, 30.0, price, wait_s=12.0).tolist() == pytest.approx([118.0, 100.0])
    assert cheaper_later(key, 30.0, price, wait_s=1e9).tolist() == [100.0, 100.0]
    assert cheaper_later(key, 0.0, price, wait_s=1e9).tolist() == [100.0, 100.0]
