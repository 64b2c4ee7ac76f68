"""The front end around a fake engine: a request is predicted, told so, refused or let in; its fate is learnt from."""

import asyncio
import contextlib
import gc
import math
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.api.middleware import SLOMiddleware
from sloserve.core.errors import ShuttingDown
from sloserve.core.promises import Promised
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.collectors import REASONS
from sloserve.estimator.length.at_admission import LEVELS
from sloserve.estimator.length.examples import make_examples
from sloserve.estimator.length.training import LengthTrainingSettings, train
from sloserve.scheduler.settings import plugin_settings
from sloserve.vllm_plugin.server.observe import entering
from sloserve.vllm_plugin.server.stated import key_of, prompt_tokens, warn_operator
from sloserve.wire import context, errors
from sloserve.wire.context import HTTPContext
from sloserve.wire.keys import KeyTenant
from sloserve.wire.rate_limits import RateQuota, TenantRates
from sloserve.wire.resolve import classify_by
from sloserve.wire.xargs import LENGTH_KEY, PROMISED_KEY, TENANT_KEY, predicted_length, promised_first_s
from tests import bounded
from tests.http3.serving import ask, connected, listening, read, whole
from tests.vllm_plugin.server.fake_engine import T0, Malformed, Metrics, Refused, Server


def test_what_is_predicted_is_told_and_counted(metrics: Metrics) -> None:
    server = Server()
    first = server.http()
    server.serve(first)
    assert first.predicted == [] and metrics.served[0].predicted is None
    for _ in range(20):
        server.serve(server.http())
    http = server.http()
    server.serve(http)
    (told,) = http.predicted
    assert told.ttft is not None and told.e2e is not None
    assert told.ttft.median_s == pytest.approx(0.1, rel=0.05) and told.e2e.median_s == pytest.approx(0.29, rel=0.25)
    assert metrics.served[-1].predicted == told
    assert metrics.served[-1].latency is not None and metrics.reasons == []
    server.serve(None)  # plain vLLM has no middleware
    assert metrics.served[-1].predicted is not None


def test_a_request_that_ended_is_free_without_the_garbage_collector(metrics: Metrics) -> None:
    """Else the collector stops the server's loop for its 45 objects and what they hold."""
    server, http = Server(), HTTPContext(T0)
    gc.disable()
    try:
        observed = server.accept(http, {"prompt_token_ids": [0]})
        freed = weakref.ref(observed)
        observed.abandoned()
        del observed, http
        metrics.served.clear()
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("set_by_s", [0.0, -3600.0, 3600.0])
def test_setting_the_host_s_clock_changes_no_figure(metrics: Metrics, set_by_s: float) -> None:
    """Neither of the request at hand, nor of what is predicted, promised and admitted from then on."""
    server = Server(admission={"mode": "predict"})
    for _ in range(20):
        server.serve(server.http())
    server.serve(server.http(), clock_set_by_s=set_by_s)
    latency = metrics.served[-1].latency
    assert latency is not None
    assert (latency.ttft_s, latency.e2e_s) == (pytest.approx(0.1), pytest.approx(0.29))
    http = server.http(("x-slo-ttft-ms", "150"))
    server.serve(http)
    (told,) = http.predicted
    assert told.ttft is not None and told.ttft.median_s == pytest.approx(0.1, rel=0.05)
    assert metrics.served[-1].good


@pytest.mark.parametrize("set_by_s", [0.0, -3600.0, 3600.0])
def test_vllm_is_told_of_arrivals_by_the_clock_that_it_reads(metrics: Metrics, set_by_s: float) -> None:
    async def inputs() -> AsyncIterator[Any]:
        yield

    server = Server()
    http, prompt = server.http(), {"prompt_token_ids": [0]}
    server.clock.advance_to(T0 + 0.25)
    observed = server.accept(http, prompt)
    server.clock.set_wall(server.clock.now_s() + set_by_s)
    arrived_s = server.front_end.arrival_time(observed, prompt)
    assert arrived_s is not None and server.clock.now_s() - arrived_s == pytest.approx(0.25)
    assert server.front_end.arrival_time(observed, inputs()) is None, "each input of a session arrives by itself"


