"""The token buffer in virtual time: what it hands on and when, what it reports, how it ends."""

import asyncio
import contextvars
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.client import BufferReport, TokenBuffer
from sloserve.core.qoe import qoe
from tests.client.timelines import CASE_BY_NAME, CASES, Timeline, as_text
from tests.client.virtual_time import START_S, LoopClock, SteppedClock, ThreadClocks, run

LIMIT_S = 10.0
"""Real time after which what a thread was to do counts as not done."""

Arrivals = Sequence[tuple[float, Any]]
Handed = list[tuple[float, Any]]


def stream(arrivals: Arrivals, clocks: ThreadClocks) -> Iterator[Any]:
    """Gives each piece at its time, or raises it."""
    for at_s, piece in arrivals:
        clocks.sleep(START_S + at_s - clocks.now_s())
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def async_stream(arrivals: Arrivals) -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    for at_s, piece in arrivals:
        await asyncio.sleep(START_S + at_s - loop.time())
        if isinstance(piece, Exception):
            raise piece
        yield piece


def read(arrivals: Arrivals, **expectation: float) -> tuple[list[Any], BufferReport]:
    clocks = ThreadClocks()
    buffer = TokenBuffer(stream(arrivals, clocks), clock=clocks, sleep=clocks.sleep, **expectation)
    return list(buffer), buffer.report()


def read_async(arrivals: Arrivals, **expectation: float) -> tuple[Handed, BufferReport]:
    """Pieces with the times at which the consumer has them."""

    async def main() -> tuple[Handed, BufferReport]:
        clock = LoopClock()
        buffer = TokenBuffer(async_stream(arrivals), clock=clock, **expectation)
        return [(clock.now_s() - START_S, piece) async for piece in buffer], buffer.report()

    return run(main())


def scripted(timeline: Timeline) -> Arrivals:
    return [(at_s, chunk) for (at_s, _), chunk in zip(timeline.pieces, timeline.chunks(), strict=True)]


def check(report: BufferReport, expected: dict[str, Any]) -> None:
    assert report.qoe == pytest.approx(expected["qoe"], abs=1e-6)
    assert report.ttft_s == pytest.approx(expected["ttft_s"], abs=1e-6)
    assert report.tokens == expected["tokens"]
    assert report.held_s == pytest.approx(expected["held_s"], abs=1e-6)
    stalls = [(stall.at_s, stall.duration_s) for stall in report.stalls if stall.duration_s > 1e-6]
    assert stalls == [pytest.approx(stall, abs=1e-6) for stall in expected["stalls"] if stall[1] > 1e-6]


timelines = st.builds(
    Timeline,
    tds=st.floats(0.5, 50.0),
    ttft_s=st.floats(0.05, 5.0),
    # Gaps in milliseconds: what is nearer than the rounding of an epoch is neither early nor late.
    pieces=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 4)), max_size=30).map(
        lambda pieces: tuple(zip(np.cumsum([gap for gap, _ in pieces]) / 1e3, [n for _, n in pieces], strict=True))
    ),
)


@given(timelines)
def test_pieces_come_in_order_at_the_readers_pace_and_late_ones_at_once(timeline: Timeline) -> None:
    handed, report = read_async(scripted(timeline), ttft_s=timeline.ttft_s, tds=timeline.tds)
    assert [chunk for _, chunk in handed] == timeline.chunks()
    expected = timeline.expected()
    assert [at_s for at_s, _ in handed] == pytest.approx(expected["releases_s"], abs=1e-6)
    check(report, expected)
    digested_s, last_s = 0.0, 0.0
    for (at_s, tokens), (released_s, _) in zip(timeline.pieces, handed, strict=True):
        assert released_s >= max(at_s, last_s) - 1e-6
        if not tokens or at_s >= digested_s:
            assert released_s == pytest.approx(max(at_s, last_s), abs=1e-6)
        else:
            assert released_s == pytest.approx(digested_s, abs=1e-6)
        last_s = released_s
        if tokens:
            digested_s = released_s + tokens / timeline.tds
    if report.tokens:
        assert report.qoe == qoe(report.arrivals_s, ttft_s=timeline.ttft_s, tds=timeline.tds)


@given(timelines)
def test_a_thread_and_a_task_do_the_same(timeline: Timeline) -> None:
    pieces, report = read(scripted(timeline), ttft_s=timeline.ttft_s, tds=timeline.tds)
    handed, expected = read_async(scripted(timeline), ttft_s=timeline.ttft_s, tds=timeline.tds)
    assert pieces == [piece for _, piece in handed] == timeline.chunks()
    assert report.releases_s == pytest.approx(expected.releases_s, abs=1e-6)
    assert report.arrivals_s == pytest.approx(expected.arrivals_s, abs=1e-6)
    check(report, timeline.expected())


