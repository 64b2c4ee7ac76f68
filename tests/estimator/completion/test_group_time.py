"""How long a group keeps an engine busy: held against the engine model, which follows each request."""

import numpy as np
import pytest

from sloserve.core.arrays import FloatArray
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.completion.group_time import GroupTimes, Serving, group_times
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine

PROFILE = load_profile("h100-llama3-8b")
ENGINE = EngineSize(64, 2048, 200_000)


def times(serving: Serving, n: int, prompt: float, mean: float, sd: float = 0.0) -> GroupTimes:
    columns: list[FloatArray] = [np.array([n * x]) for x in (1.0, prompt, mean, mean**2 + sd**2)]
    return group_times(serving, *columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "mean"),
    [pytest.param(100, 200, marks=pytest.mark.slow), (2000, 30), pytest.param(4000, 300, marks=pytest.mark.slow)],
)
def test_work_is_what_those_behind_wait_whatever_is_scarce(prompt: int, mean: int) -> None:
    """Slots, the token budget, the KV cache: when the last of a group of 640 ends, with lengths spread by a third."""
    found = times(Serving(PROFILE, ENGINE), 640, prompt, mean, sd=mean / 3)
    settings = EngineSettings(
        kv_blocks=ENGINE.kv_tokens // PROFILE.block_size,
        block_size=PROFILE.block_size,
        max_num_seqs=ENGINE.max_num_seqs,
        max_num_batched_tokens=ENGINE.token_budget,
    )
    outputs = np.maximum(np.random.default_rng(0).normal(mean, mean / 3, 640), 1.0).astype(int).tolist()
    slo = DEFAULT_CLASSES.slo(None, Targets())
    burst = [WorkloadRequest(f"r{i}", 0.0, prompt, output, slo) for i, output in enumerate(outputs)]
    ended_s = max(float(log.token_times_s[-1]) for log in ModelEngine(settings, PROFILE, None).run(burst).requests)
    assert float(found.work_s[0] + found.own_s[0]) == pytest.approx(ended_s, rel=0.12)


def test_by_tokens_prompts_do_not_count() -> None:
    by_tokens = Serving(PROFILE, ENGINE, tokens_per_s=2000.0)
    assert times(by_tokens, 100, 10, 40).work_s[0] == times(by_tokens, 100, 2000, 40).work_s[0] == 2.0
    by_work = Serving(PROFILE, ENGINE)
    assert times(by_work, 100, 2000, 40).work_s[0] > 2 * times(by_work, 100, 10, 40).work_s[0]


def test_spread_grows_as_the_root_of_the_requests() -> None:
    one, many = times(Serving(PROFILE, ENGINE), 1, 100, 50, 25), times(Serving(PROFILE, ENGINE), 100, 100, 50, 25)
    assert many.work_sd_s[0] == pytest.approx(10 * one.work_sd_s[0])
    assert many.own_s[0] == one.own_s[0] > many.first_token_s[0]
    assert times(Serving(PROFILE, ENGINE), 9, 100, 50).own_sd_s[0] == 0.0
