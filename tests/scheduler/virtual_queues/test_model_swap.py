"""What a model swap costs: as measured, else from the size of the weights, with a sentence that says so."""

import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.virtual_queues.contract import ModelState, Swap
from sloserve.scheduler.virtual_queues.model_swap import model_swap
from sloserve.scheduler.virtual_queues.swaps import swap_table

PROFILE = load_profile("h100-llama3-8b")
MEASURED = {"sleep_s": 0.4, "wake_s": 0.3, "reload_s": 6.0}


def test_measured_times_are_taken_as_they_are() -> None:
    cost = model_swap(PROFILE.model_copy(update=MEASURED))
    assert (cost.sleep_s, cost.wake_s, cost.reload_s, cost.assumed) == (0.4, 0.3, 6.0, ())
    assert cost.seconds(cost, warm=True) == pytest.approx(0.7)
    assert cost.seconds(None, warm=False) == 6.0


def test_what_was_not_measured_is_assumed_aloud() -> None:
    cost = model_swap(PROFILE)
    assert cost.sleep_s == cost.wake_s == pytest.approx(16.06e9 / 50e9, rel=1e-3)
    assert cost.reload_s == pytest.approx(16.06e9 / 2e9 + cost.wake_s, rel=1e-3)
    assert len(cost.assumed) == 3 and "wake_s not measured, taken as 0.32 s (16.1 GB at 50 GB/s)" in cost.assumed[1]
    started = model_swap(PROFILE.model_copy(update={"start_s": 25.0}))
    assert started.reload_s == 25.0 and len(started.assumed) == 2


def test_without_the_size_of_the_weights_it_says_what_to_add() -> None:
    with pytest.raises(ConfigError, match="profile h100-llama3-8b: weights_bytes is missing"):
        model_swap(PROFILE.model_copy(update={"weights_bytes": None}))


def test_the_table_has_every_pair_of_a_device() -> None:
    cost = model_swap(PROFILE.model_copy(update=MEASURED))
    table = swap_table({("a", "h100"): cost, ("b", "h100"): cost, ("b", "a100"): cost})
    assert len(table) == 2 * (2 + 2 + 1)
    assert table[Swap("h100", "a", "b", ModelState.WARM)] == pytest.approx(0.7)
    assert table[Swap("a100", None, "b", ModelState.COLD)] == 6.0