@pytest.mark.parametrize("name", CASE_BY_NAME)
def test_cases_that_all_clients_share(name: str) -> None:
    """Read from the file, as other clients do."""
    (case,) = [case for case in json.loads(CASES.read_text()) if case["name"] == name]
    timeline = Timeline(case["tds"], case["expected_ttft_s"], tuple(map(tuple, case["pieces"])))
    handed, report = read_async(scripted(timeline), ttft_s=timeline.ttft_s, tds=timeline.tds)
    assert [at_s for at_s, _ in handed] == pytest.approx(case["releases_s"], abs=1e-6)
    check(report, case)


def test_the_shared_cases_are_up_to_date() -> None:
    assert CASES.read_text() == as_text(), "python -m tests.client.timelines writes them anew"


def test_figure_8_is_a_perfect_reply() -> None:
    """Preempted for three seconds, and the reader does not notice."""
    timeline = CASE_BY_NAME["a burst, preempted, resumed in time (Andes, Fig. 8)"]
    handed, report = read_async(scripted(timeline), ttft_s=timeline.ttft_s, tds=timeline.tds)
    assert np.diff([at_s for at_s, _ in handed]) == pytest.approx(np.full(39, 0.25))
    assert (report.qoe, report.stalls) == (1.0, ())


def test_an_error_comes_after_all_that_came_before_it() -> None:
    arrivals = [(0.1, "a"), (0.1, "b"), (0.2, ValueError("broken"))]

    async def main() -> Handed:
        clock = LoopClock()
        buffer = TokenBuffer(async_stream(arrivals), clock=clock, tds=1.0)
        handed: Handed = []
        with pytest.raises(ValueError, match="broken"):
            async for piece in buffer:
                handed.append((clock.now_s() - START_S, piece))
        assert [piece async for piece in buffer] == []
        assert buffer.report().qoe == 0.0
        return handed

    assert run(main()) == [(pytest.approx(0.1), "a"), (pytest.approx(1.1), "b")]

    clocks = ThreadClocks()
    buffer = TokenBuffer(stream(arrivals, clocks), clock=clocks, sleep=clocks.sleep, tds=1.0)
    assert [next(buffer), next(buffer)] == ["a", "b"]
    with pytest.raises(ValueError, match="broken"):
        next(buffer)
    assert list(buffer) == []
    assert (buffer.report().qoe, buffer.report().tokens) == (0.0, 2)


def test_the_report_follows_what_is_handed_on() -> None:
    clocks = ThreadClocks()
    buffer = TokenBuffer(stream([(0.5, "a"), (0.5, "b"), (9.0, "c")], clocks), clock=clocks, sleep=clocks.sleep)
    assert (buffer.report().tokens, buffer.report().qoe, buffer.report().ttft_s) == (0, None, None)
    next(buffer), next(buffer)
    assert (buffer.report().tokens, buffer.report().stalls) == (2, ())
    next(buffer)
    assert len(buffer.report().stalls) == 1


def test_latency_counts_from_when_the_request_was_sent() -> None:
    clocks = ThreadClocks()
    buffer = TokenBuffer(stream([(0.5, "a")], clocks), clock=clocks, sent_s=START_S - 2.0)
    assert list(buffer) == ["a"]
    assert buffer.report().ttft_s == pytest.approx(2.5)
    with pytest.raises(ValueError, match="is after now"):
        TokenBuffer([], clock=clocks, sent_s=START_S + 1.0)


@pytest.mark.parametrize("step_s", [5.0, -5.0])
def test_setting_the_hosts_clock_changes_no_figure(step_s: float) -> None:
    async def main() -> BufferReport:
        clock = SteppedClock(0.4, step_s)
        buffer = TokenBuffer(async_stream([(0.3, "a"), (0.5, "b"), (0.6, "c")]), clock=clock, tds=4.0)
        assert [piece async for piece in buffer] == ["a", "b", "c"]
        return buffer.report()

    report = run(main())
    assert report.arrivals_s == pytest.approx([0.3, 0.5, 0.6])
    assert report.releases_s == pytest.approx([0.3, 0.55, 0.8])


