"""How long a group keeps an engine busy: held against the recursion that follows each request."""

import numpy as np
import pytest

from benchmarks.estimator.completion_times import CompletionModel
from sloserve.core.arrays import FloatArray
from sloserve.estimator.completion.group_time import GroupTimes, Serving, group_times
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.step_time.profile import load_profile

PROFILE = load_profile("h100-llama3-8b")
ENGINE = EngineSize(64, 2048, 200_000)


def times(serving: Serving, n: int, prompt: float, mean: float, sd: float = 0.0) -> GroupTimes:
    columns: list[FloatArray] = [np.array([n * x]) for x in (1.0, prompt, mean, mean**2 + sd**2)]
    return group_times(serving, *columns)


@pytest.mark.parametrize(("prompt", "mean"), [(100, 200), (2000, 30), (4000, 300)])
def test_work_is_what_those_behind_wait_whatever_is_scarce(prompt: int, mean: int) -> None:
    """Slots, the token budget, the KV cache: a group of 640 against QueueFlow's own figure for the last of them."""
    found = times(Serving(PROFILE, ENGINE), 640, prompt, mean, sd=mean / 3)
    nothing = RequestLengths(*(np.empty(0) for _ in range(4)))
    each = [np.full(640, float(x)) for x in (prompt, 0, mean, mean / 3)]
    followed = CompletionModel(PROFILE, ENGINE).predict(nothing, RequestLengths(*each))
    last_s = float(found.work_s[0] + found.own_s[0])
    assert last_s == pytest.approx(followed.e2e.mean_s[-1], rel=0.12)


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
