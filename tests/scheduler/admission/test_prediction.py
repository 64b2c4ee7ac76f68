"""Predictions at admission, and who is refused by them, against a server whose times are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import SLOUnattainable
from sloserve.core.finished import Latency
from sloserve.core.predicted import Predicted, Quantiles, worst
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket
from sloserve.scheduler.admission.urgency import Urgency

T0 = 1_700_000_000.0
NAMES = DEFAULT_CLASSES.names


def request(
    now_s: float, targets: Targets | None = None, slo_class: str = "batch", **known: int | None
) -> ArrivingRequest:
    return ArrivingRequest(
        DEFAULT_CLASSES.slo(slo_class, targets or Targets()), now_s, **{"prompt_tokens": 100} | known
    )


@dataclass
class OneByOne:
    """A server that takes one request at a time: 1 ms a prompt token, then 20 ms an output token."""

    admission: Admission
    free_s: float = T0
    log: list[tuple[ArrivingRequest, Ticket, Latency]] = field(default_factory=list)
    pending: list[tuple[float, int, Ticket, Latency | None, int]] = field(default_factory=list)

    def until(self, now_s: float) -> None:
        while self.pending and self.pending[0][0] <= now_s:
            at_s, _, ticket, latency, tokens = self.pending.pop(0)
            ticket.started(at_s) if latency is None else ticket.ended(latency, tokens, at_s)

    def offer(self, new: ArrivingRequest, tokens: int = 11) -> Ticket:
        now_s = new.arrival_s
        self.until(now_s)
        ticket = self.admission.admit(new, self.admission.forecast(new, now_s), None, now_s)
        first_s = max(now_s, self.free_s) + (new.prompt_tokens or 100) * 1e-3
        self.free_s = first_s
        last_s = first_s + (tokens - 1) * 0.02
        latency = Latency(first_s - now_s, 0.02, last_s - now_s)
        self.pending += [(first_s, len(self.log), ticket, None, 0), (last_s, len(self.log), ticket, latency, tokens)]
        self.pending.sort(key=lambda event: event[:2])
        self.log.append((new, ticket, latency))
        return ticket


def server(min_chance: float | None = None, caps: dict[str, int] | None = None) -> OneByOne:
    return OneByOne(Admission(NAMES, lambda place: True, caps=caps, min_chance=min_chance))


def warm(min_chance: float | None = None, count: int = 40) -> tuple[OneByOne, float]:
    """A server that has served ``count`` requests one by one and is idle, and the time."""
    served, now_s = server(min_chance), T0
    for i in range(count):
        served.offer(request(now_s, prompt_tokens=50 + 10 * (i % 11)))
        now_s += 1.0
    served.until(now_s)
    return served, now_s


def predicted(served: OneByOne, new: ArrivingRequest) -> Predicted:
    found = served.admission.forecast(new, new.arrival_s).predicted
    assert found is not None
    return found


def test_nothing_is_told_before_anything_was_seen() -> None:
    served = server(0.5)
    assert served.offer(request(T0, Targets(ttft_s=0.001))).forecast.predicted is None


@pytest.mark.parametrize("prompt_tokens", [60, 120, 400])
def test_on_an_idle_engine_it_is_the_service_of_the_own_prompt(prompt_tokens: int) -> None:
    served, now_s = warm()
    told = predicted(served, request(now_s, prompt_tokens=prompt_tokens))
    assert told.ttft is not None and told.e2e is not None
    assert told.ttft.median_s == pytest.approx(prompt_tokens * 1e-3, rel=0.05)
    assert told.e2e.median_s == pytest.approx(prompt_tokens * 1e-3 + 0.2, rel=0.3)
    assert predicted(served, request(now_s, prompt_tokens=None)).ttft is not None


def test_behind_a_queue_it_is_the_queue_s_own_pace() -> None:
    served, now_s = warm()
    for _ in range(20):
        served.offer(request(now_s))
    told = predicted(served, request(now_s))
    assert told.ttft is not None
    assert told.ttft.median_s == pytest.approx(21 * 0.1, rel=0.25)


def behind_a_queue(gaps_s: Sequence[float], at_once: int = 1) -> Admission:
    """Ten requests wait; after each gap so many start at once, and as many come."""
    admission, now_s = Admission(NAMES, lambda place: True), T0
    waiting = [admission.admit(request(T0), admission.forecast(request(T0), T0), None, T0) for _ in range(10)]
    for gap_s in gaps_s:
        now_s += gap_s
        for ticket in waiting[:at_once]:
            ticket.place.started(now_s)
        waiting = waiting[at_once:]
        new = request(now_s)
        waiting += [admission.admit(new, admission.forecast(new, now_s), None, now_s) for _ in range(at_once)]
    return admission


def interval_of(admission: Admission) -> float | None:
    """Return the predicted seconds from one start to the next, with no time passed since the last event."""
    return admission._backlog.queue_of("batch").interval_s(Urgency.NO_TARGETS, T0)


@given(st.floats(0.0, 3600.0), st.integers(0, 30), st.sampled_from([1, 2, 8]))
def test_one_long_stall_of_a_queue_moves_its_pace_by_little_once_it_is_over(
    stall_s: float, after: int, at_once: int
) -> None:
    steady, stalled = ([0.1] * 40, [0.1] * 40 + [stall_s] + [0.1] * after)
    without, found = (interval_of(behind_a_queue(gaps_s, at_once)) for gaps_s in (steady, stalled))
    assert without == pytest.approx(0.1 / at_once, rel=0.25) and found == pytest.approx(without, rel=0.15)


def test_a_queue_that_has_become_slower_is_believed_soon_and_at_once_while_it_stalls() -> None:
    slower = interval_of(behind_a_queue([0.1] * 40 + [2.0] * 8))
    assert slower is not None and slower > 0.25
    stalled = behind_a_queue([0.1] * 40)
    stalled.forecast(request(T0 + 64.0), T0 + 64.0)
    assert interval_of(stalled) == pytest.approx(20.0)


def test_a_stated_length_and_a_limit_bound_the_e2e_latency() -> None:
    served, now_s = warm()
    plain, limited = (served.admission.forecast(request(now_s, max_tokens=m), now_s) for m in (None, 3))
    assert plain.e2e is not None and limited.e2e is not None
    assert limited.e2e.prediction.predicted < plain.e2e.prediction.predicted
    stated = served.admission.forecast(request(now_s, output_tokens=101), now_s)
    assert stated.e2e is not None and stated.e2e.prediction.predicted == pytest.approx(2.1, rel=0.05)


def test_requests_of_many_limits_are_predicted_from_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM allows what a prompt leaves of the model's length: each request had a limit of its own, and took 100 us."""
    served, now_s = warm()
    rest = mock.Mock(side_effect=EmpiricalLength.rest, autospec=True)
    monkeypatch.setattr(EmpiricalLength, "rest", lambda *given: rest(*given))
    limits = range(3, 1000, 7)
    found = [served.admission.forecast(request(now_s, max_tokens=limit), now_s) for limit in limits]
    assert rest.call_count <= 1
    e2e_s = [one.e2e.prediction.predicted for one in found if one.e2e is not None]
    assert len(e2e_s) == len(limits) and e2e_s == sorted(e2e_s)


