"""Where a request goes, and in which order those go that have to wait: no sockets."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.core.slo import SLO
from sloserve.core.spans import Phase
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.gateway_instance import FRESH_S
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader
from sloserve.fleet.gateway.held import HeldTooLong, Hold, HoldFull
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import LOCAL, Tenant
from sloserve.fleet.gateway.limits import RequestPlaces
from sloserve.fleet.gateway.prediction import Pace, Work, paces_of
from sloserve.fleet.gateway.prefixes import MOST, PrefixTable, beginnings, names_of, part
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums
from sloserve.wire.asgi import SLO_KNOWN
from tests import bounded
from tests.fleet.gateway.played_agents import FLEET, parse_fleet

PROFILE = load_profile("h100-llama3-8b")
PACES = {("m", "h100"): Pace(Serving(PROFILE, EngineSize(256, 8192, PROFILE.kv_capacity_tokens)))}
ROUTE = "/v1/chat/completions"
ACTIVE = {"m": ModelState.ACTIVE, "n": ModelState.WARM}


def report(name: str, room: int = 10, *, phase: Phase = Phase.SERVING, **given: Any) -> InstanceReport:
    return InstanceReport(name, "h100", phase, given.pop("models", ACTIVE), room=room, **given)


def fleet(*reports: InstanceReport, affinity: bool = True) -> Instances:
    made = Instances(PACES, affinity)
    made.reported(AgentReport("a", "unix:a", reports), "unix:a", 0, 0.0)
    return made


def conversation(*texts: str) -> Any:
    raw = json.dumps([{"role": "user", "content": text} for text in texts]).encode()
    return beginnings("m", part(msgspec.Raw(raw)), part(None))


def chosen(instances: Instances, prompt: Any = (), slo_class: str = "c") -> str | None:
    found = instances.choose("m", slo_class, Work(1, 3_000, 10), prompt, 0.0)
    return None if found is None else found.name


def test_the_least_loaded_of_the_instances_with_room_is_chosen() -> None:
    busy = RunningSums(20, 20_000.0, 50_000.0, 4_000.0, 1e6, 300.0)
    instances = fleet(
        report("busy", running=busy), report("full", 0), report("idle"), report("new", phase=Phase.SWITCHING)
    )
    assert chosen(instances) == "idle"
    for _ in range(10):  # as much work as the busy one has, all of it sent since the report
        instances.by_name["idle"].send(Work(1, 5_000, 400), ())
    assert chosen(instances) == "busy" and instances.by_name["idle"].room == 0
    assert instances.choose("n", "c", Work(), (), 0.0) is None
    assert instances.choose("m", "c", Work(), (), FRESH_S) is None, "what an agent said long ago does not count"


def test_the_plans_instances_come_first_while_they_have_room() -> None:
    instances = fleet(
        report("a"), report("b", running=RunningSums(9, 9_000.0, 9_000.0, 900.0, 1e5, 100.0)), report("c")
    )
    queues = {"b": (PlannedGroup(-1, "m", "c"),), "c": (PlannedGroup(-2, "m", "other"),)}
    instances.plan = PlanInForce(0.0, queues)
    assert (chosen(instances), chosen(instances, slo_class="other"), chosen(instances, slo_class="x")) == (
        "b",
        "c",
        "a",
    )
    instances.by_name["b"].refused()
    assert chosen(instances) in ("a", "c")


def test_the_next_round_of_a_conversation_goes_where_the_last_one_went() -> None:
    for affinity, instance in ((True, "b"), (False, "a")):
        instances = fleet(report("a"), report("b"), affinity=affinity)
        instances.by_name["b"].send(Work(1, 100, 1), conversation("system " * 2_000, "hello"))
        instances.reported(AgentReport("a", "unix:a", (report("a"), report("b"))), "unix:a", instances.sent(), 0.0)
        assert chosen(instances, conversation("system " * 2_000, "hello", "answer", "and?")) == instance
        assert chosen(instances, conversation("another " * 2_000, "hello")) == "a"
    instances = fleet(report("a"), report("b"))
    instances.by_name["b"].send(Work(1, 100, 1), conversation("system " * 2_000))
    asleep = report("b", phase=Phase.DRAINING)
    for one in (asleep, report("b")):
        instances.reported(AgentReport("a", "unix:a", (one,)), "unix:a", instances.sent(), 0.0)
    assert chosen(instances, conversation("system " * 2_000)) == "a", "its cache left with its model"


def test_a_prompt_leaves_its_prefix_once_the_queue_there_costs_more_than_to_compute_it_again() -> None:
    prompt = conversation("word " * 20_000, "hello")

    def chosen_with(waiting_tokens: float, others: int, elsewhere: int = 1) -> str | None:
        loads = {
            name: RunningSums(requests, prefill_tokens=tokens, context_tokens=1_000.0 * requests)
            for name, requests, tokens in (("home", others, waiting_tokens), ("other", elsewhere, 0.0))
        }
        instances = fleet(report("home"), report("other"))
        instances.by_name["home"].send(Work(1, 25_000, 10), prompt[:1])
        told = tuple(report(name, running=load) for name, load in loads.items())
        instances.reported(AgentReport("a", "unix:a", told), "unix:a", instances.sent(), 0.0)
        found = instances.choose("m", "c", Work(1, 25_000, 10), prompt, 0.0)
        return None if found is None else found.name

    assert chosen_with(0.0, 1) == "home"
    # By its own time alone it would go to the other instance, where one request would wait 25,000 tokens longer.
    assert chosen_with(20_000.0, 1, elsewhere=1) == "home"
    assert chosen_with(20_000.0, 1, elsewhere=0) == "other"
    assert chosen_with(40_000.0, 1, elsewhere=1) == "other"
    assert chosen_with(40_000.0, 1, elsewhere=8) == "home"


def test_a_prompt_goes_where_another_gateway_sent_the_call_before_it() -> None:
    first = conversation("system " * 2_000, "hello")
    for cached, instance in (
        (names_of(first), "b"),
        (names_of(conversation("system " * 2_000, "hello", "a last message that is changed")), "b"),
        (names_of(conversation("other " * 2_000)), "a"),
        ({"no digest": 9_000, "": 9_000}, "a"),
    ):
        instances = fleet(report("a"), report("b", cached=cached))
        assert chosen(instances, conversation("system " * 2_000, "hello", "answer", "and?")) == instance
    instances = fleet(report("a"), report("b", cached=names_of(first)))
    for one in (report("b", phase=Phase.DRAINING, cached=names_of(first)), report("b")):
        instances.reported(AgentReport("a", "unix:a", (one,)), "unix:a", instances.sent(), 0.0)
    assert chosen(instances, conversation("system " * 2_000, "hello", "answer", "and?")) == "a"


@pytest.mark.slow
def test_beginnings_are_cut_after_messages_and_bounded() -> None:
    first, second = conversation("a", "b"), conversation("a", "b", "c")
    assert first == second[:2] and first[0].digest != conversation("b")[0].digest
    assert len(conversation(*["x"] * 500)) == 64
    assert beginnings("m", part(msgspec.Raw(b"5")), part(None)) == () == beginnings("m", part([]), part(msgspec.Raw()))
    text = json.dumps("word " * 2_000).encode()
    cuts = beginnings("m", part(None), memoryview(text))
    assert len(cuts) == 5 and cuts[-1].tokens == len(text) // 4
    assert beginnings("m", part(None), memoryview(text + b"more"))[:4] == cuts[:4]
    table = PrefixTable()
    for i in range(2 * MOST):
        table.sent(conversation(str(i)))
    assert len(table) == MOST and table.cached_tokens(conversation("0")) == 0
    assert table.cached_tokens(conversation(str(2 * MOST - 1))) > 0


def test_a_beginning_counts_until_the_cache_was_sent_as_much_as_it_holds() -> None:
    table, first = PrefixTable(), conversation("system " * 400)
    tokens = first[-1].tokens
    table.capacity_tokens = tokens + 1000
    table.sent(first, tokens)
    table.sent(conversation("another"), 1000)
    assert table.cached_tokens(first) == tokens
    table.sent(conversation("a third"), 1)
    assert table.cached_tokens(first) == 0
    table.sent(first, tokens)  # computed again, it is there again
    assert table.cached_tokens(first) == tokens


def test_the_shorter_beginning_stays_for_longer() -> None:
    table, whole = PrefixTable(), conversation("system " * 400, "question " * 400)
    table.capacity_tokens = whole[-1].tokens
    table.sent(whole, whole[-1].tokens)
    table.sent(conversation("another"), 1)
    assert table.cached_tokens(whole) == whole[0].tokens


def test_a_conversation_goes_elsewhere_once_its_prefix_is_displaced() -> None:
    """Without the size of the cache an instance would be believed to have all that it was ever sent."""
    first = conversation("system " * 2_000)
    for capacity, expected in ((1 << 20, "b"), (PROFILE.max_num_batched_tokens, "a")):
        paces = {("m", "h100"): Pace(Serving(PROFILE, EngineSize(256, 8192, capacity)))}
        instances = Instances(paces)
        instances.reported(AgentReport("a", "unix:a", (report("a"), report("b"))), "unix:a", 0, 0.0)
        instances.by_name["b"].send(Work(1, first[-1].tokens, 10), first)
        instances.by_name["b"].prefixes.sent(conversation("another"), PROFILE.max_num_batched_tokens)
        both = report("a"), report("b", running=RunningSums(requests=1, output_tokens=10.0))
        instances.reported(AgentReport("a", "unix:a", both), "unix:a", instances.sent(), 0.0)
        assert chosen(instances, conversation("system " * 2_000, "hello")) == expected


def test_what_engines_keep_on_the_host_is_not_counted_as_lost() -> None:
    assert all(math.isfinite(pace.kv_tokens) for pace in paces_of(parse_fleet(FLEET)).values())
    extended = FLEET.replace("host_memory_gib: 64", "swap_space_gib: 8")
    assert all(math.isinf(pace.kv_tokens) for pace in paces_of(parse_fleet(extended)).values())


def test_what_a_cache_holds_is_not_known_where_arguments_or_others_may_say_otherwise() -> None:
    connected = FLEET.replace("chat: {profile", "chat: {arguments: [--kv-offloading-size, '8'], profile")
    found = {model: math.isinf(pace.kv_tokens) for (model, _), pace in paces_of(parse_fleet(connected)).items()}
    assert found == {"chat": True, "legal": False}


@given(st.lists(st.sampled_from(["send", "end", "ask", "told", "refused"]), max_size=40))
def test_room_is_never_more_than_there_is(steps: list[str]) -> None:
    """Against an engine that knows what it has: the gateway may think it fuller, never emptier, but for refusals."""
    seats = 5
    instances = fleet(report("a", seats))
    instance, flights = instances.by_name["a"], []
    asked: tuple[int, int] | None = None
    for step in steps:
        if step == "send" and instance.room > 0:
            assert len(flights) < seats
            flights.append(instance.send(Work(), ()))
        elif step == "end" and flights:
            flights.pop(0).end()
        elif step == "ask" and asked is None:
            asked = instances.sent(), seats - len(flights)
        elif step == "told" and asked is not None and asked[1] <= seats - len(flights):
            told, room = asked[0], min(asked[1], seats - len(flights))
            instances.reported(AgentReport("a", "unix:a", (report("a", room),)), "unix:a", told, 0.0)
            asked = None
        elif step == "refused" and flights:
            flights.pop().end(refused=True)
            assert instance.room == 0


def waiting(name: str, due_s: float, **given: Any) -> HeldRequest:
    return HeldRequest("m", name, 0.0, due_s, **given)


def run(test: Callable[[], Awaitable[None]]) -> None:
    bounded.run(test())  # type: ignore[arg-type]


def test_the_earliest_deadline_goes_first_and_others_models_do_not_wait() -> None:
    async def test() -> None:
        models = {"m": ModelState.WARM, "n": ModelState.ACTIVE}
        instances = fleet(report("full", 0), report("n", models=models))
        hold = Hold(instances, ManualClock(0.0), most=3)
        went: list[str] = []

        async def go(wanted: HeldRequest) -> None:
            flight = await hold.flight(wanted)
            went.append(wanted.slo_class)
            flight.end()
            hold.let_go()

        tasks = [asyncio.create_task(go(w)) for w in (waiting("late", 9.0), waiting("soon", 1.0), waiting("gone", 0.5))]
        await asyncio.sleep(0)
        assert len(hold) == 3 and hold.waits.is_set() and [w.slo_class for w in hold.held] == ["late", "soon", "gone"]
        with pytest.raises(HoldFull):
            await hold.flight(waiting("more", 0.0))
        (await hold.flight(HeldRequest("n", "other", 0.0))).end()
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        instances.reported(AgentReport("a", "u", (report("full", 1),)), "u", instances.sent(), 0.0)
        hold.let_go()
        await asyncio.gather(*tasks[:2])
        assert went == ["soon", "late"] and len(hold) == 0 and not hold.waits.is_set()
        assert instances.by_name["full"].room == 1

    run(test)


def test_a_wait_has_an_end_and_one_who_leaves_gives_the_place_back() -> None:
    async def test() -> None:
        instances = fleet(report("a", 0))
        hold = Hold(instances, ManualClock(0.0), most=10)
        with pytest.raises(HeldTooLong):
            await hold.flight(waiting("x", 1.0, until_s=0.0))
        leaving = asyncio.create_task(hold.flight(waiting("x", 1.0)))
        await asyncio.sleep(0)
        instances.reported(AgentReport("a", "u", (report("a", 1),)), "u", instances.sent(), 0.0)
        hold.let_go()
        assert instances.by_name["a"].room == 0
        leaving.cancel()  # after it was let go, before it ran on
        await asyncio.gather(leaving, return_exceptions=True)
        assert leaving.cancelled() and instances.by_name["a"].room == 1
        for _ in range(200):  # behind one that stays
            one = asyncio.create_task(hold.flight(waiting("y", 2.0)))
            await asyncio.sleep(0)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
        assert sum(len(queue) for by_tenant in hold.held._queues.values() for queue in by_tenant.values()) <= 3

    run(test)


def test_a_request_that_was_let_go_waits_no_more_even_before_it_has_its_turn() -> None:
    """Who asks doors looks at this, and would ask them without an end in between."""

    async def scenario() -> None:
        instances = fleet(report("a", 0))
        hold = Hold(instances, ManualClock(0.0), most=3)
        waiting = asyncio.create_task(hold.flight(HeldRequest("m", "c", 0.0)))
        await asyncio.sleep(0)
        assert hold.waits.is_set()
        instances.reported(AgentReport("a", "unix:a", (report("a", 1),)), "unix:a", instances.sent(), 0.0)
        hold.let_go()
        assert not hold.waits.is_set() and len(hold) == 0
        (await waiting).end()

    bounded.run(scenario())


def test_a_body_is_restated_without_reading_what_engines_may_refuse() -> None:
    digits = "1" * 5000  # more than Python turns into a number
    body = f'{{"model":"auto","slo":{{"ttft_ms":5,"report":true}},"seed":{digits}}}'.encode()
    request = GatewayRequestReader(PluginSettings()).read([], body, Tenant("a", "batch"), "id", ROUTE)
    request.to_model("chat")
    assert request.body.startswith(b'{"model":"chat","seed":111') and b'"slo":{"report":true}' in request.body
    odd = GatewayRequestReader(PluginSettings()).read(
        [], b'{"model":"auto","temperature":NaN}', Tenant("a"), "id", ROUTE
    )
    odd.to_model("chat")
    assert odd.body == b'{"model": "chat", "temperature": NaN}'


@pytest.mark.parametrize("route", ["/v1/embeddings", "/tokenize"])
def test_an_engine_is_told_no_slo_on_a_route_where_it_would_refuse_one(route: str) -> None:
    """The gateway itself goes by it."""
    headers = [(b"x-slo-e2e-ms", b"9000"), (b"x-slo-class", b"batch"), (b"x-slo-report", b"1")]
    ttl = (b"x-request-ttl-ms", b"500")
    reader = GatewayRequestReader(PluginSettings(record_mib=1))
    request = reader.read([*headers, ttl], b'{"model":"m"}', Tenant("a"), "id", route)
    assert request.slo.targets.e2e_s == 9.0 and request.slo_class == "batch"
    assert [name for name, _ in request.headers_after(0.1)] == ["x-request-id", "x-tenant-id", "x-request-ttl-ms"]
    generates = reader.read([*headers, ttl], b'{"model":"m"}', Tenant("a"), "id", ROUTE)
    assert {name.decode() for name, _ in headers} <= {name for name, _ in generates.headers_after(0.1)}
    assert ("x-slo-held-ms", "100;e2e-ms=9000") in generates.headers_after(0.1)
    assert "x-slo-held-ms" not in dict(generates.headers_after(0.0004))
    unrecorded = GatewayRequestReader(PluginSettings()).read(headers, b'{"model":"m"}', Tenant("a"), "id", ROUTE)
    assert "x-slo-held-ms" not in dict(unrecorded.headers_after(0.1)), "an older engine may refuse a header it lacks"


def test_a_server_that_sends_answers_by_their_slo_is_told_what_the_body_states() -> None:
    """Before a model is looked for: here there is none, and the answer is an error."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"model": "none", "slo": {"class": "batch", "e2e_ms": 9000}}'}

    async def send(message: dict[str, Any]) -> None:
        pass

    told: list[SLO] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions"}
    scope |= {"headers": [], "query_string": b"", "extensions": {SLO_KNOWN: told.append}}
    bounded.run(Gateway(parse_fleet(FLEET), GatewayDependencies()).app(scope, receive, send))  # type: ignore[arg-type]
    (slo,) = told
    assert (slo.slo_class.name, slo.targets.e2e_s) == ("batch", 9.0)


def test_one_tenant_takes_no_more_than_half_of_the_room_for_bodies() -> None:
    within = RequestPlaces(8, 100)
    with within.place(Tenant("a")) as a, within.place(Tenant("b")) as b, within.place(Tenant(LOCAL)) as alone:
        a.take(50)
        with pytest.raises(QueueFull, match="your waiting requests have 50 of 50 bytes"):
            a.take(1)
        b.take(20)
        alone.take(30)
        with pytest.raises(QueueFull, match="waiting requests of 100 of"):
            alone.take(1)
        a.forget_body()
        alone.take(50)
    assert within.bytes == within.requests == 0
