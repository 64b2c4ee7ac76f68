"""Which requests are good, and how they are counted."""

import numpy as np
import pytest

from sloserve.core.finished import targets_met
from sloserve.core.goodput import Attainment, attainment, attainment_by_class, by_class
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import SLO, SLOClass, Targets

CLASSES = {name: SLOClass(name, rank) for rank, name in enumerate(("interactive", "batch", "free"))}


def log(
    targets: Targets, times_s: list[float], outcome: Outcome = Outcome.COMPLETED, slo_class: str = "interactive"
) -> RequestLog:
    """A request that arrived at 10 s, with tokens ``times_s`` seconds later."""
    request = WorkloadRequest("r", 10.0, 5, 3, SLO(CLASSES[slo_class], targets))
    return RequestLog(request, outcome, 10.0 + np.array(times_s))


TIMES_S = [0.5, 0.6, 1.1]  # TTFT 0.5 s, TPOT 0.3 s, e2e 1.1 s


def test_latency_figures() -> None:
    found = log(Targets(), TIMES_S).latency
    assert found is not None
    assert (found.ttft_s, found.tpot_s, found.e2e_s) == pytest.approx((0.5, 0.3, 1.1))
    assert log(Targets(), TIMES_S, Outcome.ABORTED).latency is None
    assert log(Targets(), []).latency is None


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (Targets(ttft_s=0.5, tpot_s=0.3, e2e_s=1.1, tds=1 / 0.3), True),  # met exactly, whatever floats make of it
        (Targets(ttft_s=0.499), False),
        (Targets(tpot_s=0.299), False),
        (Targets(e2e_s=1.099), False),
        (Targets(tds=3.4), False),
        (Targets(ttft_s=9.0, e2e_s=1.0), False),
        (Targets(), None),
    ],
)
def test_good_means_every_target_met(targets: Targets, good: bool | None) -> None:
    assert log(targets, TIMES_S).good is good


def test_targets_are_judged_one_by_one() -> None:
    met = targets_met(Targets(ttft_s=0.1, tpot_s=0.5, tds=1.0), log(Targets(), TIMES_S).latency)
    assert met == {"ttft": False, "tpot": True, "tds": True}
    assert targets_met(Targets(e2e_s=9.0), None) == {"e2e": False}


def test_a_single_token_meets_any_speed() -> None:
    assert log(Targets(tpot_s=1e-4, tds=5_000.0), [3.0]).good is True


@pytest.mark.parametrize("outcome", sorted({*Outcome} - {Outcome.COMPLETED, Outcome.INVALID}))
def test_what_was_not_completed_is_not_good(outcome: Outcome) -> None:
    assert log(Targets(e2e_s=100.0), TIMES_S, outcome).good is False


def test_a_client_s_mistake_is_neither_good_nor_missed() -> None:
    mistake = log(Targets(e2e_s=100.0), [], Outcome.INVALID)
    assert (mistake.good, mistake.met) == (None, {})
    assert attainment([mistake]).total == 0


def test_attainment_with_and_without_rejects() -> None:
    easy, hard = Targets(e2e_s=5.0), Targets(e2e_s=1.0)
    logs = [
        log(easy, TIMES_S),
        log(hard, TIMES_S),
        log(easy, [], Outcome.REJECTED),
        log(easy, [0.5], Outcome.ABORTED),
        log(Targets(), TIMES_S),
        log(Targets(), [], Outcome.REJECTED),
    ]
    counts = attainment(logs)
    assert counts == Attainment(good=1, total=4, rejected=1)
    assert counts.ratio == 0.25
    assert counts.ratio_admitted == pytest.approx(1 / 3)
    assert counts.goodput_per_s(4.0) == 0.25


def test_nothing_to_attain_is_not_zero() -> None:
    counts = attainment([log(Targets(), TIMES_S)])
    assert counts.ratio is None and counts.ratio_admitted is None and counts.goodput_per_s(1.0) is None
    assert attainment([log(Targets(e2e_s=1.0), [], Outcome.REJECTED)]).ratio_admitted is None


def test_by_class_in_order_of_rank_without_classes_that_have_no_targets() -> None:
    logs = [
        log(Targets(), TIMES_S, slo_class="free"),
        log(Targets(e2e_s=1.0), TIMES_S, slo_class="batch"),
        log(Targets(e2e_s=2.0), TIMES_S, slo_class="interactive"),
    ]
    assert list(by_class(logs)) == ["interactive", "batch", "free"]
    found = attainment_by_class(logs)
    assert {name: counts.ratio for name, counts in found.items()} == {"interactive": 1.0, "batch": 0.0}


def test_a_figure_is_computed_once() -> None:
    one = log(Targets(ttft_s=0.6, tds=2.0), TIMES_S)
    assert one.latency is one.latency and one.met is one.met and one.qoe == one.qoe
    assert {"latency", "met", "qoe"} <= vars(one).keys()
