"""The report of a request says what it was promised, and nothing of promises where there was none."""

from dataclasses import replace

from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.promises import Promised
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.wire.outcome import outcome

SERVED = ServedRequest(
    DEFAULT_CLASSES.slo("batch", Targets(ttft_s=0.5)), Outcome.COMPLETED, latency=Latency(0.25, 0.01, 1.25)
)


def test_the_report_of_a_request_with_a_promise_has_its_level_and_outcome() -> None:
    assert "promise" not in outcome(SERVED)
    promised = replace(SERVED, promised=Promised(0.9, delayed_s=3.0))
    assert outcome(promised)["promise"] == {"level": 0.9, "outcome": "kept"}
    late = replace(promised, latency=Latency(0.75, 0.01, 1.25))
    assert outcome(late)["promise"] == {"level": 0.9, "outcome": "broken"}
