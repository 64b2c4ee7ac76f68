"""The books of promises: each ended promise is entered once, by class and by tenant, with what it cost."""

from dataclasses import replace

import pytest

from sloserve.core.finished import Latency, seconds_beyond
from sloserve.core.outcome import Outcome
from sloserve.core.promise_window import ended_promises
from sloserve.core.promises import PROMISES_KEPT, WHY_REFUSED, Promised
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets, is_late
from tests.engine.metrics.test_collectors import Bench

SLO = DEFAULT_CLASSES.slo("batch", Targets(ttft_s=1.0, e2e_s=4.0))
KEPT = ServedRequest(SLO, Outcome.COMPLETED, "acme", Latency(0.5, 0.1, 2.0), output_tokens=16, promised=Promised(0.99))
ONE = Latency(2.0, 0.3, 9.0)


def test_promises_are_entered_with_what_came_of_them() -> None:
    bench = Bench()
    bench.metrics.record(replace(KEPT, promised=Promised(0.9, delayed_s=2.5)))
    bench.metrics.record(replace(KEPT, latency=Latency(0.5, 0.1, 6.5), tenant=None))
    bench.metrics.record(replace(KEPT, outcome=Outcome.ABORTED, latency=None, promised=Promised(0.5, delayed_s=1.0)))
    bench.metrics.record(replace(KEPT, promised=None))
    value = bench.scrape()
    assert [value("promises_total", cls="batch", outcome=name) for name in PROMISES_KEPT] == [1.0, 1.0, 1.0]
    assert value("promise_delay_seconds_total", cls="batch") == 3.5
    assert value("promise_broken_seconds_total", cls="batch") == 2.5
    assert value("promises_allowed_broken_total", cls="batch") == pytest.approx(0.11)  # withdrawn ones allow nothing
    assert value("tenant_promises_total", tenant="acme", outcome="kept") == 1.0
    assert value("tenant_promises_total", tenant="none", outcome="broken") == 1.0
    assert value("promises_total", cls="interactive", outcome="kept") == 0.0
    shown = ended_promises([bench.board.promises[DEFAULT_CLASSES.names.index("batch")]])
    assert (shown.kept, shown.broken, shown.withdrawn) == (1, 1, 1)


def test_a_refused_request_has_no_promise_and_a_late_client_does_not_hide_a_broken_one() -> None:
    """A list of prompts is refused as a whole, after its first prompts were promised theirs."""
    assert replace(KEPT, outcome=Outcome.REJECTED, latency=None).promise is None
    assert replace(KEPT, outcome=Outcome.ABORTED, latency=None).promise == "withdrawn"
    assert replace(KEPT, outcome=Outcome.ABORTED, latency=None, was_late=True).promise == "broken"
    assert not is_late(SLO.targets, 0.9, begun=False) and is_late(SLO.targets, 1.1, begun=False)
    assert not is_late(SLO.targets, 1.1, begun=True) and is_late(SLO.targets, 4.1, begun=True)


def test_a_request_that_failed_costs_its_e2e_target() -> None:
    bench = Bench()
    bench.metrics.record(replace(KEPT, outcome=Outcome.FAILED, latency=None))
    assert bench.value("promises_total", cls="batch", outcome="broken") == 1.0
    assert bench.value("promise_broken_seconds_total", cls="batch") == 4.0


def test_refused_promises_count_by_why() -> None:
    bench = Bench()
    for why in ("late", "others", "others", "policy"):
        bench.metrics.promise_refused("batch", why)
    value = bench.scrape()
    counts = [value("promises_refused_total", cls="batch", why=why) for why in WHY_REFUSED]
    assert counts == [1.0, 2.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("targets", "tokens", "seconds"),
    [
        (Targets(ttft_s=1.5, e2e_s=8.0), 11, 1.0),
        (Targets(ttft_s=1.5, tpot_s=0.1), 11, 2.0),
        (Targets(tds=5.0), 11, 1.0),
        (Targets(tpot_s=0.1), 1, 0.0),
        (Targets(ttft_s=3.0), 11, 0.0),
        (Targets(), 11, 0.0),
    ],
)
def test_of_several_missed_targets_the_largest_excess_counts(targets: Targets, tokens: int, seconds: float) -> None:
    assert seconds_beyond(targets, ONE, tokens) == pytest.approx(seconds)
    assert seconds_beyond(targets, None, tokens) == (targets.e2e_s or 0.0)
