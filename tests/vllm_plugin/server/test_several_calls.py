"""One HTTP request that calls the engine several times: as one request, or as a list of requests that begin at once."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.slo import DEFAULT_CLASSES, DUE_NOW_S, Targets
from sloserve.engine.read_stated import StatedReader
from sloserve.wire.context import HTTPContext
from sloserve.wire.xargs import PROGRESS_KEY
from tests import bounded
from tests.vllm_plugin.server.fake_engine import T0, Malformed, Metrics, Refused, Server


async def read(replies: Any) -> list[Any]:
    return [one async for one in replies]


async def beam_search(server: Server, steps: int, beams: int = 4, first_s: float = 0.1, **asked: Any) -> None:
    """As vLLM's: one call for each beam and token, those of a step at once, with parameters that all of them share."""
    params = SimpleNamespace(extra_args=None, max_tokens=1, n=1)
    for step in range(steps):
        tasks = [
            asyncio.create_task(read(server.generate(first_s=0.01 if step else first_s, params=params, **asked)))
            for _ in range(beams if step else 1)
        ]
        await asyncio.gather(*tasks)


@pytest.mark.slow
def test_a_beam_search_is_admitted_judged_and_counted_once(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    http = server.http(("x-slo-ttft-ms", "150"), ("x-slo-e2e-ms", "1000"), ("x-slo-tpot-ms", "20"))
    server.handle(http, beam_search(server, 48))
    (served,) = metrics.served
    assert served.outcome is Outcome.COMPLETED and metrics.reasons == [] and http.served == [served]
    assert served.latency is not None
    assert served.latency.ttft_s == pytest.approx(0.1) and served.latency.e2e_s == pytest.approx(0.1 + 47 * 0.01)
    assert served.latency.tpot_s == pytest.approx(0.01), "four beams compute the same token of the reply at once"
    assert served.output_tokens == 1 + 4 * 47 and served.prompt_tokens == 100 and served.qoe is None
    assert served.met == {"ttft": True, "tpot": True, "e2e": True}
    assert server.front_end.drain.in_flight == 0


def test_later_calls_get_what_is_left_of_the_targets(metrics: Metrics) -> None:
    server, reader = Server(), StatedReader(DEFAULT_CLASSES)
    http = server.http(("x-slo-ttft-ms", "150"), ("x-slo-e2e-ms", "125"), ("x-slo-tpot-ms", "20"))
    server.handle(http, beam_search(server, 4))
    first, *later = [reader.read(stated).slo for stated in server.stated]
    assert first.targets == Targets(0.15, 0.02, 0.125) and PROGRESS_KEY not in server.stated[0]
    assert {(one.targets.ttft_s, one.targets.tpot_s, one.slo_class.name) for one in later} == {
        (None, 0.02, "interactive")
    }
    left_s = [one.targets.e2e_s for one in later[::4]]
    assert left_s == [pytest.approx(0.025), pytest.approx(0.015), pytest.approx(0.005)]
    assert [call.is_first for call in server.calls] == [True] + [False] * 12
    arrived_s = [server.front_end.arrival_time(call, {}) for call in server.calls[::4]]
    assert [at_s - T0 - http.arrival_s for at_s in arrived_s if at_s] == pytest.approx([0.0, 0.1, 0.11, 0.12])

    late = server.http(("x-slo-e2e-ms", "50"))
    server.handle(late, beam_search(server, 2))
    assert reader.read(server.stated[-1]).slo.targets.e2e_s == DUE_NOW_S


@pytest.mark.slow
def test_what_it_takes_teaches_nothing_of_other_requests(metrics: Metrics) -> None:
    """Seen: forecasts 20 times too long for 20 requests."""

    def told(server: Server) -> Any:
        http = server.http()
        server.serve(http)
        (found,) = http.predicted
        return found

    plain, beams = Server(), Server()
    for server in (plain, beams):
        for _ in range(20):
            server.serve(server.http())
    for _ in range(5):
        plain.serve(plain.http())
        beams.handle(beams.http(), beam_search(beams, 64))
    http = beams.http()
    beams.handle(http, beam_search(beams, 3))
    (of_search,) = http.predicted
    assert of_search.ttft is not None and of_search.e2e is None, "its e2e latency was predicted as that of one call"
    assert metrics.served[-1].predicted == of_search
    without, after = told(plain), told(beams)
    assert after.ttft.p90_s == pytest.approx(without.ttft.p90_s, rel=0.01)
    assert after.e2e.median_s == pytest.approx(without.e2e.median_s, rel=0.01)
    assert after.e2e.p90_s == pytest.approx(without.e2e.p90_s, rel=0.01)


def test_it_waits_until_its_first_token_alone(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    waiting = []

    async def search() -> None:
        params = SimpleNamespace(extra_args=None, max_tokens=1, n=1)
        for _ in range(3):
            await read(server.generate(params=params))
            waiting.append((server.front_end._admission.waiting("interactive"), http.is_waiting))

    http = server.http()
    server.handle(http, search())
    assert waiting == [(0, False)] * 3


@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError("engine"), Outcome.FAILED), (asyncio.CancelledError(), Outcome.ABORTED)]
)
def test_it_ends_once_with_the_first_call_that_fails(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, error: BaseException, outcome: Outcome
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.server.observe.refusals", lambda: (LookupError, (ValueError,)))
    server = Server()

    async def search() -> None:
        await read(server.generate())
        await asyncio.gather(
            *[read(server.generate(fails=error if i == 1 else None)) for i in range(3)], return_exceptions=True
        )
        await read(server.generate())  # whatever its handler does then

    server.handle(server.http(), search())
    assert [served.outcome for served in metrics.served] == [outcome]
    assert server.front_end.drain.in_flight == 0


@pytest.mark.parametrize("within_a_call", [True, False])
def test_a_client_that_leaves_in_the_middle_is_counted_once(metrics: Metrics, within_a_call: bool) -> None:
    server = Server()

    async def search() -> None:
        await read(server.generate())
        tasks = [asyncio.create_task(read(server.generate(first_s=5.0))) for _ in range(2 if within_a_call else 0)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.handle(server.http(), search(), answered=False)
    assert [served.outcome for served in metrics.served] == [Outcome.ABORTED]


def test_the_time_in_which_tools_run_counts_for_e2e_alone(metrics: Metrics) -> None:
    server = Server()
    http = server.http(("x-slo-ttft-ms", "150"), ("x-slo-tds", "50"), ("x-slo-e2e-ms", "60000"))
    standing = []

    async def turns() -> None:
        for turn in range(3):
            await read(server.generate(tokens=11, first_s=0.1, output_kind="DELTA"))
            standing.append([(one.outcome, one.output_tokens) for one in http.outcomes])
            if turn < 2:
                server.clock.advance_to(server.clock.now_s() + 5.0)  # the tool

    server.handle(http, turns())
    (served,) = metrics.served
    assert served.latency is not None
    assert served.latency.ttft_s == pytest.approx(0.1) and served.latency.e2e_s == pytest.approx(10.6)
    assert served.latency.tpot_s == pytest.approx((0.1 + 0.2 + 0.2) / 32) and served.output_tokens == 33
    assert served.good and served.qoe is not None and served.qoe > 0.95
    assert standing == [[(Outcome.COMPLETED, 11 * turn)] for turn in (1, 2, 3)], "what a report says until then"


def test_a_recording_whose_language_is_found_first_is_one_request(metrics: Metrics) -> None:
    """Its parameters state an SLO; those of the call for the language are the handler's own."""
    server = Server(admission={"mode": "cap", "max_waiting": 1})

    async def transcribe() -> None:
        await read(server.generate(max_tokens=1))
        params = SimpleNamespace(extra_args={"slo_e2e_ms": 900, "other": 1}, max_tokens=9, n=1)
        pieces = [server.generate(tokens=5, params=params, output_kind="FINAL_ONLY") for _ in range(3)]
        await asyncio.gather(*map(read, pieces))

    server.handle(server.http(), transcribe())
    (served,) = metrics.served
    assert served.slo.targets.e2e_s == pytest.approx(0.9) and served.good
    assert server.stated[-1]["slo_e2e_ms"] == 900 and server.stated[-1]["other"] == 1
    assert served.output_tokens == 1 + 3 * 5

    async def misspelt() -> None:
        await read(server.generate(max_tokens=1))
        server.generate(extra_args={"slo_e2ems": 900})

    with pytest.raises(Malformed, match="slo_e2ems"):
        server.handle(server.http(), misspelt())
    assert metrics.served[-1].outcome is Outcome.INVALID


def test_calls_of_different_http_requests_are_different_requests(metrics: Metrics) -> None:
    """Also where one task serves them in turn, and where there is no middleware."""
    server = Server()

    async def serve(https: list[HTTPContext | None]) -> None:
        from sloserve.wire import context

        for http in https:
            context.current.set(http)
            await read(server.generate())

    bounded.run(serve([server.http(), server.http(), None, None]))
    assert len(metrics.served) == 4 and all(call.is_first for call in server.calls)


def test_an_answer_that_ends_before_its_call_does_is_counted_with_the_call(metrics: Metrics) -> None:
    """As that of a response in the background is."""
    server = Server()
    http = server.http()
    http.says_end = True

    async def handle() -> None:
        from sloserve.wire import context

        context.current.set(http)
        task = asyncio.create_task(read(server.generate(tokens=3)))
        await asyncio.sleep(0)
        http.answer_ends(begun=True)
        assert metrics.served == []
        await task

    bounded.run(handle())
    assert [served.outcome for served in metrics.served] == [Outcome.COMPLETED]


LIMITS = [
    {"mode": "cap", "max_waiting": 8},
    {"mode": "predict", "max_waiting": 8},
    {"mode": "cap", "max_waiting": {"interactive": 8, "priority": 9, "batch": 9, "background": 9}},
]


async def completions(server: Server, size: int, **asked: Any) -> None:
    """As vLLM's: a call for each prompt, then all are read at once."""
    replies = [server.generate(prompt=100 + i, tokens=2, **asked) for i in range(size)]
    await asyncio.gather(*map(read, replies))


@pytest.mark.slow
@pytest.mark.parametrize("admission", LIMITS, ids=str)
@pytest.mark.parametrize("size", [8, 9, 50])
def test_a_list_is_served_whole_where_no_other_request_waits(
    metrics: Metrics, admission: dict[str, Any], size: int
) -> None:
    server = Server(admission=admission)
    for _ in range(20):
        server.serve()
    metrics.served.clear()
    http = server.http(("x-slo-ttft-ms", "150"))
    server.handle(http, completions(server, size, first_s=0.1))
    assert [served.outcome for served in metrics.served] == [Outcome.COMPLETED] * size and metrics.reasons == []
    assert server.front_end._admission.waiting("interactive") == 0


@pytest.mark.parametrize("admission", LIMITS, ids=str)
def test_a_list_is_refused_whole_where_it_finds_no_room(metrics: Metrics, admission: dict[str, Any]) -> None:
    server = Server(admission=admission)
    other = server.accept(None, "text")
    for _ in range(3):
        http = server.http()
        with pytest.raises(Refused, match="1 of 8 .* no room for a list of 8 prompts or more: .* shorter list") as no:
            server.handle(http, completions(server, 8))
        assert no.value.status == 429 and http.rejection is not None and http.requests == []
    assert {served.outcome for served in metrics.served} == {Outcome.REJECTED}
    assert len(metrics.served) == len(metrics.reasons) == 3 * 8 and set(metrics.reasons) == {"rejected-saturated"}
    assert server.front_end._admission.waiting("interactive") == 1, "its other prompts hold no places"
    assert not server.front_end._admission._backlog.queue_of("interactive").has_kept_places(), (
        "and none are kept for it"
    )
    server.handle(server.http(), completions(server, 7))
    assert [served.outcome for served in metrics.served[24:]] == [Outcome.COMPLETED] * 7
    other.abandoned()


def test_a_list_does_not_take_places_that_are_kept_for_others(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 2})
    waiting = [server.accept(None, "text") for _ in range(2)]
    server.clock.advance_to(server.clock.now_s() + 1.0)
    waiting[0].request.ticket.started(server.clock.monotonic_s())
    server.accept(None, "text").abandoned()
    server.accept(None, "text")
    with pytest.raises(Refused, match="retry in 1 s"):
        server.accept(None, "again")
    for call in waiting:
        call.abandoned()
    server.clock.advance_to(server.clock.now_s() + 1.0)
    with pytest.raises(Refused, match="1 places are kept"):
        server.handle(server.http(), completions(server, 2))
    server.accept(None, "again")


@pytest.mark.slow
def test_a_prompt_of_a_list_that_cannot_be_met_refuses_the_list(metrics: Metrics) -> None:
    server = Server(admission={"mode": "predict"})
    for i in range(40):
        server.serve(prompt=50 + 50 * (i % 2))
    metrics.served.clear()

    async def handle() -> None:
        await asyncio.gather(*map(read, [server.generate(prompt=prompt) for prompt in (50, 100)]))

    with pytest.raises(Refused, match="ttft target of 80 ms: at best"):
        server.handle(server.http(("x-slo-ttft-ms", "80")), handle())
    assert [served.outcome for served in metrics.served] == [Outcome.REJECTED] * 2
    assert metrics.reasons == ["rejected-slo-unattainable"] * 2
    assert server.front_end._admission.waiting("interactive") == 0 and server.front_end.drain.in_flight == 0


def test_a_list_of_beam_searches_is_a_list_of_requests(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 2})

    async def handle() -> None:
        await asyncio.gather(*[asyncio.create_task(beam_search(server, 5, beams=2)) for _ in range(3)])

    server.handle(server.http(), handle())
    assert [(served.outcome, served.output_tokens) for served in metrics.served] == [(Outcome.COMPLETED, 9)] * 3


def test_a_time_to_live_is_that_of_the_whole_list(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 2})
    http = server.http(("x-request-ttl-ms", "300"))

    async def handle() -> None:
        tasks = [asyncio.create_task(read(server.generate(first_s=1.0))) for _ in range(3)]
        await asyncio.sleep(0)
        assert http.is_waiting
        http.expire()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.handle(http, handle(), answered=False)
    assert [served.outcome for served in metrics.served] == [Outcome.EVICTED] * 3
    assert metrics.reasons == ["rejected-ttl-expired"] * 3
    assert server.front_end._admission.waiting("interactive") == 0