class Endless:
    """A stream that gives its first pieces and then waits until it is closed, or for as long as the test lasts."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = iter(pieces)
        self.more, self.closed = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[str]:
        yield from self._pieces
        self.more.wait(LIMIT_S)
        yield "late"

    def close(self) -> None:
        self.closed.set()


def test_what_a_thread_reads_is_closed_with_the_next_piece() -> None:
    source = Endless("a", "b")
    with TokenBuffer(source, tds=1.0, sleep=lambda _: None) as buffer:
        assert next(buffer) == "a"
    assert list(buffer) == []
    buffer.close()
    source.more.set()
    assert source.closed.wait(LIMIT_S)
    assert buffer.report().qoe == 1.0


@pytest.mark.slow
def test_a_buffer_that_is_dropped_reads_no_further() -> None:
    source = Endless("a")
    for _ in TokenBuffer(source):
        break
    gc.collect()
    source.more.set()
    assert source.closed.wait(LIMIT_S)


def test_closing_wakes_who_waits() -> None:
    """A consumer in another thread waits for a piece of a stalled stream."""
    source, got = Endless(), []
    buffer = TokenBuffer(source)
    consumer = threading.Thread(target=lambda: got.append(list(buffer)))
    consumer.start()
    buffer.close()
    consumer.join(LIMIT_S)
    source.more.set()
    assert got == [[]]


def test_the_source_is_closed_when_it_ends_and_runs_in_the_makers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")

    def source() -> Iterator[str]:
        yield variable.get()

    assert list(TokenBuffer(source())) == ["set"]
    endless = Endless("a")
    endless.more.set()
    assert list(TokenBuffer(endless, tds=1000.0)) == ["a", "late"]
    assert endless.closed.wait(LIMIT_S)


class Tap:
    """An async stream that says whether it was closed, in the way of the SDK."""

    def __init__(self, *pieces: str) -> None:
        self._pieces, self.closed = pieces, False

    async def __aiter__(self) -> AsyncIterator[str]:
        for piece in self._pieces:
            yield piece
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


def test_closing_cancels_what_a_task_reads() -> None:
    async def main() -> None:
        tap = Tap("a", "b")
        async with TokenBuffer(tap, clock=LoopClock(), tds=1.0) as buffer:
            assert await anext(buffer) == "a"
        assert tap.closed
        assert [piece async for piece in buffer] == []
        assert buffer.report().tokens == 1

        ended: list[str] = []

        async def generate() -> AsyncIterator[str]:
            try:
                yield "a"
                await asyncio.Event().wait()
            finally:
                ended.append("closed")

        generated = TokenBuffer(generate(), clock=LoopClock())
        assert await anext(generated) == "a"
        await generated.aclose()
        assert ended == ["closed"]

    run(main())


def test_cancelling_the_consumer_closes_the_stream() -> None:
    async def main() -> None:
        for pieces in ((), ("a", "b")):  # while it waits for a piece, and while it keeps one
            tap = Tap(*pieces)
            buffer = TokenBuffer(tap, clock=LoopClock(), tds=0.001)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5.0):
                    async for _ in buffer:
                        pass
            assert tap.closed

    run(main())


@pytest.mark.slow
def test_a_task_whose_buffer_is_dropped_reads_no_further() -> None:
    async def main() -> None:
        tap = Tap("a")
        async for _ in TokenBuffer(tap, clock=LoopClock()):
            break
        gc.collect()
        await asyncio.sleep(0.1)
        assert tap.closed

    run(main())


def test_the_source_is_read_ahead_while_its_reader_is_kept_waiting() -> None:
    """All arrives within a tenth of a second; after the first of ten slow tokens the source is through."""

    async def main() -> None:
        given: list[float] = []

        async def source() -> AsyncIterator[str]:
            for _ in range(10):
                await asyncio.sleep(0.01)
                given.append(asyncio.get_running_loop().time())
                yield "a"

        buffer = TokenBuffer(source(), clock=LoopClock(), tds=1.0)
        await anext(buffer)
        await anext(buffer)
        assert len(given) == 10
        await buffer.aclose()

    run(main())


def test_the_wrong_kind_of_loop_is_refused() -> None:
    buffer: TokenBuffer[Any] = TokenBuffer([])
    with pytest.raises(TypeError, match="the source is synchronous: use 'for'"):
        run(_first(buffer))

    async def main() -> None:
        wrong = TokenBuffer(async_stream([]), clock=LoopClock())
        with pytest.raises(TypeError, match="the source is asynchronous: use 'async for'"):
            next(wrong)
        await wrong.aclose()

    run(main())


async def _first(buffer: TokenBuffer[Any]) -> Any:
    return await anext(buffer)
