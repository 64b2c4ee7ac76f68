"""The choice of a server: what is known of servers, and what becomes of a request that finds no room."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.fleet.beside.choice_settings import ChoiceSection, ServedModel
from sloserve.fleet.beside.picking import Pick, PickedBy, Picking
from sloserve.fleet.beside.request_reading import HowRead, RequestReading
from sloserve.fleet.beside.server_figures import ServerFigures
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.scheduler.settings import PluginSettings
from tests import bounded
from tests.client import virtual_time
from tests.client.virtual_time import LoopClock

READING = RequestReading(PluginSettings())
PATH = "/v1/chat/completions"
SMALL = {"m": ServedModel.model_validate({"flags": {"max_num_seqs": 2}})}


def request(text: str = "Hi", arrival_s: float = 0.0, **fields: Any) -> GatewayRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return READING.read([], json.dumps(body).encode(), PATH, arrival_s)[0]


def picking(loads: dict[str, int], models: dict[str, ServedModel] | None = None, **given: Any) -> Picking:
    """Return servers of model m with these numbers of requests."""
    made = Picking(models or {}, ChoiceSection.model_validate(given), given.pop("clock", ManualClock()))
    made.servers.listed(list(loads))
    for name, requests in loads.items():
        made.reported(name, ServerFigures("m", requests), 0)
    return made


def picked(made: Picking, subset: list[str] | None = None, **fields: Any) -> Pick | None:
    return bounded.run(made.pick(request(**fields), subset))


def test_the_server_with_the_least_to_do_is_chosen_and_keeps_the_conversation() -> None:
    made = picking({"a": 9, "b": 0})
    first = picked(made, text="rules " * 3_000)
    assert first is not None and (first.server, first.why) == ("b", PickedBy.ROOM)
    spread = Counter(one.server for _ in range(40) if (one := picked(made, text="short")) is not None)
    assert len(spread) == 2, "what was sent counts before it is reported"
    again = picked(made, text="rules " * 3_000)
    assert again is not None and again.server == "b", "its prompt is computed there"


def test_without_affinity_the_load_alone_counts() -> None:
    made = picking({"a": 0, "b": 0}, affinity=False)
    assert {one.server for _ in range(2) if (one := picked(made, text="x" * 9_000)) is not None} == {"a", "b"}


def test_a_model_that_no_server_states_goes_to_any_and_a_known_one_to_its_servers() -> None:
    made = picking({"a": 3, "b": 1})
    made.servers.listed(["a", "b", "c"])
    made.reported("c", ServerFigures("other", 0), 0)
    made.servers.served("a", ["m", "lora"])
    for model, server in (("m", "b"), ("other", "c"), ("lora", "a"), ("strange", "c"), (None, "c")):
        one = picked(made, model=model)
        assert one is not None and one.server == server, model
        made.ended(one)
    only = picked(made, ["a", "b"], model="other")
    assert only is not None and only.server == "b", "of the subset nobody has it: the engine says so"


def test_servers_that_leave_the_list_are_forgotten() -> None:
    made = picking({"a": 0, "b": 5})
    made.servers.listed(["b"])
    one = picked(made)
    assert one is not None and one.server == "b" and list(made.instances.by_name) == ["b"]
    made.reported("a", ServerFigures("m"), 0)
    assert list(made.instances.by_name) == ["b"], "an answer that was on its way"


def test_where_no_server_has_room_the_wait_ends_and_the_cheapest_queue_gets_the_request() -> None:
    async def main() -> tuple[Pick | None, float]:
        clock = LoopClock()
        made = Picking(SMALL, ChoiceSection(hold_max_s=1.5), clock)
        made.servers.listed(["a", "b"])
        for name, requests in (("a", 30), ("b", 3)):
            made.reported(name, ServerFigures("m", 2, requests - 2), 0)
        began_s = clock.monotonic_s()
        return await made.pick(request(arrival_s=began_s)), clock.monotonic_s() - began_s

    one, waited_s = virtual_time.run(main())
    assert one is not None and (one.server, one.why, one.held_s) == ("b", PickedBy.FULL, waited_s)
    assert waited_s == pytest.approx(1.5)


def test_room_that_comes_ends_the_wait_of_the_most_urgent() -> None:
    async def main() -> list[int]:
        clock, order = LoopClock(), list[int]()
        made = Picking(SMALL, ChoiceSection(hold_max_s=30.0), clock)
        made.servers.listed(["a"])
        made.reported("a", ServerFigures("m", 2), 0)

        async def asked(due_ms: int) -> None:
            xargs = {"slo_e2e_ms": due_ms}
            one = await made.pick(request(arrival_s=clock.monotonic_s(), vllm_xargs=xargs))
            assert one is not None and one.why is PickedBy.HELD
            order.append(due_ms)
            made.ended(one)

        tasks = [asyncio.create_task(asked(due_ms)) for due_ms in (9_000, 3_000, 6_000)]
        await bounded.until(lambda: made.waiting == 3)
        made.reported("a", ServerFigures("m", 1), made.instances.sent())
        await asyncio.gather(*tasks)
        return order

    assert virtual_time.run(main()) == [3_000, 6_000, 9_000]


def test_a_class_that_is_shed_is_refused_only_where_servers_are_full() -> None:
    made = picking({"a": 2}, SMALL, hold_max_s=0.0, shed=("interactive",))
    with pytest.raises(QueueFull, match="no server has room for requests of class interactive; retry in 5 s"):
        picked(made)
    made.servers.lost("a")
    one = picked(made)
    assert one is not None and one.why is PickedBy.SILENT, "nothing is known of it"


def test_the_list_of_waiting_requests_has_an_end() -> None:
    async def main() -> list[PickedBy]:
        made = Picking(SMALL, ChoiceSection(hold_max_s=2.0, max_held=1), LoopClock())
        made.servers.listed(["a"])
        made.reported("a", ServerFigures("m", 2), 0)
        arrival_s = LoopClock().monotonic_s()
        found = await asyncio.gather(*(made.pick(request(arrival_s=arrival_s)) for _ in range(3)))
        return [one.why for one in found if one is not None]

    assert virtual_time.run(main()) == [PickedBy.FULL] * 3


def test_a_request_that_has_ended_counts_no_more_though_no_new_figures_have_come() -> None:
    made = picking({"a": 0, "b": 0})
    first = picked(made)
    assert first is not None and first.server == "a"
    made.reported("a", ServerFigures("m", 0), made.instances.sent())
    instance = made.instances.by_name["a"]
    assert instance.report.running.requests == 1, "the server has not counted it yet"
    made.ended(first)
    assert instance.report.running.requests == 0 and instance.in_flight == 0


def test_others_are_named_best_first_and_never_twice() -> None:
    made = Picking({}, ChoiceSection(), ManualClock(), others=4)
    made.servers.listed(["a", "b", "c"])
    for name, requests in (("a", 8), ("b", 0), ("c", 3)):
        made.reported(name, ServerFigures("m", requests), 0)
    one = picked(made)
    assert one is not None and (one.server, one.others) == ("b", ("c", "a"))
    made.moved(one, "c")
    assert [made.instances.by_name[name].in_flight for name in "abc"] == [0, 0, 1]
    made.ended(one)
    made.ended(one)
    assert [made.instances.by_name[name].in_flight for name in "abc"] == [0, 0, 0]


HEADERS = [(b"x-slo-class", b"batch"), (b"x-gateway-model-name", b"m")]
BAD = [(b"x-slo-ttft-ms", b"soon")]
BODY = b'{"model": "m", "prompt": "some words"}'


@pytest.mark.parametrize(
    ("headers", "body", "path", "expected"),
    [
        (HEADERS, BODY, "/v1/completions?x=1", (HowRead.WHOLE, "m", "batch")),
        (HEADERS, None, "/v1/completions", (HowRead.WITHOUT_BODY, "m", "batch")),
        (HEADERS, b"[" * 5_000, "/v1/completions", (HowRead.WITHOUT_BODY, "m", "batch")),
        (BAD, BODY, "/v1/completions", (HowRead.WITHOUT_SLO, "m", "interactive")),
        (BAD, b"no", "/v1/completions", (HowRead.WITHOUT_BODY, "", "interactive")),
        (HEADERS, b"no form", "/v1/audio/transcriptions", (HowRead.WITHOUT_BODY, "m", "batch")),
        ([], b'{"model": 7}', "/v1/completions", (HowRead.WHOLE, "", "interactive")),
    ],
)
def test_a_request_is_read_as_far_as_it_can_be(
    headers: list[tuple[bytes, bytes]], body: bytes | None, path: str, expected: tuple[HowRead, str, str]
) -> None:
    found, how = READING.read(headers, body, path, 0.0, 4_000)
    assert (how, found.model, found.slo_class) == expected
    assert (found.prompt_tokens >= 1_000) == (how is HowRead.WITHOUT_BODY)
