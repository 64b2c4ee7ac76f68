"""Caps, ramp and the check against the context."""

import pytest

from sloserve.client.shaping import cap_lengths, check_context, ramp_up
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets

_SLO = SLO(SLOClass("any", 0), Targets())


def requests(*lengths: tuple[int, int], gap_s: float = 1.0) -> list[WorkloadRequest]:
    return [WorkloadRequest(f"r{i}", i * gap_s, prompt, output, _SLO) for i, (prompt, output) in enumerate(lengths)]


def test_lengths_are_cut_not_dropped_and_the_cut_ones_counted() -> None:
    capped, count = cap_lengths(requests((100, 10), (900, 10), (100, 90), (900, 90)), 500, 50)
    assert [(r.prompt_tokens, r.output_tokens) for r in capped] == [(100, 10), (500, 10), (100, 50), (500, 50)]
    assert count == 3
    whole = requests((900, 90))
    assert cap_lengths(whole, None, None) == (whole, 0)


def test_the_rate_rises_linearly_and_is_full_after_the_ramp() -> None:
    ramped = [r.arrival_s for r in ramp_up(requests(*[(1, 1)] * 41, gap_s=0.5), ramp_s=10.0)]
    # Rate 2/s in the end: t * t / 20 * 2 requests by t, so 10 in the ramp's 10 s and 4 per 2 s afterwards.
    assert sum(at < 10.0 for at in ramped) == 10
    assert sum(at < 5.0 for at in ramped) == pytest.approx(10 / 4, abs=1)
    assert ramped[10:] == pytest.approx([10.0 + 0.5 * i for i in range(31)])
    assert ramped == sorted(ramped)


def test_no_ramp_leaves_arrivals_alone() -> None:
    plain = requests((1, 1), (1, 1))
    assert ramp_up(plain, 0.0) == plain


def test_requests_longer_than_the_context_are_named_with_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"2 of 3 requests .* context of 1000 .* r2, has 2000 \+ 5; .*--max-prompt-tok"
    ):
        check_context(requests((900, 100), (901, 100), (2000, 5)), 1000, estimated=False)
    check_context(requests((900, 100)), 1000, estimated=False)
    check_context(requests((5000, 100)), None, estimated=False)


def test_prompts_of_words_leave_a_margin() -> None:
    with pytest.raises(ConfigError, match="950 of them with a margin"):
        check_context(requests((900, 100)), 1000, estimated=True)
    check_context(requests((850, 100)), 1000, estimated=True)
