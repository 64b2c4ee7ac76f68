"""What one call of the engine looks like from outside: latencies, QoE and outcome, however it is read and ends."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ShuttingDown
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import InEngine, ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.vllm_plugin.server.observe import Observed, entering
from tests import bounded

ARRIVAL_S = 1_000_000.0
MET = InEngine(paused_steps=7, paused_s=0.2, preempted_s=0.1)


def reply(*token_counts: int, finish: str | None = None, metrics: Any = None, first_index: int = 0) -> Any:
    """A RequestOutput of vLLM with that many token ids for each of its outputs. metrics: of the one that ended last."""
    outputs = [
        SimpleNamespace(index=first_index + i, token_ids=[0] * count, finish_reason=finish)
        for i, count in enumerate(token_counts)
    ]
    return SimpleNamespace(outputs=outputs, finished=finish is not None, metrics=metrics, prompt_token_ids=[1, 2, 3])


def stats(**values: float) -> Any:
    """A RequestStateStats of vLLM."""
    zero = dict.fromkeys(("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "first_token_latency"), 0.0)
    return SimpleNamespace(**zero | {"num_preemptions": 0, "num_generation_tokens": 0} | values)


class Call:
    """One observed call; ``timeline`` gives seconds after arrival and what arrives then: a reply, or an error."""

    def __init__(self, targets: Targets | None = None) -> None:
        self.clock = ManualClock(ARRIVAL_S)
        self.ended: list[ServedRequest] = []
        self.starts: list[float] = []
        self.broken_off: Exception | None = None
        slo = DEFAULT_CLASSES.slo(None, targets or Targets())
        self.observed = Observed(
            slo,
            "acme",
            self.clock.monotonic_s(),
            self.clock,
            in_engine={"internal": MET}.__getitem__,
            broken_off=lambda: self.broken_off,
            started=lambda _: self.starts.append(self.clock.monotonic_s()),
            ended=lambda _, served: self.ended.append(served),
        ).call()

    async def replies(self, timeline: list[tuple[float, Any]]) -> AsyncIterator[Any]:
        assert entering.get() is self.observed
        entering.set(None)
        self.observed.engine_request_id = "internal"
        for at_s, item in timeline:
            self.clock.advance_to(ARRIVAL_S + at_s)
            if isinstance(item, BaseException):
                raise item
            if item.metrics is not None and not self.observed.figures:
                self.observed.figures["internal"] = item.metrics
            yield item

    def run(self, timeline: list[tuple[float, Any]], stop_after: int | None = None, **how: bool) -> list[Any]:
        async def go() -> list[Any]:
            seen = []
            watched = self.observed.watch(self.replies(timeline), **{"streamed": True, "cumulative": False} | how)
            async for item in watched:
                seen.append(item)
                if len(seen) == stop_after:
                    break
            await watched.aclose()  # type: ignore[attr-defined]
            return seen

        return bounded.run(go())

    @property
    def served(self) -> ServedRequest:
        (served,) = self.ended
        return served


def test_streamed_deltas() -> None:
    call = Call(Targets(ttft_s=0.5, tds=10.0))
    timeline = [(0.25, reply(1)), (0.35, reply(2)), (0.65, reply(1, finish="stop", metrics=stats(num_preemptions=2)))]
    assert call.run(timeline) == [item for _, item in timeline]
    served = call.served
    assert served.latency is not None
    assert served.latency.ttft_s == pytest.approx(0.25)
    assert served.latency.tpot_s == pytest.approx(0.4 / 3)
    assert served.latency.e2e_s == pytest.approx(0.65)
    assert served.met == {"ttft": True, "tds": False} and served.good is False
    assert (served.outcome, served.tenant, served.prompt_tokens, served.output_tokens) == (
        Outcome.COMPLETED, "acme", 3, 4,
    )  # fmt: skip
    assert (served.preemptions, served.in_engine, served.qoe) == (2, MET, 1.0)
    assert call.starts == [pytest.approx(0.25)]


def test_cumulative_replies_count_each_token_once() -> None:
    call = Call()
    call.run([(1.0, reply(1)), (2.0, reply(3)), (3.0, reply(4, finish="length"))], cumulative=True)
    assert call.served.output_tokens == 4
    assert call.served.latency == Latency(1.0, pytest.approx(2 / 3), 3.0)  # type: ignore[arg-type]


def test_the_outcome_stands_before_the_last_reply_is_passed_on() -> None:
    call = Call()

    async def go() -> None:
        watched = call.observed.watch(call.replies([(1.0, reply(1, finish="stop"))]), streamed=True, cumulative=False)
        await anext(watched)  # type: ignore[call-overload]
        assert call.served.outcome is Outcome.COMPLETED

    bounded.run(go())


def test_whole_reply_takes_the_engines_figures() -> None:
    call = Call(Targets(ttft_s=0.5, tpot_s=0.1))
    figures = stats(queued_ts=50.0, scheduled_ts=50.2, first_token_ts=50.3, last_token_ts=51.3)
    figures.num_generation_tokens = 11
    call.run([(1.5, reply(11, finish="stop", metrics=figures))], streamed=False)
    served = call.served
    assert served.latency == Latency(0.5, pytest.approx(0.1), 1.5)  # type: ignore[arg-type]
    assert served.waited_s == pytest.approx(0.2) and served.qoe is None and served.output_tokens == 11
    assert call.starts == []


def test_whole_reply_without_figures_comes_all_at_its_end() -> None:
    call = Call()
    call.run([(1.5, reply(11, finish="stop"))], streamed=False)
    assert call.served.latency == Latency(1.5, 0.0, 1.5) and call.served.waited_s is None


def test_several_replies_to_one_request_have_one_outcome() -> None:
    call = Call(Targets(ttft_s=1.0))
    call.run(
        [
            (0.5, reply(1)),
            (0.75, reply(1, first_index=1)),
            (1.5, reply(1)),
            (2.75, reply(2, first_index=1)),
            (3.0, reply(0, 0, finish="stop")),
        ]
    )
    assert call.served.latency == Latency(ttft_s=0.5, tpot_s=1.0, e2e_s=2.75) and call.served.output_tokens == 5


# Three replies: seconds from the arrival to each token, and how often each was preempted. The first that has a token is
# not the first to end, nor the slowest, nor the longest.
REPLIES = (((0.5, 0.75, 1.0, 1.25), 0), ((0.25, 0.5, 0.75), 1), ((1.0, 3.0), 2))


def figures_of(times_s: tuple[float, ...], preemptions: int) -> Any:
    """As vLLM has them; its engine's clock stands elsewhere."""
    return stats(
        queued_ts=50.0,
        scheduled_ts=50.0 + times_s[0] - 0.125,
        first_token_ts=50.0 + times_s[0],
        last_token_ts=50.0 + times_s[-1],
        first_token_latency=times_s[0],
        num_preemptions=preemptions,
        num_generation_tokens=len(times_s),
    )


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("last", range(len(REPLIES)))
def test_several_replies_are_told_alike_streamed_or_whole(streamed: bool, last: int) -> None:
    """vLLM's whole reply has the figures of one of them, ``last``."""
    call = Call(Targets(ttft_s=0.3))
    figures = [figures_of(*one) for one in REPLIES]
    call.observed.figures = {f"{i}_internal": one for i, one in enumerate(figures)}
    counts = [len(times_s) for times_s, _ in REPLIES]
    if streamed:
        events = sorted((at_s, i) for i, (times_s, _) in enumerate(REPLIES) for at_s in times_s)
        timeline = [(at_s, reply(1, first_index=i)) for at_s, i in events]
        timeline.append((3.0, reply(0, 0, 0, finish="stop", metrics=figures[last])))
    else:
        timeline = [(3.0, reply(*counts, finish="stop", metrics=figures[last]))]
    call.run(timeline, streamed=streamed)
    served = call.served
    assert served.latency == Latency(ttft_s=0.25, tpot_s=2.0, e2e_s=3.0)
    assert (served.good, served.preemptions, served.output_tokens) == (True, 3, 9)
    assert served.waited_s == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asyncio.CancelledError(), Outcome.ABORTED),
        (RuntimeError("engine"), Outcome.FAILED),
        (LookupError("vLLM's queue is full"), Outcome.REJECTED),
    ],
)
def test_a_call_that_fails(error: BaseException, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.server.observe.refusals", lambda: (LookupError, (ValueError,)))
    call = Call(Targets(ttft_s=1.0))
    with pytest.raises(type(error)):
        call.run([(0.5, reply(1)), (0.75, error)])
    served = call.served
    assert (served.outcome, served.latency, served.qoe, served.good) == (outcome, None, 0.0, False)
    assert served.output_tokens == 1


def test_a_client_s_mistake_misses_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's 400 counted as a rejected request that missed its targets."""
    monkeypatch.setattr("sloserve.vllm_plugin.server.observe.refusals", lambda: (LookupError, (ValueError,)))
    call = Call(Targets(ttft_s=1.0, tds=5.0))
    with pytest.raises(ValueError, match="too long"):
        call.run([(0.5, ValueError("the prompt is too long"))])
    served = call.served
    assert (served.outcome, served.met, served.good, served.qoe) == (Outcome.INVALID, {}, None, None)


@pytest.mark.parametrize(("reason", "outcome"), [("abort", Outcome.ABORTED), ("error", Outcome.FAILED)])
def test_a_last_reply_that_is_none(reason: str, outcome: Outcome) -> None:
    call = Call()
    call.run([(0.5, reply(1)), (0.75, reply(0, finish=reason))])
    assert (call.served.outcome, call.served.latency) == (outcome, None)


def test_a_reply_that_the_engine_breaks_off_while_it_stops_is_an_error() -> None:
    call = Call(Targets(ttft_s=1.0))
    call.broken_off = RuntimeError("stopping")
    call.broken_off.__cause__ = ShuttingDown("stopping", 1)
    with pytest.raises(RuntimeError):
        call.run([(0.5, reply(1)), (0.75, reply(0, finish="abort"))])
    assert (call.served.outcome, call.served.qoe, call.served.output_tokens) == (Outcome.EVICTED, 0.0, 1)


def test_a_client_that_leaves() -> None:
    call = Call()
    call.run([(0.5, reply(1)), (0.75, reply(1)), (1.0, reply(1, finish="stop"))], stop_after=2)
    assert (call.served.outcome, call.served.output_tokens) == (Outcome.ABORTED, 2)


def test_replies_that_nobody_reads() -> None:
    call = Call()
    call.observed.abandoned()
    call.observed.abandoned()
    assert call.served.outcome is Outcome.ABORTED


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_clock_that_is_set_changes_no_figure(streamed: bool, set_by_s: float) -> None:
    """vLLM's own figures of a whole reply may be of the host's clock: ``first_token_latency`` is."""
    call = Call(Targets(ttft_s=1.0))
    told = stats(first_token_latency=0.5 + set_by_s, first_token_ts=9.0, last_token_ts=9.25, num_generation_tokens=2)
    timeline = [(0.5, reply(1)), (0.75, reply(1, finish="stop"))] if streamed else []

    async def set_clock() -> AsyncIterator[Any]:
        async for one in call.replies(timeline or [(0.75, reply(2, finish="stop", metrics=told))]):
            call.clock.set_wall(call.clock.now_s() + set_by_s)
            yield one
            call.clock.set_wall(call.clock.now_s() - set_by_s)

    async def read() -> None:
        async for _ in call.observed.watch(set_clock(), streamed=streamed, cumulative=False):
            pass

    bounded.run(read())
    assert call.served.latency == Latency(0.5, 0.25, 0.75) and call.served.good
    assert call.served.qoe == (1.0 if streamed else None)
