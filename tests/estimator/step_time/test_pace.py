"""Step times learnt from when outputs came, and those a profile gives."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.pace import BEFORE_ANY_S, StepPace, decode_step_s
from sloserve.estimator.step_time.profile import load_profile

BATCHES = np.array([1.0, 64.0, 256.0])
EPOCH_S = 1.7e9


def line_s(batches: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.01 + 0.0001 * batches


def run(pace: StepPace, batches: list[int], start_s: float) -> float:
    """Steps one behind another, the first of them out of idleness; returns when the last one ended."""
    now_s = start_s
    for batch in batches:
        now_s += float(line_s(np.array([batch]))[0])
        pace.stepped(batch, now_s)
    return now_s


def test_a_usual_time_before_a_step_was_seen() -> None:
    pace = StepPace()
    assert pace.step_s(BATCHES).tolist() == [BEFORE_ANY_S] * 3
    pace.stepped(4, EPOCH_S)  # the first output tells when, not how long
    assert pace.step_s(BATCHES).tolist() == [BEFORE_ANY_S] * 3
    assert pace.step_s(np.empty(0)).shape == (0,)


def test_the_line_is_recovered_from_the_steps() -> None:
    pace = StepPace()
    run(pace, np.random.default_rng(4).integers(1, 300, 500).tolist(), EPOCH_S)
    # Gaps of epoch seconds are known to 2e-7 s.
    assert pace.step_s(BATCHES) == pytest.approx(line_s(BATCHES), rel=1e-3)


def test_idle_gaps_are_left_out() -> None:
    pace, batches = StepPace(), np.random.default_rng(5).integers(1, 300, 50).tolist()
    now_s = 0.0
    for _ in range(10):
        pace.idle()
        now_s = run(pace, batches, now_s + 3600.0)
    assert pace.step_s(BATCHES) == pytest.approx(line_s(BATCHES), rel=1e-6)


def test_an_hour_that_nobody_called_idle_would_count() -> None:
    pace = StepPace()
    run(pace, [10, 20, 30], run(pace, [10, 20, 30], 0.0) + 3600.0)
    assert pace.step_s(BATCHES).max() > 100.0


def test_two_outputs_of_one_instant_are_one_step() -> None:
    pace = StepPace()
    for now_s in (1.0, 1.5, 1.5, 2.0):
        pace.stepped(8, now_s)
    assert pace.step_s(BATCHES) == pytest.approx([0.5] * 3)


def test_times_that_change_are_followed() -> None:
    pace = StepPace()
    for step, now_s in enumerate(np.cumsum([0.02] * 300 + [0.08] * 300).tolist()):
        pace.stepped(1 + step % 7, now_s)
    assert pace.step_s(np.array([4.0])) == pytest.approx([0.08], rel=0.01)


def test_a_profile_gives_the_time_of_a_step_that_decodes() -> None:
    profile = load_profile("h100-llama3-8b")
    found = decode_step_s(profile, BATCHES, 700.5)
    loads = [StepLoad(decode_seqs=int(b), decode_context_tokens=int(b * 700.5)) for b in BATCHES]
    assert found.tolist() == [profile.step_s(load) for load in loads]
    assert np.all(np.diff(found) > 0.0)
