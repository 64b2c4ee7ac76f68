"""No request starves where preempted ones are swapped: one that has had its turn keeps its KV from then on.

The same under recomputation, on vLLM's scheduler: ``tests/properties/test_completion.py``.
"""

from collections import Counter

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine
from tests.properties.test_completion import AGED_AFTER_S, STEP_S, NewestFirst

pytestmark = pytest.mark.slow


def test_an_aged_request_is_not_swapped_out_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.sim.model.planned.make_policy", lambda *args, **kwargs: NewestFirst())
    slo = DEFAULT_CLASSES.slo("interactive", Targets())
    rng = np.random.default_rng(1)
    requests = [WorkloadRequest(f"long{i}", 0.1 * i, 100, 60, slo) for i in range(3)]
    requests += [
        WorkloadRequest(f"new{i}", float(at_s), int(rng.integers(8, 60)), int(rng.integers(4, 12)), slo)
        for i, at_s in enumerate(np.arange(0.0, 4.0, 0.03))
    ]
    requests.sort(key=lambda one: one.arrival_s)
    size = EngineSettings(20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256, swap_space_gib=1.0)
    section = {
        "policy": "edf",
        "swapping": "always",
        "aged_share": 0.25,
        "classes": {"interactive": {"rank": 1, "aged_after_s": AGED_AFTER_S}},
    }
    engine = ModelEngine(size, load_profile("h100-llama3-8b"), {"sloserve": section})
    scheduler, preempted_aged = engine.scheduler, Counter[str]()
    preempt, arrival_s = scheduler.preempt, {one.request_id: one.arrival_s for one in requests}

    def watched(index: int) -> None:
        request_id = scheduler.requests.handles[index].request_id
        preempted_aged[request_id] += engine._now_s - arrival_s[request_id] > 2 * AGED_AFTER_S
        preempt(index)

    monkeypatch.setattr(scheduler, "preempt", watched)
    log = engine.run(requests)

    assert log.counters["swap_loads"] > 10
    # One that aged while it ran is preempted once more at most; then it has its turn.
    assert max(preempted_aged.values()) <= 1
    assert max(one.token_times_s[-1] - one.request.arrival_s for one in log.requests) < 2.0


@pytest.mark.parametrize("swap_space_gib", [0.0, 1.0])
def test_auto_serves_what_can_meet_no_target_within_the_bound(swap_space_gib: float) -> None:
    """Three requests without a chance, beside a flood of newer ones that have one, for which others are preempted."""
    lost, reader = Targets(e2e_s=0.05), Targets(ttft_s=0.1, tds=60.0)
    requests = [
        WorkloadRequest(f"long{i}", 0.1 * i, 100, 60, DEFAULT_CLASSES.slo("interactive", lost)) for i in range(3)
    ]
    requests += [
        WorkloadRequest(f"new{i}", float(at_s), 8 + 7 * i % 50, 4 + i % 8, DEFAULT_CLASSES.slo("interactive", reader))
        for i, at_s in enumerate(np.arange(0.0, 3.2, 0.02))
    ]
    requests.sort(key=lambda one: one.arrival_s)
    size = EngineSettings(
        20, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256, swap_space_gib=swap_space_gib
    )
    section = {
        "policy": "auto",
        "swapping": "always",
        "aged_share": 0.25,
        "classes": {"interactive": {"rank": 1, "aged_after_s": AGED_AFTER_S}},
    }
    log = ModelEngine(size, load_profile("h100-llama3-8b"), {"sloserve": section}).run(requests)

    assert log.counters["evictions"] > 10
    # Each that aged before it is served to its end, and a turn comes after four admissions of short ones.
    short_s, long_s = STEP_S * (58 // 16 + 12), STEP_S * (100 // 16 + 60)
    for older in range(3):
        (one,) = (found for found in log.requests if found.request.request_id == f"long{older}")
        latency_s = float(one.token_times_s[-1]) - one.request.arrival_s
        assert latency_s <= AGED_AFTER_S + (older + 1) * (4 * short_s + long_s)
