"""A request's way beside its trace headers."""

from sloserve.wire.trace_way import HEADER, MOST_EVENTS, RequestTrace, TraceEvent


def test_a_way_is_read_as_it_was_written_and_is_bounded() -> None:
    way = RequestTrace(paused_s=0.5, preempted_s=1.25)
    for n in range(1000):
        way.add(TraceEvent("preempted", 1.75e9 + n / 3, "plan", None, 123456.78901234567))
    header = way.header()
    assert RequestTrace.read({"traceparent": "00-ab", HEADER: header}) == way
    assert (len(way.events), way.left_out) == (MOST_EVENTS, 1000 - MOST_EVENTS)
    assert way.events[0].at_s == 1.75e9 and len(header) < 3000


def test_what_cannot_be_read_is_an_empty_way() -> None:
    for headers in (None, {}, {"traceparent": "x"}, {HEADER: "["}, {HEADER: "[1]"}, {HEADER: '[[["a"]],0,0,0]'}):
        assert RequestTrace.read(headers) == RequestTrace()
