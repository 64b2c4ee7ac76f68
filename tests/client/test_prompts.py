"""Prompts: exact in tokens, a function of seed and request, shared as far as the workload shares them."""

from dataclasses import replace

import pytest

from sloserve.client.prompts import FIRST_TOKEN, TextPrompts, TokenPrompts, calibrated, sample_text
from sloserve.core.errors import ConfigError
from sloserve.core.request import PREFIX_BLOCK_TOKENS, WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets

_CLASS = SLOClass("any", 0)


def request(request_id: str, prompt_tokens: int, prefix_ids: tuple[int, ...] = ()) -> WorkloadRequest:
    return WorkloadRequest(request_id, 0.0, prompt_tokens, 1, SLO(_CLASS, Targets()), prefix_ids=prefix_ids)


def shared(one: list[int], other: list[int]) -> int:
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


@pytest.mark.parametrize("tokens", [1, 7, 512, 513, 3000])
def test_token_prompts_have_the_length_and_the_vocabulary(tokens: int) -> None:
    made = TokenPrompts(vocab_size=300).make(request("r0", tokens, (4, 5)), seed=0)
    assert len(made) == tokens
    assert FIRST_TOKEN <= min(made) and max(made) < 300


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    one, again, other = (TokenPrompts(256).make(request("r3", 200), seed) for seed in (7, 7, 8))
    assert one == again
    assert shared(one, other) < 3


def test_requests_share_nothing_but_leading_prefix_ids() -> None:
    prompts = TokenPrompts(256)
    one = prompts.make(request("a", 1500, (11, 12, 13)), 0)
    assert shared(one, prompts.make(request("b", 1500, (11, 12, 99)), 1)) in range(1024, 1030)
    assert shared(one, prompts.make(request("c", 1500, (12, 12, 13)), 0)) < 5
    assert shared(prompts.make(request("d", 100), 0), prompts.make(request("e", 100), 0)) < 5


def test_prefix_ids_stand_for_blocks_of_the_size_that_the_request_states() -> None:
    prompts = TokenPrompts(256)
    one, other = (
        prompts.make(replace(request(name, 60, ids), prefix_block_tokens=16), 0)
        for name, ids in (("a", (21, 22)), ("b", (21, 23)))
    )
    assert shared(one, other) in range(16, 20)


def test_text_prompts_follow_what_was_counted() -> None:
    prompts = calibrated([(16, 30), (128, 254)])  # two tokens a word less two
    assert (prompts.tokens_per_word, prompts.overhead_tokens) == (2.0, -2.0)
    assert len(prompts.make(request("r0", 198), 0).split()) == 100
    assert prompts.make(request("r0", 198), 0) != prompts.make(request("r0", 198), 1)
    block_words = PREFIX_BLOCK_TOKENS // 2
    one, other = (prompts.make(request(name, 2000, (5,)), 0).split() for name in "ab")
    assert one[:block_words] == other[:block_words] and one[block_words:] != other[block_words:]


def test_a_prompt_has_a_word_even_where_the_template_is_longer() -> None:
    assert len(TextPrompts(1.0, 50.0).make(request("r0", 10), 0).split()) == 1


def test_calibration_needs_counts_that_grow() -> None:
    with pytest.raises(ConfigError, match="give --prompt tokens"):
        calibrated([(16, 5), (128, 5)])
    assert sample_text(16) == sample_text(16) and len(sample_text(16).split()) == 16


def test_a_vocabulary_of_special_tokens_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="--vocab-size: 10"):
        TokenPrompts(10)
