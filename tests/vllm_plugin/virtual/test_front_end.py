"""The front end of a virtual engine: who is refused, when it is decided, and that predicting changes nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.estimator.length.at_admission import LEVELS
from sloserve.scheduler.admission.admission import Admission

RequestOf = Callable[..., Any]


def test_vllm_counts_tokens_until_the_first_and_requests_until_the_last(request_of: RequestOf) -> None:
    tokens = VirtualFrontEnd(EngineSettings(200, max_model_len=256, max_num_queued_tokens=30), None)
    a, b, c = (request_of(name, prompt_tokens=20) for name in "abc")
    assert tokens.takes(a, 0.0) and tokens.takes(b, 0.0)  # vLLM compares what is queued before
    assert not tokens.takes(c, 0.0)
    tokens.started("a", 0.1)
    assert tokens.takes(c, 0.1)
    reqs = VirtualFrontEnd(EngineSettings(200, max_model_len=256, max_num_queued_reqs=1), None)
    assert reqs.takes(a, 0.0) and not reqs.takes(b, 0.0)
    reqs.started("a", 0.1)
    assert not reqs.takes(b, 0.1)
    reqs.ended("a", Latency(0.1, 0.0, 0.1), 1, 0.2)
    assert reqs.takes(b, 0.2)


def test_admission_predicts_latency_with_the_length_models_lengths(request_of: RequestOf) -> None:
    class Lengths:
        def quantiles(self, class_name: str, **known: Any) -> list[float]:
            return [7.0] * LEVELS.size

    front = VirtualFrontEnd(EngineSettings(600), Admission(DEFAULT_CLASSES.names, lambda place: True), Lengths())  # type: ignore[arg-type]
    assert front.takes(request_of("a"), 0.0)
    assert front._tickets["a"].new.length_quantiles == [7.0] * LEVELS.size


@pytest.mark.vllm
def test_predicting_changes_nothing_and_a_cap_refuses(build: Any, request_of: RequestOf) -> None:
    work = [request_of(f"r{i}", 0.01 * i, 20, 10) for i in range(80)]
    plain = build("edf").run(work)

    def behind(**limits: Any) -> Any:
        engine = build("edf")
        engine._front_end = VirtualFrontEnd(
            engine._settings, Admission(DEFAULT_CLASSES.names, lambda place: True, **limits)
        )
        return engine.run(work)

    predicted = behind()
    pairs = zip(plain.requests, predicted.requests, strict=True)
    assert all(np.array_equal(a.token_times_s, b.token_times_s) for a, b in pairs)
    assert any(r.predicted for r in predicted.requests) and plain.requests[-1].predicted is None
    capped = behind(caps=dict.fromkeys(DEFAULT_CLASSES.names, 3))
    refused = [r for r in capped.requests if r.outcome is Outcome.REJECTED]
    assert 0 < len(refused) < 80 and all(not r.token_times_s.size for r in refused)
    assert {r.outcome for r in capped.requests} == {Outcome.REJECTED, Outcome.COMPLETED}