def test_a_length_that_the_length_model_predicts_bounds_the_e2e_latency() -> None:
    """It was that of the class, whatever the server's length_model said."""
    served, now_s = warm()
    plain = served.admission.forecast(request(now_s), now_s)
    flat = replace(request(now_s), length_quantiles=[100.0, 100.5, 101.0, 101.5, 102.0])
    told = served.admission.forecast(flat, now_s)
    assert plain.e2e is not None and plain.e2e.prediction.predicted < 0.5
    assert told.e2e is not None and told.e2e.prediction.predicted == pytest.approx(2.1, rel=0.05)
    cut = served.admission.forecast(replace(flat, max_tokens=51), now_s)
    assert cut.e2e is not None and cut.e2e.prediction.predicted == pytest.approx(1.1, rel=0.05)
    assert served.admission.forecast(replace(flat, output_tokens=11), now_s).e2e != told.e2e
    # What comes of the predictions is learnt apart: those of the class are no judge of the model's.
    assert plain.e2e.prediction.quantiles is not None and told.e2e.prediction.quantiles is None


def test_e2e_is_never_told_below_ttft() -> None:
    """Seen: p90 7,858 ms of TTFT beside 5,932 ms of e2e, each calibrated by requests of its own kind."""
    served, now_s = warm()
    for _ in range(40):  # slow first tokens, whose replies then were given up: only TTFT was learnt
        new = request(now_s, output_tokens=2)
        ticket = served.admission.admit(new, served.admission.forecast(new, now_s), None, now_s)
        ticket.started(now_s + 5.0)
        ticket.ended(None, 0, now_s + 5.0)
    told = predicted(served, request(now_s))
    assert told.ttft is not None and told.e2e is not None
    assert told.ttft.p90_s > 1.0 and told.e2e.p90_s >= told.ttft.p90_s and told.e2e.median_s >= told.ttft.median_s


