"""Step times of servers with pipeline stages and of prefill/decode pairs, beside the times of their engines."""

import pytest

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.estimator.step_time.shaped import PairLatency, StagedLatency

PROFILE = load_profile("h100x4-llama3-70b-fp8")
DECODES = StepLoad(0, 0, 64, 64_000)
PROMPT = StepLoad(4_096, 1, 0, 0, 4_096**2)
BOTH = StepLoad(4_096, 1, 64, 64_000, 4_096**2)


def test_a_token_takes_a_step_of_the_stage_s_share_of_the_requests() -> None:
    staged = StagedLatency(PROFILE, 2)
    assert staged.step_s(DECODES) == PROFILE.step_s(StepLoad(0, 0, 32, 32_000))
    assert staged.step_s(StepLoad(0, 0, 1, 1_000)) == PROFILE.step_s(StepLoad(0, 0, 1, 500)), "one is never halved"
    assert PROFILE.step_s(PROMPT) / 2 < staged.step_s(PROMPT) < PROFILE.step_s(PROMPT)
    assert staged.step_s(StepLoad()) == 0.0


def test_one_stage_and_one_prefill_engine_are_the_engine_itself() -> None:
    assert StagedLatency(PROFILE, 1).step_s(BOTH) == PROFILE.step_s(BOTH)
    assert PairLatency(PROFILE, 1, PROFILE).step_s(DECODES) == PROFILE.step_s(DECODES)
    assert PairLatency(PROFILE, 1, PROFILE).step_s(PROMPT) == PROFILE.step_s(PROMPT)


def test_in_a_pair_the_slower_side_sets_the_pace() -> None:
    pair, more = PairLatency(PROFILE, 1, PROFILE), PairLatency(PROFILE, 64, PROFILE)
    assert pair.step_s(BOTH) == PROFILE.step_s(PROMPT) < PROFILE.step_s(BOTH)
    many = StepLoad(4_096, 1, 256, 512_000, 4_096**2)
    assert more.step_s(many) == PROFILE.step_s(many.decodes)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("seconds", [0.01, 0.1, 1.0])
def test_the_prompt_tokens_of_a_time_take_no_longer(parts: int, seconds: float) -> None:
    for shaped in (StagedLatency(PROFILE, parts), PairLatency(PROFILE, parts, PROFILE)):
        tokens = shaped.prefill_within(seconds, DECODES, 0)
        chunks = parts * (tokens // parts) ** 2
        load = StepLoad(tokens, parts, 64, 64_000, chunks) if tokens else DECODES
        assert shaped.step_s(load) <= max(seconds * 1.05, shaped.step_s(DECODES))
