"""Replicas behind one queue: one is the engine itself, more share the work, and no request is lost or overtaken."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.replicas import merged, serve_replicated
from sloserve.sim.report.summary import summarize
from tests.properties.test_conservation import random_workload

PROFILE = load_profile("a800-qwen2.5-32b")
SETTINGS = EngineSettings(4000, max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=4096)


def engine(number: int = 0) -> ModelEngine:
    return ModelEngine(SETTINGS, PROFILE, {"sloserve": {"policy": "edf"}})


def request(name: str, arrival_s: float, ttft_s: float | None = None, prompt_tokens: int = 200) -> WorkloadRequest:
    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=ttft_s))
    return WorkloadRequest(name, arrival_s, prompt_tokens, 50, slo)


def rush(count: int, gap_s: float = 0.05) -> list[WorkloadRequest]:
    return [request(f"r{k}", k * gap_s, ttft_s=2.0) for k in range(count)]


def ends(log: RunLog) -> Sequence[float | None]:
    return [one.finish_s for one in log.requests]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_replica_is_the_engine_itself(seed: int) -> None:
    requests = random_workload(np.random.default_rng(seed))
    alone, found = engine().run(requests), serve_replicated(engine, requests, 1)
    for ours, theirs in zip(found.requests, alone.requests, strict=True):
        assert ours.request is theirs.request and ours.outcome is theirs.outcome
        assert np.array_equal(ours.token_times_s, theirs.token_times_s)
    assert np.array_equal(found.steps.end_s, alone.steps.end_s)
    assert (found.counters, found.token_budget) == (alone.counters, alone.token_budget)


@pytest.mark.slow
@pytest.mark.parametrize("places", [math.inf, 8, 1])
def test_each_request_is_served_once_and_runs_are_equal(places: float) -> None:
    requests = random_workload(np.random.default_rng(7))
    found = serve_replicated(engine, requests, 3, places=lambda _: places)
    assert [one.request for one in found.requests] == requests
    assert all(one.outcome is Outcome.COMPLETED for one in found.requests)
    assert [one.token_times_s.size for one in found.requests] == [
        one.token_times_s.size for one in engine().run(requests).requests
    ]
    assert ends(found) == ends(serve_replicated(engine, requests, 3, places=lambda _: places))
    assert np.all(np.diff(found.steps.end_s) >= 0.0)


@pytest.mark.slow
def test_more_replicas_keep_more_targets() -> None:
    kept = [
        summarize(serve_replicated(engine, rush(120), count, places=lambda _: 8), policy="edf", seed=0, rps=20.0)
        for count in (1, 2, 4)
    ]
    attained = [run["slo_attainment"] for run in kept]
    assert attained[0] < attained[1] < attained[2]


@pytest.mark.slow
def test_a_full_fleet_serves_the_first_deadline_first() -> None:
    late = [request(f"late{k}", 0.01 * k, ttft_s=60.0) for k in range(6)]
    urgent = request("urgent", 0.1, ttft_s=1.0)
    idle = request("nothing promised", 0.1)
    found = serve_replicated(engine, [*late, urgent, idle], 2, places=lambda _: 1)
    first_s = {one.request.request_id: one.first_token_s or 0.0 for one in found.requests}
    assert sorted(first_s, key=first_s.__getitem__)[:3] == ["late0", "late1", "urgent"]
    assert max(first_s, key=first_s.__getitem__) == "nothing promised"
    assert all(one.stages is not None for one in found.requests)


@pytest.mark.slow
def test_no_replica_has_more_requests_than_places() -> None:
    found = serve_replicated(engine, rush(40, gap_s=0.0), 2, places=lambda _: 3)
    assert int(found.steps.running.max()) == 3 and int(found.steps.waiting.max()) <= 3


@pytest.mark.slow
def test_places_for_some_requests_alone_are_left_to_them() -> None:
    lines = [request(f"line{k}", 0.01 * k, ttft_s=60.0) for k in range(6)]
    stream = request("stream", 0.1, ttft_s=90.0)
    found = serve_replicated(engine, [*lines, stream], 1, places=lambda one: 3 if one is stream else 2)
    first_s = {one.request.request_id: one.first_token_s or 0.0 for one in found.requests}
    assert sorted(first_s, key=first_s.__getitem__)[:3] == ["line0", "line1", "stream"]
    assert int(found.steps.running.max()) == 3


@pytest.mark.slow
def test_a_request_that_an_engine_refuses_leaves_its_place_to_the_next() -> None:
    requests = [request("fits", 0.0), request("too long", 0.1, prompt_tokens=5000), request("waits", 0.2)]
    found = serve_replicated(engine, requests, 1, places=lambda _: 1)
    assert [one.outcome for one in found.requests] == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.COMPLETED]


def test_a_request_that_no_engine_had_is_lost() -> None:
    requests = [request("served", 0.0), request("held", 0.1)]
    log = merged(requests, [engine().run(requests[:1])])
    assert [one.outcome for one in log.requests] == [Outcome.COMPLETED, Outcome.LOST]


@pytest.mark.slow
def test_progress_is_reported_and_may_end_a_run() -> None:
    seen: list[int] = []
    serve_replicated(engine, rush(400), 2, on_progress=seen.append)
    assert seen == sorted(seen) and 0 < seen[-1] <= 400

    def stop(ended: int) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        serve_replicated(engine, rush(400), 2, on_progress=stop)


def test_numbers_and_orders_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="count: 0"):
        serve_replicated(engine, rush(2), 0)
    with pytest.raises(ValueError, match="0 places"):
        serve_replicated(engine, rush(2), 1, places=lambda _: 0)
    with pytest.raises(ValueError, match="order of their arrivals"):
        serve_replicated(engine, rush(2)[::-1], 1)
