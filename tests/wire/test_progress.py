"""What a client reads of a request that waits: comments of its stream, and JSON."""

import httpx
import pytest
from httpx_sse import EventSource

from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.promises import Promised
from sloserve.wire.progress import RequestProgress, as_json, comment, place_at_admission, place_header, slowest

WAITS = RequestProgress(
    "interactive",
    True,
    2.5,
    position=3,
    remaining=Quantiles(1.2, 3.4, 5.6),
    predicted=Predicted(None, Quantiles(4.0, 6.0, 9.0)),
    promised=Promised(0.9),
)


def test_a_comment_has_the_place_and_the_rest_of_the_wait() -> None:
    assert comment(WAITS) == b": slo-queue position=3 p50_ms=1200 p90_ms=3400\n\n"
    assert comment(RequestProgress("batch", True, 0.0, position=7)) == b": slo-queue position=7\n\n"


def test_readers_of_event_streams_pass_over_a_comment() -> None:
    body = comment(WAITS) + b"data: a\n\n" + comment(WAITS) + b"data: b\n\n"
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    assert [event.data for event in EventSource(answer).iter_sse() if event.data] == ["a", "b"]


def test_the_json_says_what_is_known_and_null_for_the_rest() -> None:
    assert as_json("mine", WAITS) == {
        "id": "mine",
        "object": "slo.request",
        "state": "waiting",
        "class": "interactive",
        "position": 3,
        "waited_ms": 2500,
        "remaining_ttft_ms": {"p50": 1200, "p90": 3400, "p99": 5600},
        "predicted_e2e_ms": {"p50": 4000, "p90": 6000, "p99": 9000},
        "promised": 0.9,
    }
    runs = as_json("mine", RequestProgress("batch", False, None))
    assert runs["state"] == "running"
    assert {name for name, value in runs.items() if value is None} == {
        *("position", "waited_ms", "remaining_ttft_ms", "predicted_e2e_ms", "promised")
    }


def test_a_list_of_prompts_has_the_last_place_and_waits_until_any_has_a_token() -> None:
    later = RequestProgress("interactive", True, 1.0, position=9, remaining=Quantiles(7.0, 8.0, 9.0))
    found = slowest([WAITS, later])
    assert found is not None and found.is_waiting and (found.position, found.waited_s) == (9, 2.5)
    assert found.remaining == later.remaining and found.predicted == WAITS.predicted
    begun = slowest([later, RequestProgress("interactive", False, 0.5)])
    assert begun is not None and not begun.is_waiting
    assert slowest([]) is None


@pytest.mark.parametrize(("ahead", "place"), [(0, 0), (1, 2), (9, 10)])
def test_the_header_has_the_place_at_admission(ahead: int, place: int) -> None:
    assert place_at_admission(ahead) == place
    assert place_header([0, place]) == [("x-slo-queue-position", str(place))]
    assert place_header([]) == []
