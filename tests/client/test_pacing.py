"""A reader's progress on times that a buffer's virtual clock does not produce: late consumers, clocks set back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.client.pacing import ReaderPace, Stall
from sloserve.core.qoe import qoe


def pace(tds: float = 2.0) -> ReaderPace:
    return ReaderPace(ttft_s=1.0, tds=tds)


def test_what_a_late_consumer_has_not_taken_is_not_digested() -> None:
    """Two tokens at once, the first asked for at 5 s: the second comes half a second later, and nobody stalled."""
    reader = pace()
    reader.arrive(0.5, 1)
    reader.release(5.0)
    reader.arrive(0.5, 1)
    assert reader.wait_s(5.0) == pytest.approx(0.5)
    reader.release(5.5)
    report = reader.report(failed=False)
    assert report.releases_s.tolist() == [5.0, 5.5]
    assert report.arrivals_s.tolist() == [0.5, 0.5]
    assert report.stalls == ()


def test_a_late_token_is_a_stall_but_not_the_first() -> None:
    reader = pace()
    for at_s in (3.0, 4.25):
        reader.arrive(at_s, 1)
        assert reader.wait_s(at_s) == 0.0
        reader.release(at_s)
    report = reader.report(failed=False)
    assert report.stalls == (Stall(3.5, 0.75),)
    assert report.ttft_s == 3.0
    assert report.held_s == 0.0


@given(st.lists(st.tuples(st.floats(-100.0, 100.0), st.integers(0, 3), st.floats(-100.0, 100.0)), max_size=20))
def test_a_clock_that_jumps_keeps_nobody_longer_than_the_last_piece_takes(
    pieces: list[tuple[float, int, float]],
) -> None:
    reader, last_tokens = pace(), 0
    for at_s, tokens, now_s in pieces:
        reader.arrive(at_s, tokens)
        assert 0.0 <= reader.wait_s(now_s) <= (last_tokens / 2.0 if tokens else 0.0) + 1e-9
        reader.release(now_s)
        last_tokens = tokens or last_tokens
    report = reader.report(failed=False)
    if report.tokens:
        assert report.qoe == qoe(report.arrivals_s, ttft_s=1.0, tds=2.0)
        assert (report.releases_s >= report.arrivals_s).all()


@pytest.mark.parametrize("expectation", [{"ttft_s": 0.0, "tds": 1.0}, {"ttft_s": 1.0, "tds": -1.0}])
def test_an_expectation_that_is_none_is_refused(expectation: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is not a positive number"):
        ReaderPace(**expectation)


def test_nothing_to_read_has_no_qoe_and_a_failure_has_none_of_it() -> None:
    reader = pace()
    assert reader.report(failed=False).qoe is None
    assert reader.report(failed=True).qoe == 0.0
    reader.arrive(0.1, 1)
    reader.release(0.1)
    assert reader.report(failed=False).qoe == 1.0
    assert reader.report(failed=True).qoe == 0.0
