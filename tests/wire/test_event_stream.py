"""Events of a stream are counted by the rules of server-sent events, however the stream is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.wire.event_stream import EventCounter


def counted(stream: bytes, size: int) -> int:
    counter = EventCounter()
    return sum(counter.add(stream[at : at + size]) for at in range(0, len(stream), size))


STREAMS = {
    b'data: {"text":"data: data: \\ndata:"}\n\n': 1,
    b"data: a\ndata: b\n\n": 1,
    b"data: a\r\n\r\ndata: b\r\n\r\n": 2,
    b"data: a\r\rdata: b\n\r\n": 2,
    b"data: a\n\n\n\ndata: b\n\n": 2,
    b"id: 7\nevent: ping\ndata\n\n": 1,
    b": data:\n\n": 0,
    b"event: ping\n\n": 0,
    b"database: x\n\n data: x\n\nDATA: x\n\n": 0,
    b"data: not ended\n": 0,
    b"x" * 40 + b"data:\n\n": 0,
    b"": 0,
}


@pytest.mark.parametrize("stream", STREAMS)
def test_an_event_with_data_ends_at_a_blank_line_however_it_is_cut(stream: bytes) -> None:
    assert {size: counted(stream, size) for size in (1, 2, 3, 5, 64)} == dict.fromkeys(
        (1, 2, 3, 5, 64), STREAMS[stream]
    )


@given(st.lists(st.sampled_from([b"data:", b"data", b"d", b":", b"\n", b"\r", b"\r\n", b"", b"x"])))
def test_cuts_do_not_change_the_count(parts: list[bytes]) -> None:
    whole, counter = b"".join(parts), EventCounter()
    assert sum(map(counter.add, parts)) == counted(whole, max(len(whole), 1)) == counted(whole, 1)


def test_long_lines_are_not_kept() -> None:
    counter = EventCounter()
    for _ in range(10):
        counter.add(b"data: " + b"x" * 100_000)
    assert kept_bytes(counter) < 100 and counter.add(b"\n\n") == 1


def kept_bytes(counter: EventCounter) -> int:
    return sum(len(value) for value in vars(counter).values() if isinstance(value, bytes))


def test_a_token_is_counted_once_its_event_has_come_whole() -> None:
    counter = EventCounter()
    assert list(itertools.accumulate(map(counter.add, [b"data: a", b"\n", b"\n", b"data: b\n\n"]))) == [0, 0, 1, 2]
