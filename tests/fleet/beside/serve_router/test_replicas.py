"""Replicas as a router knows them, without Ray: what they say, what it counts, and what a call says of a request."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.fleet.beside.serve_router.calls import Call, read_call
from sloserve.fleet.beside.serve_router.replicas import Replicas, routing_stats
from tests import bounded
from tests.client import virtual_time
from tests.client.virtual_time import LoopClock
from tests.fleet.beside.played_server import metrics_page

CHAT = "/v1/chat/completions"


def call(text: str = "Hi", **xargs: Any) -> Call:
    body = {"messages": [{"role": "user", "content": text}], "vllm_xargs": xargs}
    return Call([], json.dumps(body).encode(), CHAT)


def replicas(names: str = "ab", most_ongoing: int = 4, clock: Any = None, **options: Any) -> Replicas:
    made = Replicas(options, clock or ManualClock())
    made.listed({name: {} for name in names}, most_ongoing)
    return made


def best(made: Replicas, key: str = "1", text: str = "Hi", among: str = "ab") -> str:
    return bounded.run(made.ranks(key, call(text), tuple(among)))[0][0]


def test_the_replica_that_says_it_has_less_to_do_comes_first_and_the_others_follow() -> None:
    made = replicas("abc")
    made.counted("a", 3)
    made.counted("b", 1)
    made.counted("c", 2)
    assert bounded.run(made.ranks("1", call(), "abc")) == [["b"], ["a", "c"]]
    assert bounded.run(made.ranks("2", call(), "a")) == [["a"]]


def test_requests_of_this_router_count_from_the_choice_to_their_end() -> None:
    made = replicas()
    first = best(made, "1")
    other = best(made, "2")
    assert {first, other} == {"a", "b"}
    made.completed("1", first)
    assert best(made, "3") == first


def test_a_second_choice_for_a_request_replaces_the_first() -> None:
    made = replicas()
    assert {best(made, "same") for _ in range(5)} == {"a"}


def test_a_rejected_request_s_late_end_does_not_end_it_elsewhere() -> None:
    made = replicas()
    first = best(made, "1")
    made.routed("1", "ab".replace(first, ""))
    made.completed("1", first)
    made.counted(first, 0)
    assert best(made, "2") == first, "the other replica has it"


def test_what_a_replica_said_long_ago_counts_no_more() -> None:
    clock = ManualClock()
    made = replicas(clock=clock)
    made.counted("a", 3)
    assert best(made, "1") == "b"
    clock.advance_to(clock.now_s() + 11.0)
    assert best(made, "2") == "a", "others may have left it long since"


def test_a_prompt_goes_where_its_beginning_is() -> None:
    made = replicas()
    long = "rules " * 3_000
    home = best(made, "1", long)
    made.completed("1", home)
    made.counted(home, 1)
    assert best(made, "2", long) == home


def test_replicas_that_leave_get_nothing_and_new_ones_do() -> None:
    made = replicas()
    made.lost("a")
    assert best(made, "1") == "b"
    made.listed({"b": {}, "c": {}}, 4)
    made.counted("b", 2)
    assert best(made, "2", among="bc") == "c"


def test_while_all_are_busy_the_earliest_deadline_goes_first() -> None:
    async def main() -> list[str]:
        made = replicas("a", most_ongoing=2, clock=LoopClock(), hold_max_s=2.0)
        made.counted("a", 2)
        order = list[str]()

        async def asked(key: str, due_ms: int) -> None:
            await made.ranks(key, call(slo_e2e_ms=due_ms), "a")
            order.append(key)
            made.moved("a", 1)
            made.moved("a", -1)
            made.completed(key, "a")

        waiting = [asyncio.create_task(asked(key, due)) for key, due in (("late", 9_000), ("soon", 1_000))]
        await asyncio.sleep(0.1)
        assert order == []
        made.moved("a", -1)
        await asyncio.gather(*waiting)
        return order

    assert virtual_time.run(main()) == ["soon", "late"]


def test_what_record_routing_stats_returns_is_read() -> None:
    made = replicas()
    busy, idle = (routing_stats(metrics_page(running=n, waiting=n)) for n in (9, 0))
    made.listed({"a": busy, "b": idle}, 64)
    assert best(made) == "b"
    made.listed({"a": {"tokens": "many"}, "b": {"running": "x"}}, 64)
    assert routing_stats("nothing") == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hold_s": 1.0}, "request_router_kwargs: hold_s: "),
        ({"profile": "none-such"}, "none-such"),
        ({"settings": {"classes": {"a": {"rank": "x"}}}}, "request_router_kwargs: settings.classes.a.rank: "),
        ({"shed": ["batch"]}, "shed: a router of Ray Serve cannot refuse requests; leave it out"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Replicas(options, ManualClock())
    assert expected in str(caught.value)


@dataclass
class RawRequest:
    """As Ray Serve's LLM deployments get it."""

    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class HttpRequest:
    """As a deployment that serves HTTP gets it."""

    asgi_scope: dict[str, Any]


class ChatRequest:
    """A request of OpenAI's API as an object."""

    def model_dump_json(self, **given: bool) -> str:
        return '{"messages":[]}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (ChatRequest(), RawRequest({"X-SLO-Class": "batch"})),
            ([(b"x-slo-class", b"batch")], b'{"messages":[]}', CHAT),
        ),
        (({"prompt": "a"},), ([], b'{"prompt":"a"}', "/v1/completions")),
        (('{"messages": []}',), ([], b'{"messages": []}', CHAT)),
        ((b"bytes", 3), ([], b"bytes", "/v1/completions")),
        (("a text", None, object()), ([], None, "/v1/completions")),
        (({"x": object()},), ([], None, "/v1/completions")),
        ((HttpRequest({"path": CHAT, "headers": [(b"A", b"b")]}),), ([(b"a", b"b")], None, CHAT)),
        ((b"x" * (5 << 20),), ([], None, "/v1/completions")),
    ],
)
def test_a_call_says_what_its_arguments_do(arguments: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert read_call(arguments, {}) == read_call((), dict(enumerate(arguments))) == expected
