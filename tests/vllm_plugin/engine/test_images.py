"""Prompts with images under plans, where vLLM's encoder computes or keeps less than a step has tokens.

vLLM gives the encoder as many tokens a step as the step has. But a chunk that ends inside an image takes all of it, and
the encoder's cache keeps it until the prompt is past it: several prompts at once find either full.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.policy import Plan, Snapshot
from sloserve.scheduler.registry import main_policies
from tests.vllm_plugin.engine.test_scheduler_hooks import Scripted
from tests.vllm_plugin.engine.test_staying_alive import step

pytestmark = pytest.mark.vllm

IMAGE, STEP, REQUESTS = 24, 96, 24


def served(
    build: Callable[..., Any], request_of: Callable[..., Any], policy: Any, encoder_tokens: int, is_whole: bool
) -> tuple[float, list[int]]:
    """Serves prompts of one to three images. Returns when the last ends, and what the encoder computed in each step.

    encoder_tokens: in a step, and in its cache. is_whole: whether no chunk may divide an image.
    """
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    engine = build(policy, section={"plan_share": 1.0}, max_num_batched_tokens=STEP, max_num_seqs=12, kv_blocks=70)
    scheduler = engine.scheduler
    scheduler.max_num_encoder_input_tokens = encoder_tokens
    scheduler.encoder_cache_manager = EncoderCacheManager(encoder_tokens)
    scheduler.scheduler_config.disable_chunked_mm_input = is_whole
    add = scheduler.add_request
    computed: list[int] = []
    rng = np.random.default_rng(3)

    def with_images(request: Any) -> None:
        offset = int(rng.integers(0, 12))
        while offset + IMAGE < request.num_prompt_tokens:
            name = f"{request.request_id}-{offset}"
            place = PlaceholderRange(offset=offset, length=IMAGE)
            request.mm_features.append(MultiModalFeatureSpec(None, "image", name, place))
            offset += IMAGE + int(rng.integers(0, 30))
        add(request)

    def look(output: Any) -> None:
        requests = scheduler.requests
        taken = [requests[name].mm_features[i] for name, some in output.scheduled_encoder_inputs.items() for i in some]
        computed.append(sum(one.mm_position.length for one in taken))

    scheduler.add_request = with_images
    engine.on_step = look
    workload = [
        request_of(f"r{i}", 0.01 * i, int(rng.integers(30, 160)), int(rng.integers(2, 20)), e2e_s=(0.5, 9.0)[i % 2])
        for i in range(REQUESTS)
    ]
    log = engine.run(workload)
    assert [r.outcome.name for r in log.requests] == ["COMPLETED"] * REQUESTS
    assert not log.counters.get("internal_errors", 0) and not log.counters.get("plan_errors", 0)
    assert scheduler.encoder_cache_manager.num_freeable_slots == encoder_tokens  # nobody holds an image any more
    return max(float(r.token_times_s[-1]) for r in log.requests), computed


def preempting_in_turn() -> Scripted:
    """Every third step another request loses what it has and waits behind all others; steps are short."""
    turns = itertools.count()

    def plan(at: Snapshot) -> Plan:
        turn, running = next(turns), at.running
        victims = running[turn % running.size :][:1] if running.size > 1 and turn % 3 == 0 else running[:0]
        return Plan(preempt=victims, waiting=at.waiting[::-1], token_budget=STEP // 2, prefill_chunk_tokens=IMAGE)

    return Scripted(plan)


@pytest.mark.parametrize(("encoder_tokens", "is_whole"), [(IMAGE, False), (2 * IMAGE, True)])
def test_prompts_with_images_end_whatever_is_planned(
    build: Callable[..., Any], request_of: Callable[..., Any], encoder_tokens: int, is_whole: bool
) -> None:
    """Not a quarter later than under stock, either: no step waits for what the encoder cannot take."""
    stock_s, computed = served(build, request_of, None, encoder_tokens, is_whole)
    assert max(computed) == encoder_tokens
    for policy in (*main_policies(), "auto:step_budget=false", "edf:step_budget=true"):
        last_s, computed = served(build, request_of, policy, encoder_tokens, is_whole)
        assert max(computed) <= encoder_tokens and last_s <= 1.25 * stock_s, policy
    served(build, request_of, preempting_in_turn(), encoder_tokens, is_whole)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_plans_know_which_prompts_vllm_begins(
    build: Callable[..., Any], request_of: Callable[..., Any], lookahead: int
) -> None:
    """As vLLM itself finds out, for any prefix hit, whatever the encoder's cache holds and has room for."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.request import RequestStatus

    engine = build("edf", max_num_batched_tokens=STEP, kv_blocks=70)
    scheduler, rng, begun = engine.scheduler, np.random.default_rng(5), [0, 0]
    scheduler.num_prefill_lookahead = lookahead
    for number in range(400):
        engine._add([request_of(f"r{number}", prompt_tokens=120)], 0.0)
        request, offset = scheduler.requests[f"r{number}"], int(rng.integers(0, 9))
        while offset + 20 < 120:
            length = int(rng.integers(4, 20))
            place = PlaceholderRange(offset=offset, length=length)
            request.mm_features.append(MultiModalFeatureSpec(None, "image", f"image of {length}", place))
            offset += length + int(rng.integers(0, 12))
        scheduler.encoder_cache_manager = cache = EncoderCacheManager(64)
        if rng.random() < 0.5:
            cache.allocate(request, int(rng.integers(0, len(request.mm_features))))
        cache.num_free_slots = cache.num_freeable_slots = room = int(rng.integers(0, 24))
        hit = int(rng.integers(0, 119))
        first, left = scheduler.planner.port.items_to_encode(request, hit)
        assert first <= left
        tokens = scheduler._try_schedule_encoder_inputs(request, hit, 120 - hit, 10_000, lookahead)[1]
        assert (tokens > 0) == (first <= room), (hit, room, [one.mm_position for one in request.mm_features])
        begun[tokens > 0] += 1
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    assert min(begun) >= 20


