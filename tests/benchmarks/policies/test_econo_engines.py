"""The benchmark of engines against a prefill/decode split: once and small, and its split on requests worked by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.policies.econo_engines import EngineCase, climb
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets
from sloserve.estimator.step_time.latency import StepLoad

NO_SLO = SLO(SLOClass("scaled", 0, Targets()), Targets())
OFFERED = None
"""How much does not matter: ``case.given`` comes."""


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A case whose requests are ``case.given``."""
    found = EngineCase("econo-sharegpt")
    monkeypatch.setattr(found, "requests", lambda offered, seed: found.given)
    return found


def requests(*rows: tuple[float, int, int]) -> list[WorkloadRequest]:
    return [WorkloadRequest(f"r{i}", at_s, prompt, output, NO_SLO) for i, (at_s, prompt, output) in enumerate(rows)]


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("policies.econo_engines", "--quick").splitlines()
    rows = [line for line in lines if line.startswith("sharegpt-poisson 1+1")]
    assert [row.split("(")[1].split(",")[0] for row in rows] == ["half", "half", "best", "best", "unequal", "unequal"]
    assert all("stock " in row and "econo " in row for row in rows)


def test_a_prompt_that_comes_with_its_kv_costs_a_decode_step(case: Any) -> None:
    whole, decode = case.profile.latency, case.decode_profile.latency
    assert decode.step_s(StepLoad.of([(101, 0)], [50])) == whole.step_s(StepLoad.of((), [101, 50]))


def test_one_request_through_the_split(case: Any) -> None:
    case.given = requests((1.0, 100, 3))
    (log,) = case.split(1, 1, OFFERED, 0, "100 Gb/s", 1)
    latency = case.profile.latency
    prompt_s = latency.step_s(StepLoad.of([(100, 0)]))
    moving_s = 100 * case.profile.kv_bytes_per_token / 12.5e9
    steps_s = [latency.step_s(StepLoad.of((), [context])) for context in (101, 102)]
    expected_s = 1.0 + np.cumsum([prompt_s, moving_s + steps_s[0], steps_s[1]])
    assert log.request is case.given[0]
    np.testing.assert_allclose(log.token_times_s, expected_s)


def test_faster_devices_compute_prompts_alone_faster(case: Any) -> None:
    faster = EngineCase("econo-sharegpt", prompts_faster=2.0)
    load = StepLoad.of([(100, 0)])
    assert faster.prompt_profile.latency.step_s(load) == case.profile.latency.step_s(load) / 2.0
    assert faster.decode_profile.latency.step_s(load) == case.decode_profile.latency.step_s(load)


def test_a_link_moves_one_prompt_after_another(case: Any) -> None:
    case.given = requests((0.0, 1000, 2), (0.0, 1000, 2))
    first, second = (log.token_times_s for log in case.split(1, 1, OFFERED, 0, "100 Gb/s", 1))
    assert first[0] == second[0]  # one step computes both prompts
    moving_s = 1000 * case.profile.kv_bytes_per_token / 12.5e9
    assert second[1] - first[1] > 0.999 * moving_s


def test_whom_decode_engines_do_not_see(case: Any) -> None:
    context = case.engine.max_model_len
    case.given = requests((0.0, 20, 1), (0.0, context - 1, 5), (0.0, context, 5), (0.0, 20, 5))
    outcomes = {log.request.request_id: log for log in case.split(1, 1, OFFERED, 0, "400 GB/s", 1)}
    assert {i: log.token_times_s.size for i, log in outcomes.items()} == {"r0": 1, "r1": 1, "r2": 0, "r3": 5}
    assert [i for i, log in outcomes.items() if log.outcome is not Outcome.COMPLETED] == ["r2"]


def test_no_request_is_lost_or_served_twice(case: Any) -> None:
    case.given = requests(*((0.1 * i, 20, 4) for i in range(5)))
    for logs in (case.split(2, 2, OFFERED, 0, "400 GB/s", 2), case.whole("econo", 2, OFFERED, 0)):
        assert sorted(log.request.request_id for log in logs) == [r.request_id for r in case.given]
        assert all(log.token_times_s.size == 4 for log in logs)


def test_climbs_to_the_nearest_peak() -> None:
    for start in (-3, 2, 5):
        assert climb(lambda at: -abs(at - 2), start) == 2