def test_time_that_has_passed_counts() -> None:
    served, now_s = warm()
    fresh, late = (served.admission.forecast(request(at_s), now_s).ttft for at_s in (now_s, now_s - 3.0))
    assert fresh is not None and late is not None
    assert late.prediction.predicted == pytest.approx(fresh.prediction.predicted + 3.0)


def test_a_queue_that_is_too_long_is_refused_with_the_time_until_it_is_short_enough() -> None:
    served, now_s = warm(min_chance=0.5)
    targets = Targets(ttft_s=1.0)
    for _ in range(60):
        served.offer(request(now_s))
    with pytest.raises(
        SLOUnattainable, match="ttft target of 1,000 ms: .* with 60 requests of its class ahead; "
    ) as no:
        served.offer(request(now_s, targets))
    # 60 requests of 0.1 s and its own: it has to come when about nine are left.
    assert no.value.retry_after_s is not None and 3 <= no.value.retry_after_s <= 8
    again_s = now_s + no.value.retry_after_s + 1
    assert served.offer(request(again_s, targets)).new.slo.targets == targets


def test_requests_without_targets_and_other_classes_are_not_refused() -> None:
    served, now_s = warm(min_chance=0.5)
    for _ in range(60):
        served.offer(request(now_s))
    served.offer(request(now_s))
    served.offer(request(now_s, Targets(tds=5.0)))
    served.offer(request(now_s, Targets(ttft_s=1.0), slo_class="interactive"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "known", "message"),
    [
        (Targets(ttft_s=0.02), {}, "ttft target of 20 ms: at best this takes 70 ms"),
        (Targets(tpot_s=0.001), {}, "tpot target of 1 ms: at best this takes 20 ms"),
        (Targets(tds=500.0), {}, "tds target of 2 ms: at best this takes 20 ms"),
        (Targets(e2e_s=1.0), {"output_tokens": 101}, "e2e target of 1,000 ms: at best this takes 2,070 ms"),
        (Targets(e2e_s=0.01), {}, "e2e target of 10 ms: at best this takes 70 ms"),
    ],
)
def test_what_an_idle_engine_cannot_do_is_refused_without_hope(
    targets: Targets, known: dict[str, int], message: str
) -> None:
    served, now_s = warm(min_chance=0.1)
    for _ in range(20):
        served.offer(request(now_s, prompt_tokens=100), tokens=20)
        now_s += 1.0
    with pytest.raises(SLOUnattainable, match=message) as no:
        served.offer(request(now_s, targets, **known))
    assert no.value.retry_after_s is None and "even if no other request" in str(no.value)
    assert served.offer(request(now_s + 3600.0, targets, **known))  # nothing was seen for long: it is let in, and tells


def test_one_token_has_no_time_per_token() -> None:
    served, now_s = warm(min_chance=0.1)
    assert served.offer(request(now_s, Targets(tpot_s=1e-6), output_tokens=1))


