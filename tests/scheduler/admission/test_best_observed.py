"""The least an engine was seen to take: claimed on enough samples only, of prompts as long, and not for ever."""

import pytest

from sloserve.scheduler.admission.best_observed import MIN_SAMPLES, MIN_TPOT_TOKENS, PERIOD_S, Floors

T0 = 1_700_000_000.0


def seen(prompt_tokens: int, *ttft_s: float, now_s: float = T0) -> Floors:
    floors = Floors()
    for each_s in ttft_s:
        floors.saw_ttft(prompt_tokens, each_s, now_s)
    return floors


def test_nothing_is_claimed_on_few_samples() -> None:
    floors = seen(100, *[0.1] * (MIN_SAMPLES - 1))
    assert floors.ttft_s(100, T0) is None
    floors.saw_ttft(100, 0.3, T0)
    assert floors.ttft_s(100, T0) == 0.1


def test_longer_prompts_count_and_shorter_ones_do_not() -> None:
    floors = seen(1000, *[0.2] * MIN_SAMPLES)
    assert floors.ttft_s(10, T0) == 0.2 and floors.ttft_s(3000, T0) is None
    floors.saw_ttft(10, 0.01, T0)
    assert floors.ttft_s(10, T0) == 0.01 and floors.ttft_s(1000, T0) == 0.2


@pytest.mark.parametrize(("after_periods", "claimed"), [(0.9, 0.1), (1.5, 0.1), (3.5, None)])
def test_a_claim_is_forgotten_when_no_sample_supports_it(after_periods: float, claimed: float | None) -> None:
    floors = seen(100, *[0.1] * MIN_SAMPLES)
    assert floors.ttft_s(100, T0 + after_periods * PERIOD_S) == claimed


def test_a_slower_engine_is_believed_after_two_periods() -> None:
    floors = seen(100, *[0.1] * MIN_SAMPLES)
    for period in (1.1, 2.2):
        for _ in range(MIN_SAMPLES):
            floors.saw_ttft(100, 0.5, T0 + period * PERIOD_S)
    assert floors.ttft_s(100, T0 + 2.2 * PERIOD_S) == 0.5


def test_short_replies_tell_no_time_per_token() -> None:
    floors = Floors()
    for _ in range(MIN_SAMPLES):
        floors.saw_tpot(MIN_TPOT_TOKENS - 1, 0.001, T0)
    assert floors.tpot_s(T0) is None
    for _ in range(MIN_SAMPLES):
        floors.saw_tpot(MIN_TPOT_TOKENS, 0.02, T0)
    assert floors.tpot_s(T0) == 0.02