def test_vllm_s_figures_of_each_reply_are_kept(metrics: Metrics) -> None:
    """Also of one that ends before its request is whole, and of none that belongs to no request of ours."""
    server = Server()
    observed = server.accept(None, {"prompt_token_ids": [0]})

    def add(*names: str, log_stats: bool = True) -> None:
        for name in names:
            server.output_processor.add_request(SimpleNamespace(request_id=name), log_stats)

    add("other")
    token = entering.set(observed)
    try:
        add("0_a", "1_a", "0_a")
        del server.states["0_a"]
        add("2_a", log_stats=False)
    finally:
        entering.reset(token)
    assert list(observed.figures) == ["0_a", "1_a"]


def test_targets_in_a_body_become_deadlines_of_its_stream_over_http3(metrics: Metrics) -> None:
    """As the server's own parser found them, held to what the tenant may use; headers alone say nothing here."""
    section = {"tenants": {"acme": "batch"}}
    server, seen = Server(**section), {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        server.accept(context.current.get(), {"prompt_token_ids": [0]})
        (protocol,) = listener.protocols
        stream_id = max(protocol.exchanges)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        state = protocol.quic._order._states[stream_id]
        seen[scope["path"]] = state.urgency, state.deadline_s - asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": b""})

    async def test() -> None:
        nonlocal listener
        made = plugin_settings({"sloserve": section})
        classify = classify_by(made.rules, made.header_rules)
        async with listening(SLOMiddleware(app), classify=classify) as listener, connected(listener) as client:
            for path, tenant in (("/free", "any"), ("/held", "acme")):
                reply = ask(client, path, "POST", body=True, x_tenant_id=tenant, priority="u=0")
                await reply.send(b'{"slo": {"class": "priority", "e2e_ms": 50000}}', end=True)
                await whole(reply)

    listener: Any = None
    bounded.run(test())
    assert seen["/free"] == (0, pytest.approx(50, abs=10))
    assert seen["/held"] == (4, math.inf)


@pytest.mark.slow
def test_a_target_that_cannot_be_met_is_refused_under_predict_alone(metrics: Metrics) -> None:
    for mode, refused in (("none", False), ("predict", True)):
        server = Server(admission={"mode": mode})
        for _ in range(20):
            server.serve(server.http())
        http = server.http(("x-slo-ttft-ms", "5"))
        if not refused:
            server.serve(http)
            continue
        with pytest.raises(Refused, match="ttft target of 5 ms") as caught:
            server.serve(http)
        assert caught.value.status == 429
        assert http.rejection is not None and len(http.predicted) == 1
        assert errors.headers(http.rejection) == [
            ("x-slo-dropped-reason", "rejected-slo-unattainable"),
            ("x-llm-d-request-dropped-reason", "rejected-saturated"),
        ]
        assert metrics.reasons == ["rejected-slo-unattainable"] and metrics.served[-1].good is False


@pytest.mark.slow
def test_a_promise_reaches_the_engine_and_the_books(metrics: Metrics) -> None:
    server = Server(policy="edf")
    asks = ("x-slo-ttft-ms", "2000"), ("x-slo-promise", "0.9")
    refused = server.http(*asks)
    with pytest.raises(Refused, match="promise of 0.9: too few requests of its class have ended") as caught:
        server.serve(refused)
    assert caught.value.status == 429 and refused.rejection is not None
    assert errors.headers(refused.rejection)[0] == ("x-slo-dropped-reason", "rejected-promise")
    assert metrics.promises_refused == ["unknown"] and metrics.reasons == ["rejected-promise"]
    for _ in range(20):
        learning = server.http(*asks, ("x-slo-promise-fallback", "1"))
        server.serve(learning)
    assert promised_first_s(server.sent) is None or learning.promised != ["unknown"]
    given = server.http(*asks)
    server.serve(given)
    (promised,) = given.promised
    assert isinstance(promised, Promised) and promised.level == 0.9 and promised_first_s(server.sent) is not None
    first_s = promised_first_s(server.sent)
    assert first_s is not None and 0.0 < first_s - T0 - given.arrival_s < 2.0
    assert metrics.served[-1].promised == promised and metrics.served[-1].promise == "kept"
    none = server.http(asks[0])
    server.serve(none)
    assert none.promised == [] and promised_first_s(server.sent) is None and metrics.served[-1].promise is None


def test_a_client_cannot_state_that_it_was_promised(metrics: Metrics) -> None:
    server = Server(policy="edf")
    server.extra_args = {PROMISED_KEY: 1.0, "mine": 1}
    server.serve(server.http())
    assert server.sent == {"mine": 1}


def test_a_promise_of_a_gateway_is_taken_over_before_the_engine_knows_anything(metrics: Metrics) -> None:
    server = Server(policy="edf")
    headers = [(b"x-slo-ttft-ms", b"2000"), (b"x-slo-promise", b"0.9"), (b"x-slo-promised", b"0.9;first-ms=250")]
    for trusts, first in ((True, 0.25), (False, None)):
        http = HTTPContext(server.clock.monotonic_s())
        http.read_headers([*headers, (b"x-slo-promise-fallback", b"1")], replace(server.rules, trusts_gateway=trusts))
        server.serve(http)
        first_s = promised_first_s(server.sent)
        assert (first_s is None) is (first is None) and len(http.promised) == 1
        if first is not None and first_s is not None:
            assert first_s - T0 - http.arrival_s == pytest.approx(first)
            assert metrics.served[-1].promise == "kept"


def test_order_of_arrival_keeps_no_promise(metrics: Metrics) -> None:
    server = Server()
    for _ in range(20):
        server.serve(server.http(("x-slo-ttft-ms", "2000")))
    http = server.http(("x-slo-ttft-ms", "2000"), ("x-slo-promise", "0.5"), ("x-slo-promise-fallback", "1"))
    server.serve(http)
    assert http.promised == ["policy"] and metrics.promises_refused == ["policy"]


@pytest.mark.parametrize("body", [b"[", b'{"slo": 1}', b"{}"])
@pytest.mark.parametrize("header", ["x-slo-tfft-ms", "x-slo-tds"])
def test_a_refused_request_leaves_no_garbage(metrics: Metrics, body: bytes, header: str) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    first = server.accept(None, "text")

    def refused() -> None:
        http = server.http((header, "5"))
        http.read_body(body)
        with contextlib.suppress(Refused, Malformed):
            server.accept(http, {"prompt_token_ids": [0]})

    refused()
    gc.collect(1)
    gc.freeze()  # what other tests have left is not looked at again
    gc.disable()
    try:
        refused()
        assert gc.collect() == 0 and metrics.reasons[0] == metrics.reasons[1]
    finally:
        gc.enable()
    assert first.request.ticket is not None


def test_a_request_that_is_sent_again_is_known_by_what_it_asks_for() -> None:
    def key(tenant: str = "a", prompt: Any = None, **asked: Any) -> object:
        return key_of(tenant, prompt or {"prompt_token_ids": [1, 2]}, SimpleNamespace(max_tokens=5, **asked))

    assert key() == key() and key(prompt="Hello") == key(prompt={"prompt": "Hello"})
    different = [key(), key("b"), key(prompt={"prompt_token_ids": [1]}), key(prompt="Hello"), key(n=2), key(seed=1)]
    assert len(set(different)) == len(different)
    ids, cat, dog = [1, 2], "1f" * 32, "2e" * 32
    pictures = [
        {"prompt_token_ids": ids, "mm_hashes": digests}
        for digests in (
            {"image": [cat]},
            {"image": [dog]},
            {"image": [cat, dog]},
            {"image": [dog, cat]},
            {"video": [cat]},
        )
    ]
    pictures.append({"prompt_token_ids": ids, "encoder_prompt_token_ids": [3]})
    assert len({key(), *(key(prompt=one) for one in pictures)}) == 1 + len(pictures)
    both = {"video": [cat], "image": [dog]}
    assert key(prompt={"prompt": "a", "mm_hashes": both}) == key(
        prompt={"prompt": "a", "mm_hashes": dict(reversed(both.items()))}
    )
    for indistinct in (
        {"prompt": "a", "multi_modal_data": {"image": object()}},
        {"prompt_embeds": [0.5]},
        {"prompt_embeds": [0.5], "prompt_token_ids": [0]},
        {"encoder_prompt": 1},
    ):
        assert key(prompt=indistinct) is None and key(prompt=SimpleNamespace(**indistinct)) is None


def test_a_place_is_kept_for_a_request_that_was_refused(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 2})
    waiting = [server.accept(None, "text") for _ in range(2)]
    server.clock.advance_to(server.clock.now_s() + 1.0)
    waiting[0].request.ticket.started(server.clock.monotonic_s())
    server.accept(None, "text")
    with pytest.raises(Refused, match="retry in 1 s"):
        server.accept(None, "again")
    waiting[1].request.ticket.started(server.clock.monotonic_s())
    server.clock.advance_to(server.clock.now_s() + 1.0)
    with pytest.raises(Refused, match="1 of 2 .* wait, and 1 places are kept"):
        server.accept(None, "new")
    server.accept(None, "again")


