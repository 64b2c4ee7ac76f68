"""What a stream of chunks says about when tokens came."""

import json
from typing import Any

import pytest

from sloserve.client.responses import error_message
from sloserve.client.stream import DONE, StreamReader


def chunk(text: str | None = "a", tokens: int | None = None, finish: str | None = None, **more: Any) -> str:
    body: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return json.dumps(body)


def usage(tokens: int, **more: Any) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more})


def read(*events: str) -> StreamReader:
    reader = StreamReader()
    for second, event in enumerate(events, start=1):
        reader.feed(event, float(second))
    return reader


def test_a_chunk_counts_for_the_tokens_it_adds() -> None:
    reader = read(chunk(tokens=2), chunk(tokens=2), chunk(tokens=5, finish="length"), usage(5), DONE)
    assert reader.token_times_s().tolist() == [1, 1, 3, 3, 3]
    assert reader.chunk_times_s == [1, 2, 3]
    assert (reader.done, reader.prompt_tokens, reader.output_tokens) == (True, 9, 5)


def test_without_counts_the_total_is_spread_evenly_and_the_first_chunk_has_a_token() -> None:
    assert read(chunk(), chunk(), chunk(), usage(6)).token_times_s().tolist() == [1, 1, 2, 2, 3, 3]
    assert read(chunk(), chunk(), chunk(), usage(2)).token_times_s().tolist() == [1, 2]
    assert read(chunk(), chunk(), DONE).token_times_s().tolist() == [1, 2]


def test_chunks_without_text_carry_no_token_when_chats_are_not_counted() -> None:
    role = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    said = json.dumps({"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]})
    thought = json.dumps({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]})
    refused = json.dumps({"choices": [{"delta": {"refusal": "no"}, "finish_reason": None}]})
    called = json.dumps({"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}]})
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    reader = read(role, thought, said, refused, called, end, usage(4))
    assert reader.token_times_s().tolist() == [2, 3, 4, 5]
    assert reader.chunk_times_s == [1, 2, 3, 4, 5, 6]


def test_text_that_is_held_back_does_not_lose_its_tokens() -> None:
    assert read(chunk(text=""), chunk(text=""), usage(2)).token_times_s().tolist() == [1, 2]


def test_the_end_is_known_by_its_reason_or_by_done() -> None:
    assert not read(chunk()).done
    assert read(chunk(finish="length")).done
    assert read(chunk(), DONE).done


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ('{"error": {"message": "engine died", "code": 500}}', "engine died"),
        ('{"error": "overloaded"}', "overloaded"),
        ("not json", "a chunk that is no JSON object: 'not json'"),
        ("[1]", "a chunk that is no JSON object: '[1]'"),
    ],
)
def test_errors_in_the_stream_are_kept(event: str, text: str) -> None:
    reader = read(chunk(), event, usage(4))
    assert reader.error == text
    assert reader.token_times_s().size == 4


def test_a_clock_set_back_does_not_turn_time_around() -> None:
    reader = StreamReader()
    reader.feed(chunk(), 5.0)
    reader.feed(chunk(), 4.0)
    assert reader.chunk_times_s == [5.0, 5.0]


def test_the_servers_verdict_is_found_in_the_last_chunk() -> None:
    assert read(chunk(), usage(1, slo={"good": True})).slo == {"good": True}
    assert read(chunk(), usage(1)).slo is None


@pytest.mark.parametrize(
    "slo",
    [
        {"achieved": {"unit": "ms"}},
        {"met": {"ttft": "yes"}},
        {"met": []},
        {"evictions": -1},
        {"paused_ms": 1e300},
        ["met"],
        "gold",
        True,
        7,
    ],
)
def test_an_object_of_this_name_that_is_no_verdict_is_ignored(slo: Any) -> None:
    reader = read(chunk(slo=slo), chunk(finish="length"), usage(2, slo=slo))
    assert (reader.error, reader.slo, reader.done, reader.output_tokens) == (None, None, True, 2)
    assert read(usage(1, slo={"good": True}), usage(2, slo=slo)).slo == {"good": True}


def test_error_bodies_of_openai_and_fastapi() -> None:
    assert error_message({"error": {"message": "no"}}) == "no"
    assert error_message({"detail": "nope"}) == "nope"
    assert error_message({"detail": [{"loc": 1}]}) == '[{"loc": 1}]'
    assert len(error_message({"message": "x" * 1000})) == 300


@pytest.mark.parametrize("counted", ["4", "4.0", '"4"'])
def test_a_whole_number_may_be_written_as_a_float_or_a_string(counted: str) -> None:
    reader = read(chunk(), chunk(finish="length"), f'{{"choices": [], "usage": {{"completion_tokens": {counted}}}}}')
    assert (reader.error, reader.output_tokens, reader.token_times_s().tolist()) == (None, 4, [1, 1, 2, 2])


@pytest.mark.parametrize("counted", ["4.5", "-1", "true", '"x"', "1e400", "[4]"])
def test_what_is_no_count_is_an_error(counted: str) -> None:
    reader = read(chunk(), f'{{"choices": [], "usage": {{"completion_tokens": {counted}}}}}')
    assert reader.error is not None and reader.error.startswith("a chunk that has another form")