@pytest.mark.slow
def test_a_wrong_belief_does_not_outlast_the_queue() -> None:
    """The engine was slow for a while; with nobody ahead a request is let in, and the belief corrected."""
    served, now_s = warm(min_chance=0.5)
    for _ in range(100):
        ticket = served.offer(request(now_s, Targets(ttft_s=5.0)))
        ticket.ended(Latency(4.0, 0.02, 4.2), 11, now_s)
    assert served.offer(request(now_s, Targets(ttft_s=0.5))).forecast.ahead == 0


def test_before_calibration_a_prediction_must_miss_twofold() -> None:
    served = server(0.5)
    served.offer(request(T0))
    served.until(T0 + 0.1)
    for _ in range(30):
        served.offer(request(T0 + 0.2))
    served.offer(request(T0 + 0.2, Targets(ttft_s=2.0)))
    with pytest.raises(SLOUnattainable):
        served.offer(request(T0 + 0.2, Targets(ttft_s=1.0)))
    with pytest.raises(SLOUnattainable, match="e2e target"):
        served.offer(request(T0 + 0.2, Targets(e2e_s=1.0)))


@pytest.mark.slow
def test_quantiles_are_kept_as_often_as_they_say() -> None:
    """Poisson arrivals at 0.8 of the server's rate, prompts of all lengths; the first hundred teach."""
    rng = np.random.default_rng(1)
    served, now_s = server(), T0
    for gap_s, tokens in zip(rng.exponential(0.125, 900), rng.geometric(0.05, 900), strict=True):
        now_s += gap_s
        served.offer(request(now_s, prompt_tokens=int(rng.integers(20, 180))), tokens=int(tokens) + 1)
    kept = [
        {
            (name, level): held
            for name, at in told.figures()
            for level, held in at.kept(getattr(latency, f"{name}_s")).items()
        }
        for _, ticket, latency in served.log[200:]
        if (told := ticket.forecast.predicted) is not None
    ]
    for dim in ("ttft", "e2e"):
        assert 0.85 <= np.mean([k[dim, 0.9] for k in kept]) <= 0.95
        assert 0.42 <= np.mean([k[dim, 0.5] for k in kept]) <= 0.58


def test_the_worst_of_several() -> None:
    a, b = Predicted(Quantiles(1.0, 2.0, 2.0), None), Predicted(Quantiles(0.5, 3.0, 3.0), Quantiles(4.0, 5.0, 5.0))
    assert worst([a, b]) == Predicted(Quantiles(1.0, 3.0, 3.0), Quantiles(4.0, 5.0, 5.0))
    assert worst([]) == Predicted(None, None)


@pytest.mark.slow
@given(
    ordinary=st.lists(st.tuples(st.integers(80, 120), st.integers(8, 12)), min_size=20, max_size=40),
    at=st.integers(0, 40),
    outlier=st.tuples(st.floats(0.0, 600.0), st.floats(0.02, 60.0), st.integers(2, 100_000)),
)
def test_one_outlier_moves_no_forecast_beyond_what_ordinary_requests_say(
    ordinary: list[tuple[int, int]], at: int, outlier: tuple[float, float, int]
) -> None:
    """Slow to begin, slow to decode and long, whether it is the first request after a start or the latest."""
    served, now_s = server(), T0
    for i, (prompt_tokens, tokens) in enumerate(ordinary):
        if i == min(at, len(ordinary) - 1):
            late_s, tpot_s, length = outlier
            new = request(now_s)
            ticket = served.admission.admit(new, served.admission.forecast(new, now_s), None, now_s)
            ttft_s = 0.1 + late_s
            e2e_s = ttft_s + tpot_s * (length - 1)
            ticket.ended(Latency(ttft_s, tpot_s, e2e_s), length, now_s)
        served.offer(request(now_s, prompt_tokens=prompt_tokens), tokens)
        now_s += 1.0
        served.until(now_s)
    told = predicted(served, request(now_s))
    assert told.ttft is not None and told.e2e is not None
    assert 0.06 <= told.ttft.median_s <= 0.15 and told.ttft.p90_s <= 0.25
    assert 0.15 <= told.e2e.median_s <= 0.6 and told.e2e.p90_s <= 0.75