def test_predict_has_the_cap_as_well(metrics: Metrics) -> None:
    server = Server(admission={"mode": "predict", "max_waiting": 2})
    for _ in range(2):
        server.accept(None, {"prompt_token_ids": [0]})
    with pytest.raises(Refused, match="queue full: 2 of 2"):
        server.accept(None, {"prompt_token_ids": [0]})
    assert metrics.reasons == ["rejected-saturated"]


def test_a_request_that_meets_a_stopping_server_has_a_reason_of_its_own(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()

    def check_open() -> None:
        raise ShuttingDown("the server is shutting down", 7)

    monkeypatch.setattr(server.front_end.drain, "check_open", check_open)
    with pytest.raises(Refused, match="shutting down"):
        server.accept(None, "text")
    assert metrics.reasons == ["shutting-down"] and metrics.reasons[0] in REASONS


def test_a_cap_is_that_of_all_front_ends_and_a_first_token_that_nobody_sees_frees_its_place_for_all(
    metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_folder, "page_folder", lambda: tmp_path)
    section = {"admission": {"mode": "cap", "max_waiting": 2}}
    first, second = (Server(rank, 2, **section) for rank in range(2))

    async def serve() -> None:
        observed = first.accept(None, "text", "FINAL_ONLY")
        observed.engine_request_id = "a"
        first.states["a"] = SimpleNamespace(is_prefilling=True)
        second.accept(None, "text")
        for server in (first, second):
            with pytest.raises(Refused, match="queue full: 2 of 2"):
                server.accept(None, "text")
        first.states["a"].is_prefilling = False
        first.clock.advance_to(T0 + 1.0)
        boards = second.front_end._boards
        await bounded.until(lambda: boards.waiting(0) + boards.waiting(1) == 0)
        second.accept(None, "text")
        first.front_end.close()
        second.front_end.close()

    bounded.run(serve())
    assert list(tmp_path.iterdir()) == []


def test_without_a_page_a_front_end_serves_on_its_own(
    metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(page_folder, "page_folder", lambda: tmp_path / "missing")
    server = Server(1, 2)
    assert "cannot publish what API process 1 counts" in caplog.text
    server.serve(None)
    assert metrics.served[-1].latency is not None


def test_what_the_operator_can_change_is_logged_once_and_not_told_to_clients(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    warn_operator.cache_clear()
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    server.accept(None, {"prompt_token_ids": [0]})
    for _ in range(2):
        with pytest.raises(Refused, match=r"^queue full: 1 of 1 requests of class 'interactive' wait; retry in \d+ s$"):
            server.accept(None, {"prompt_token_ids": [0]})
        with pytest.raises(Malformed, match=r"^priority: 3 is not 0, .*'fcfs' can use; state a class or targets$"):
            server.accept(server.http(), {"prompt_token_ids": [0]}, priority=3)
    assert [record.getMessage() for record in caplog.records] == [
        "clients of class 'interactive' get 429: admission.max_waiting requests are waiting",
        "a client states a priority, which policy 'fcfs' cannot use; --policy priority can",
    ]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ({"prompt_token_ids": [1, 2, 3]}, 3),
        (SimpleNamespace(prompt_token_ids=[1, 2]), 2),
        (SimpleNamespace(prompt_token_ids=None), None),
        ({"type": "embeds", "prompt_embeds": [[0.5, 0.5]] * 7}, 7),
        ({"prompt": "text"}, None),
        ("text", None),
    ],
)
def test_how_long_a_prompt_is(prompt: Any, tokens: int | None) -> None:
    assert prompt_tokens(prompt) == tokens


def test_a_request_whose_time_is_over_leaves_nothing_in_the_books(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    http = server.http(("x-request-ttl-ms", "300"))
    observed = server.accept(http, {"prompt_token_ids": [0]})
    kind = SimpleNamespace(name="DELTA")

    async def replies() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def read() -> None:
        async for _ in server.front_end.watch(observed, replies(), kind):
            pass

    async def give_up() -> None:
        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        assert http.is_waiting
        error = http.expire()
        assert (error.retry_after_s, errors.reason(error)) == (5, "rejected-ttl-expired")
        assert str(error).startswith("no token within the 300 ms of x-request-ttl-ms")
        reading.cancel()
        await asyncio.wait({reading})

    bounded.run(give_up())
    assert [served.outcome for served in metrics.served] == ["evicted"]
    assert metrics.reasons == ["rejected-ttl-expired"]
    assert server.front_end._admission.waiting("interactive") == 0
    server.serve()  # its place is free


def test_headers_that_were_passed_over_are_counted(metrics: Metrics) -> None:
    Server().serve(http := Server().http(("x-slo-deadline", "1")))
    assert http.headers.ignored == ("x-slo-deadline",) == metrics.ignored_names


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        ([("x-slo-e2e-ms", "500")], b"{}", "x-slo-e2e-ms: '500' is not allowed here: this route keeps no SLO"),
        ([("x-slo-class", "batch")], b"{}", "x-slo-class: 'batch' is not allowed here"),
        ([("x-slo-report", "1")], b"{}", "x-slo-report: True is not allowed here"),
        ([("x-slo-tfft-ms", "500")], b"{}", "did you mean x-slo-ttft-ms"),
        ([], b'{"slo": {"ttft_ms": 5}}', "slo.ttft_ms: 5 is not allowed here"),
        ([], b'{"slo": {"report": true}}', "slo.report: True is not allowed here"),
        ([], b'{"slo": 5}', "slo: 5 is not an object"),
        ([], b'{"vllm_xargs": {"slo_tds": 5}}', "vllm_xargs.slo_tds: 5 is not allowed here"),
        ([("x-tenant-id", "acme"), ("x-slo-report", "0")], b"{}", None),
        ([("x-slo-task", "law"), ("x-request-ttl-ms", "900")], b'{"slo": {}, "service_tier": "flex"}', None),
        ([], b'{"nvext": {"agent_hints": {"osl": 5}}, "input": "a"}', None),
    ],
)
def test_a_route_that_keeps_no_slo_refuses_one_and_passes_all_else(
    metrics: Metrics, headers: list[tuple[str, str]], body: bytes, says: str | None
) -> None:
    server = Server()
    http = server.http(*headers)
    http.read_body(body)
    token = context.current.set(http)
    try:
        if says is None:
            server.front_end.accept_pooling(None)
        else:
            with pytest.raises(Malformed, match=says):
                server.front_end.accept_pooling(None)
    finally:
        context.current.reset(token)
    assert metrics.reasons == ([] if says is None else ["invalid-request"]) and metrics.served == []
    server.front_end.accept_pooling(None)  # plain vLLM has no middleware


