"""The settings on which `auto` is judged at the end: each is there once, and generated requests are as described."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies.auto_held_out import BURST_S, BURST_TIMES, SEEDS, settings, short_replies, with_burst
from sloserve.sim.workloads.trace import make_trace


def test_each_setting_is_there_once_with_seeds_that_no_other_benchmark_has() -> None:
    found = [(one.group, one.name, one.load) for one in settings()]
    assert len(set(found)) == len(found) == 24 + 8 + 7 + 3 + 16
    assert min(SEEDS) >= 500


@pytest.mark.slow
def test_a_setting_without_a_trace_file_becomes_an_experiment(tmp_path: Path) -> None:
    short = next(one for one in settings() if one.group == "seats")
    experiment = short.experiment(SEEDS[0], tmp_path)
    assert experiment.seeds == (SEEDS[0],)
    assert list(experiment.policies) == ["stock"]


def test_short_replies_have_the_medians_that_they_are_named_after() -> None:
    arrivals_s, prompts, outputs = short_replies(4000, 4, 1)
    assert (np.diff(arrivals_s) > 0.0).all()
    assert abs(np.median(prompts) - 46) <= 2
    assert np.median(outputs) == 4
    assert set(short_replies(100, 1, 1)[2]) == {1}


def test_a_burst_has_ten_times_the_load_and_requests_of_the_later_half() -> None:
    lengths = np.arange(1, 10_001)
    trace = make_trace("trace", "made here", lengths / 10.0, lengths, lengths, ["task"] * lengths.size)
    arrivals_s, prompts, outputs = with_burst(trace, 2.0, 0)
    during = (arrivals_s >= 60.0) & (arrivals_s < 60.0 + BURST_S)
    assert during.sum() == BURST_TIMES * BURST_S * 2.0
    assert (~during).sum() == 180 * 2.0
    assert prompts.min() > 5000
    assert (prompts == outputs).all()
