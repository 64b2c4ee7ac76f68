"""How many tokens of text the pieces of each kind of stream bring."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.client.pieces import MOST_PIECE_TOKENS, TextCounter


def chat(index: int = 0, so_far: int | None = None, **delta: Any) -> dict[str, Any]:
    usage = None if so_far is None else {"completion_tokens": so_far}
    return {"choices": [{"index": index, "delta": delta}], "usage": usage}


def counted(*pieces: object) -> list[int]:
    counter = TextCounter()
    return [counter.text_tokens(piece) for piece in pieces]


@pytest.mark.parametrize("key", ["content", "reasoning", "reasoning_content", "refusal"])
def test_a_chunk_with_text_is_a_token(key: str) -> None:
    assert counted(chat(role="assistant", content=""), chat(**{key: "a"}), chat(**{key: None})) == [0, 1, 0]


def test_a_chunk_counts_for_what_it_adds() -> None:
    texts = [chat(content="a", so_far=1), chat(content="b c", so_far=4), chat(so_far=4)]
    assert counted(chat(role="assistant", so_far=0), *texts) == [0, 1, 3, 0]


def test_tokens_of_text_that_is_held_back_count_when_it_comes() -> None:
    assert counted(chat(content="a", so_far=1), chat(content="", so_far=3), chat(content="é", so_far=4)) == [1, 0, 3]


def test_text_is_never_for_nothing_and_does_not_count_twice() -> None:
    assert counted(*(chat(content="a", so_far=n) for n in (2, 2, 3, 6))) == [2, 1, 1, 2]


def test_tool_calls_are_not_read() -> None:
    called = chat(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}], so_far=9)
    assert counted(chat(content="a", so_far=1), called, chat(content="b", so_far=10)) == [1, 0, 1]


def test_each_choice_has_its_count() -> None:
    assert counted(*(chat(index=i, content="a", so_far=n) for i, n in [(0, 2), (1, 1), (0, 3), (1, 4)])) == [2, 1, 1, 3]
    both = {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}], "usage": {"completion_tokens": 9}}
    assert counted(both) == [2]


def test_a_total_at_the_end_brings_nothing_to_read() -> None:
    assert counted(chat(content="a"), {"choices": [], "usage": {"completion_tokens": 50}}) == [1, 0]


def test_completions_strings_and_events() -> None:
    assert counted({"choices": [{"index": 0, "text": "a"}]}, {"choices": [{"index": 0, "text": ""}]}) == [1, 0]
    assert counted("a", "", "b") == [1, 0, 1]
    assert counted(
        {"type": "response.created"},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        SimpleNamespace(type="content.delta", delta="a"),
        SimpleNamespace(type="chunk", chunk=object()),
        None,
    ) == [0, 1, 0, 1, 0, 0]


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
odd_choices = st.lists(
    st.fixed_dictionaries({}, optional={"index": odd, "text": odd, "delta": odd | st.just({"content": "a"})}) | odd,
    max_size=3,
)
odd_pieces = odd | st.fixed_dictionaries(
    {},
    optional={
        "choices": odd_choices | odd,
        "usage": st.fixed_dictionaries({"completion_tokens": odd}) | odd,
        "type": odd | st.just("response.refusal.delta"),
        "delta": odd,
    },
)


@given(st.lists(odd_pieces, max_size=6))
def test_no_piece_of_a_hostile_server_raises_or_counts_beyond_measure(pieces: list[Any]) -> None:
    assert all(0 <= tokens <= MOST_PIECE_TOKENS for tokens in counted(*pieces))


def test_a_count_beyond_measure_does_not_keep_its_reader_waiting() -> None:
    assert counted(chat(content="a", so_far=10**9), chat(content="b", so_far=10**9 + 1)) == [MOST_PIECE_TOKENS, 1]