def test_what_is_due_already_is_not_refused_for_that(metrics: Metrics) -> None:
    server = Server(admission={"mode": "predict"})
    for _ in range(20):
        server.serve()
    with pytest.raises(Refused, match="ttft target of 2 ms"):
        server.serve(server.http(("x-slo-ttft-ms", "2")))
    server.serve(server.http(("x-slo-ttft-ms", "-20")))


@pytest.mark.parametrize(
    ("policy", "priority", "says"),
    [
        ("edf", 5, "priority: 5 is not 0, all that policy 'edf' can use"),
        ("edf", 0, None),
        ("priority", 2**63 - 1, None),
        ("priority", 2**63, "is not a whole number from -9223372036854775808 to 9223372036854775807"),
        ("priority", 10**30, "is not a whole number from"),
    ],
)
def test_a_priority_is_used_or_refused_with_the_middleware_or_without(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, policy: str, priority: int, says: str | None
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.server.engine_pages.find_pages", lambda: [])
    server = Server(policy=policy)
    for http in (None, server.http()):
        if says is None:
            server.accept(http, {"prompt_token_ids": [0]}, priority=priority)
        else:
            with pytest.raises(Malformed, match=says) as refused:
                server.accept(http, {"prompt_token_ids": [0]}, priority=priority)
            assert refused.value.parameter == "priority" and len(str(refused.value)) < 300


@pytest.mark.slow
def test_what_train_length_learned_reaches_the_engine_and_a_clients_own_quantiles_do_not(
    metrics: Metrics, tmp_path: Path
) -> None:
    tokens = np.arange(1, 201)
    model = train(make_examples(tokens, prompt_tokens=tokens), LengthTrainingSettings(levels=(0.1, 0.5, 0.9), trees=5))
    model.save(tmp_path / "model.json")
    server = Server(length_model=str(tmp_path / "model.json"))
    server.extra_args = {LENGTH_KEY: [1.0] * LEVELS.size}
    medians = []
    for prompt in (20, 180):
        observed = server.accept(None, {"prompt_token_ids": [0] * prompt})
        assert server.sent is not None
        quantiles = predicted_length(server.sent, LEVELS.size)
        assert quantiles is not None and list(quantiles) == sorted(quantiles)
        assert list(observed.request.ticket.new.length_quantiles) == list(
            quantiles
        )  # admission predicts latency with them
        medians.append(quantiles[2])
    assert 1.5 * medians[0] < medians[1]
    untrained = Server()
    untrained.extra_args = {LENGTH_KEY: [1.0] * LEVELS.size}
    untrained.accept(None, {"prompt_token_ids": [0]})
    assert LENGTH_KEY not in (untrained.sent or {})


def test_with_keys_a_request_of_which_no_middleware_has_checked_the_key_is_refused(
    metrics: Metrics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As under plain vLLM whose operator forgot --middleware."""
    warn_operator.cache_clear()
    server = Server(keys=str(tmp_path / "keys.yaml"))
    for call in (
        lambda: server.accept(server.http(), {"prompt_token_ids": [0]}),
        lambda: server.front_end.accept_pooling(None),
    ):
        with pytest.raises(Refused, match="the server cannot check keys") as caught:
            call()
        assert caught.value.status == 500
    assert "--middleware sloserve.api.middleware.SLOMiddleware" in caplog.text
    token = context.key_tenant.set(KeyTenant("acme"))
    try:
        server.front_end.accept_pooling(None)
        server.accept(None, {"prompt_token_ids": [0]})
        assert server.sent == {TENANT_KEY: "acme"}, "a websocket has no context but that of its key"
    finally:
        context.key_tenant.reset(token)


def test_the_class_of_a_key_holds_a_request_whatever_the_settings_give_its_tenant(metrics: Metrics) -> None:
    server = Server(tenants={"acme": "priority"}, tenant_default="background")
    http = server.http(("x-slo-class", "priority"))
    http.headers.tenant, http.slo_class = "acme", "batch"
    assert server.accept(http, {"prompt_token_ids": [0]}).request.slo.slo_class.name == "batch"
    http = server.http(("x-slo-class", "priority"))
    http.headers.tenant = "acme"
    assert server.accept(http, {"prompt_token_ids": [0]}).request.slo.slo_class.name == "priority"


@pytest.mark.parametrize("held_by", ["key", "settings"])
def test_the_class_of_a_key_holds_a_websocket_too(metrics: Metrics, held_by: str) -> None:
    server = Server(tenants={"acme": "batch"} if held_by == "settings" else {})
    token = context.key_tenant.set(KeyTenant("acme", "batch" if held_by == "key" else None))
    try:
        assert server.accept(None, {"prompt_token_ids": [0]}).request.slo.slo_class.name == "batch"
    finally:
        context.key_tenant.reset(token)
    assert server.accept(None, {"prompt_token_ids": [0]}).request.slo.slo_class.name == "interactive"


@pytest.mark.parametrize("output_kind", ["DELTA", "CUMULATIVE", "FINAL_ONLY"])
@pytest.mark.parametrize("fails", [None, asyncio.CancelledError()])
def test_the_tokens_of_a_request_count_in_the_limits_of_its_tenant_as_they_come(
    metrics: Metrics, output_kind: str, fails: BaseException | None
) -> None:
    server = Server()
    rates = TenantRates(server.clock)
    use = rates.admit("acme", RateQuota(tokens_per_minute=1000))
    token = context.request_use.set(use)
    seen = []

    async def handle() -> None:
        replies = server.generate(100, 5, output_kind=output_kind, fails=fails)
        if fails is not None:  # vLLM's figures say how many were computed
            figures = {"num_generation_tokens": 4, "num_preemptions": 0, "scheduled_ts": 0.0, "queued_ts": 0.0}
            server.calls[-1].figures["a"] = SimpleNamespace(**figures)
        with contextlib.suppress(asyncio.CancelledError):
            async for _ in replies:
                seen.append(rates.used()["acme"].output_tokens)

    try:
        server.handle(server.http(), handle())
    finally:
        context.request_use.reset(token)
    used = rates.used()["acme"]
    assert (used.prompt_tokens, used.output_tokens) == (100, 5 if fails is None else 4)
    streamed = [1, 2, 3, 4] if fails is not None else [1, 2, 3, 4, 5]
    assert seen == (streamed if output_kind != "FINAL_ONLY" else [] if fails is not None else [5])


def test_the_prompt_of_a_call_that_pools_counts_and_one_that_is_refused_does_not(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    rates = TenantRates(server.clock)
    token = context.request_use.set(rates.admit("acme", RateQuota()))
    try:
        server.front_end.accept_pooling({"prompt_token_ids": [0] * 30})
        server.accept(server.http(), {"prompt_token_ids": [0] * 5})
        with pytest.raises(Refused):
            server.accept(server.http(), {"prompt_token_ids": [0] * 1000})
    finally:
        context.request_use.reset(token)
    assert rates.used()["acme"].prompt_tokens == 35
