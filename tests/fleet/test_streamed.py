"""Events of streams are no tokens: what plans and metrics count is what they bring."""

import json

import pytest

from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.fleet.agent.engine_requests import AwaitedRequests, stream_of
from sloserve.fleet.client_routes import MESSAGES, RESPONSES
from sloserve.fleet.fleet import EngineStart
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS
from sloserve.fleet.streamed import Streamed, TokensAnEvent

DONE = b"data: [DONE]\n\n"


def stream(events: int, last: bytes = b"", *, parts: int = 1) -> Streamed:
    """So many events of tokens, then the last; in equal parts, as connections cut them."""
    body, found = b'data: {"choices":[{"text":"ab"}]}\n\n' * events + last + DONE, Streamed()
    step = -(-len(body) // parts)
    for at in range(0, len(body), step):
        found.add(body[at : at + step])
    return found


LENGTH = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":321}}\n\n'


def test_an_event_brings_what_flags_say_until_an_answer_says_how_long_it_is() -> None:
    an_event = TokensAnEvent(16)
    assert [an_event.tokens(events) for events in (0, 1, 2, 21)] == [0, 1, 17, 321]
    assert an_event.ended(stream(21), None) == 321
    learnt = TokensAnEvent()
    assert learnt.ended(stream(21), None) == 21, "nothing says more"
    assert learnt.ended(stream(20, LENGTH), 321) == 321, "its limit is why it ended"
    assert learnt.tokens(21) == 321 and learnt.ended(stream(21), 5_000) == 321
    assert learnt.ended(stream(20, USAGE), None) == 321
    assert learnt.ended(Streamed(), None) == 0


@pytest.mark.parametrize("last", [LENGTH, USAGE])
def test_what_the_end_says_is_found_however_it_is_cut(last: bytes) -> None:
    """The end of a stream comes in parts of its own: only the last of them was looked at, and that is [DONE]."""
    whole = stream(3, last).stated_tokens(321)
    assert whole == 321
    assert [stream(3, last, parts=n).stated_tokens(321) for n in (2, 7, 40)] == [whole] * 3
    assert {stream(3, last, parts=n).events for n in (1, 7, 40)} == {5}


REPORT = b',"slo":{"class":"batch","output_tokens":7}'
MESSAGE_END = (
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":9,"output_tokens":5}' + REPORT
)
RESPONSE_END = (
    b'data: {"response":{"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},'
    b'"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":14},"user":null' + REPORT + b"}"
)


@pytest.mark.parametrize(
    ("route", "before", "end", "after"),
    [(MESSAGES, 2, MESSAGE_END, b"data: {}\n\n" * 2), (RESPONSES, 4, b"data: {}\n\n" * 3 + RESPONSE_END, b"")],
)
def test_events_that_frame_an_output_bring_no_tokens(route: str, before: int, end: bytes, after: bytes) -> None:
    """A short reply had seven tokens too many, and the tokens of a report were taken for those of the usage."""
    found, learnt = Streamed.on(route), TokensAnEvent()
    found.add(b"data: {}\n\n" * before)
    assert learnt.tokens(found.events - 1) == 0
    found.add(b"data: {}\n\n" * 5 + end + b',"sequence_number":12}\n\n' + after)
    assert learnt.tokens(found.events - 1) == 5 == found.stated_tokens(None) == learnt.ended(found, None)
    assert found.stated_prompt_tokens() == 9 and found.last_number() == 12
    assert learnt.tokens(11) == 11


def test_text_that_reads_like_events_is_one_event() -> None:
    """``data:`` within a text was counted: a reply that quotes a stream was taken for three times as long."""
    found = Streamed()
    found.add(b'data: {"choices":[{"text":"data: a, data: b"}]}\n\n')
    assert found.events == 1


def test_replies_that_come_16_tokens_at_a_time_are_expected_as_long_as_they_are() -> None:
    """They were expected to have 21 tokens, so that a plan believed them done in 0.2 s, and began them too late."""
    meter = DemandMeter(DEFAULT_CLASSES, {"chat": 16})
    assert meter.ended("chat", "interactive", stream(21), None) == 321
    assert meter.output_tokens("chat", "interactive", None) == 321
    assert meter.ended("other", "interactive", stream(20, LENGTH), 321) == 321


def test_a_door_counts_tokens_of_what_it_has() -> None:
    """An instance with 8 replies of 300 tokens left told the planner that it had 8 of 20, and was taken for free."""
    requests = AwaitedRequests(16)
    body = json.dumps({"prompt": "x" * 40, "max_tokens": 500, "stream": True}).encode()
    request, several = stream_of("m", body), stream_of("m", body[:-1] + b', "n": 2}')
    request.answer = Answer(stream(10))
    requests.begin(request)
    assert requests.sums().context_tokens == len(body) / 4 + 1 + 10 * 16
    assert requests.sums().longest_output_tokens == USUAL_OUTPUT_TOKENS - 161
    requests.ended(request, 3.0, broken=False)
    assert several.max_tokens is None


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("--stream-interval", "16"), 16),
        (("--enforce-eager", "--stream_interval=8"), 8),
        (("--stream-interval", "many"), 1),
        ((), 1),
    ],
)
def test_flags_say_how_many_tokens_an_event_brings(arguments: tuple[str, ...], tokens: int) -> None:
    assert EngineStart(arguments=arguments).tokens_an_event == tokens


class Answer:
    """Of an engine."""

    def __init__(self, streamed: Streamed) -> None:
        self.streamed, self.parts = streamed, streamed.events
