"""Days with shocks: the events that the generator names are there, and each seed has a day of its own."""

import numpy as np
import pytest

from benchmarks.fleet.days_with_shocks import DAY_S, MOST_PROMPT_TOKENS, PEAK_RPS, RECONNECT_S, RECONNECTING, day
from benchmarks.fleet.scaling import fleet_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_day_has_a_wave_and_its_shocks(seed: int) -> None:
    requests = day(fleet_of(1), seed)
    arrivals_s = np.array([one.arrival_s for one in requests])
    assert np.all(np.diff(arrivals_s) >= 0.0) and 0.0 <= arrivals_s[0] and arrivals_s[-1] < DAY_S
    assert len({one.request_id for one in requests}) == len(requests)
    per_minute = np.histogram(arrivals_s, bins=np.arange(0.0, DAY_S + 60.0, 60.0))[0] / 60.0
    assert per_minute.max() > PEAK_RPS and per_minute.min() < 0.3 * PEAK_RPS
    together = np.searchsorted(arrivals_s, arrivals_s + RECONNECT_S, side="right") - np.arange(arrivals_s.size)
    assert together.max() >= RECONNECTING[0]
    prompts = np.array([one.prompt_tokens for one in requests])
    means = [prompts[k : k + 100].mean() for k in range(0, prompts.size - 100, 100)]
    assert max(means) > 3.0 * np.median(means) and prompts.max() <= MOST_PROMPT_TOKENS


def test_a_seed_gives_one_day() -> None:
    fleet = fleet_of(1)
    assert day(fleet, 0, 300.0) == day(fleet, 0, 300.0) != day(fleet, 1, 300.0)