@pytest.mark.parametrize(("offset", "hit", "is_cached", "victims"), [
    (0, 0, False, 0), (8, 0, False, 1), (0, 16, False, 0), (0, 32, False, 1), (0, 0, True, 1)
])  # fmt: skip
def test_a_victim_makes_room_for_a_prompt_that_needs_nothing_of_a_full_encoder(
    build: Callable[..., Any],
    request_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    offset: int,
    hit: int,
    is_cached: bool,
    victims: int,
) -> None:
    """It begins with text, cached KV covers its image, or the encoder's cache has it."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    from sloserve.vllm_plugin.engine import prefix_cache

    policy = Scripted(lambda at: Plan.IDENTITY)
    engine = build(policy, max_num_seqs=2)
    scheduler = engine.scheduler
    engine._add([request_of(name, prompt_tokens=9, output_tokens=50) for name in "ab"], engine._clock.now_s())
    for _ in range(4):
        step(engine)
    policy.script = lambda at: Plan(preempt=at.running[1:] if at.waiting.size else at.running[:0], waiting=at.waiting)
    monkeypatch.setattr(prefix_cache, "hit_tokens", lambda *args: hit)
    scheduler.max_num_encoder_input_tokens = IMAGE
    scheduler.encoder_cache_manager = cache = EncoderCacheManager(IMAGE)
    engine._add([request_of("c", prompt_tokens=60, output_tokens=50)], engine._clock.now_s())
    image = MultiModalFeatureSpec(None, "image", "c's", PlaceholderRange(offset=offset, length=IMAGE))
    scheduler.requests["c"].mm_features.append(image)
    if is_cached:
        cache.allocate(scheduler.requests["c"], 0)
    cache.num_free_slots = cache.num_freeable_slots = 0
    step(engine)
    assert scheduler.slo_counters["evictions"] == victims and "internal_errors" not in scheduler.slo_counters