@given(
    st.lists(
        st.tuples(st.sampled_from(["offer", "give up"]), st.floats(0.0, 2.0), st.integers(1, 2000), st.integers(1, 50)),
        max_size=40,
    )
)
def test_the_same_events_give_the_same_predictions(events: list[tuple[str, float, int, int]]) -> None:
    def run() -> list[object]:
        served, now_s, seen = server(0.5, dict.fromkeys(NAMES, 5)), T0, []
        for action, gap_s, prompt, tokens in events:
            now_s += gap_s
            try:
                ticket = served.offer(request(now_s, Targets(ttft_s=0.5, e2e_s=2.0), prompt_tokens=prompt), tokens)
            except Exception as error:
                seen.append(str(error))
                continue
            told = ticket.forecast.predicted
            assert told is None or told.ttft is None or 0.0 < told.ttft.median_s <= told.ttft.p90_s
            if told is not None and told.ttft is not None and told.e2e is not None:
                assert told.ttft.median_s <= told.e2e.median_s and told.ttft.p90_s <= told.e2e.p90_s
            seen.append(told)
            if action == "give up":
                ticket.ended(None, 0, now_s)
            assert served.admission.waiting("batch") <= 5
        return seen

    assert run() == run()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_first_token_that_nobody_sees_is_not_taken_for_late(streamed: bool) -> None:
    """A reply in one piece tells its TTFT at its end, long after the promise would have run out."""
    served, now_s = warm()
    new = replace(request(now_s), streamed=streamed)
    forecast = served.admission.forecast(new, now_s)
    ticket = served.admission.admit(new, forecast, None, now_s)
    served.admission.forecast(request(now_s + 5.0), now_s + 5.0)
    prediction = ticket.forecast.ttft.prediction if ticket.forecast.ttft is not None else None
    assert prediction is not None and bool(prediction.broken) == streamed


def test_requests_in_flight_are_counted_once_however_they_end() -> None:
    served, now_s = warm()
    admission = served.admission
    tickets = [served.offer(request(now_s)) for _ in range(6)]
    assert [t.forecast.arrived.others for t in tickets] == list(range(6))
    tickets[0].ended(None, 0, now_s + 0.01)
    tickets[0].ended(None, 0, now_s + 0.01)
    tickets[1].goes_on(0.1, now_s + 0.01)
    tickets[1].ended(Latency(0.1, 0.02, 0.3), 11, now_s + 0.02)
    tickets[2].is_not_alone()
    tickets[2].ended(Latency(0.1, 0.02, 0.3), 11, now_s + 0.02)
    assert admission.forecast(request(now_s + 0.03), now_s + 0.03).arrived.others == 3


def test_a_client_that_leaves_late_counts_as_nearly_missed() -> None:
    """It waited for longer than nine of ten, and its outcome stays unknown."""
    served, now_s = warm(count=100)
    shifts = []
    for wait_s in (0.0, 0.4):
        new = request(now_s)
        ticket = served.admission.admit(new, served.admission.forecast(new, now_s), None, now_s)
        served.admission.forecast(request(now_s + wait_s), now_s + wait_s)
        ticket.ended(None, 0, now_s + wait_s)
        assert ticket.forecast.e2e is not None
        shifts.append(ticket.forecast.e2e.prediction.counted[0.99])
        assert not ticket.forecast.e2e.prediction.broken or wait_s
        now_s += 10.0
    assert shifts[0] == pytest.approx(ticket.forecast.e2e.prediction.chances[0.99], rel=0.2) and shifts[1] > 0.5


@pytest.mark.slow
def test_quantiles_of_requests_that_ended_are_not_kept_until_they_would_pass() -> None:
    served, now_s = warm()
    for i in range(3000):
        new = request(now_s)
        ticket = served.admission.admit(new, served.admission.forecast(new, now_s), None, now_s)
        ticket.ended(Latency(0.1, 0.02, 0.3), 11, now_s + 1e-6 * i)
    assert len(served.admission._predictor._due) < 5000
