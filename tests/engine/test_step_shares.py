"""What requests use of an engine adds up to the time of its steps, and prompts are told from decodes."""

import numpy as np
import pytest

from sloserve.engine.stages import Stages
from sloserve.engine.step_clock import StepClock
from sloserve.engine.step_shares import StepShares, kv_seconds
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile

PROFILE = load_profile("h100-llama3-8b")


def test_decodes_have_equal_parts_of_their_time_and_prompts_the_rest() -> None:
    shares = StepShares()
    decodes, mixed = StepLoad.of((), [500] * 4), StepLoad.of([(1000, 0)], [500] * 4)
    shares.add(decodes, PROFILE.step_s(decodes), PROFILE)
    assert shares.decode_s == pytest.approx(PROFILE.step_s(decodes) / 4) and shares.prompt_token_s == 0.0
    shares.add(mixed, PROFILE.step_s(mixed), PROFILE)
    assert shares.decode_s == pytest.approx(2.0 * PROFILE.step_s(decodes) / 4)
    rest_s = PROFILE.step_s(mixed) - PROFILE.step_s(decodes)
    assert shares.prompt_token_s == pytest.approx(rest_s / 1000) and rest_s > 0.0
    alone = StepLoad.of([(1000, 0)])
    shares.add(alone, 1.0, PROFILE)
    assert shares.decode_s == pytest.approx(2.0 * PROFILE.step_s(decodes) / 4), "no request decoded"
    assert shares.prompt_token_s == pytest.approx((0.98 * rest_s + 1.0) / 1980)


def test_what_requests_use_adds_up_to_the_time_of_the_steps() -> None:
    """Thirty requests of different lengths, of which each third is paused for a while."""
    clock, rng = StepClock(PROFILE), np.random.default_rng(0)
    stages, now_s, steps_s, used_s = Stages(clock.shares), 0.0, 0.0, {}
    left: dict[str, int] = {}
    prompts = {f"r{i}": int(rng.integers(50, 900)) for i in range(30)}
    arriving = list(prompts)
    paused: list[str] = []
    while arriving or left:
        new = arriving.pop(0) if arriving and rng.random() < 0.2 else None
        decodes = [name for name in left if name not in paused]
        if new is not None:
            stages.arrived(new, now_s)
        load = StepLoad.of([] if new is None else [(prompts[new], 0)], [500] * len(decodes))
        clock.scheduled(load, now_s)
        stages.scheduled([] if new is None else [new], [], [], now_s)
        step_s = PROFILE.step_s(load) if load.tokens else 0.0
        now_s, steps_s = now_s + max(step_s, 1e-3), steps_s + step_s
        clock.output(now_s)
        assert clock.busy_s(now_s) == 0.0  # works the events in
        for name in decodes:
            left[name] -= 1
            if not left[name]:
                del left[name]
                of = stages.by_id[name]
                stages.ended(name, now_s)
                used_s[name] = prompts[name] * clock.shares.prompt_token_s + of.decoded_s
        if new is not None:
            left[new] = int(rng.integers(5, 80))
    assert sum(used_s.values()) == pytest.approx(steps_s, rel=0.1)


def test_a_paused_request_has_no_part_of_the_decodes() -> None:
    shares = StepShares()
    stages = Stages(shares)
    stages.arrived("a", 0.0)
    stages.scheduled(["a"], [], [], 0.0)
    request = type("Request", (), {"request_id": "a"})()
    for step, paused in enumerate([[], [request], [request], []]):
        stages.scheduled([], [], paused, float(step))
        shares.decode_s += 1.0
    of = stages.by_id["a"]
    stages.ended("a", 4.0)
    assert of.decoded_s == 2.0


def test_kv_is_held_for_as_long_as_it_grew_evenly() -> None:
    assert kv_seconds(0.5, 100, 0, 10.0) == 5.0
    assert kv_seconds(0.5, 100, 100, 10.0) == pytest.approx(5.0 * 150 / 200)
    assert kv_seconds(0.0, 0, 0, 10.0) == 0.0
