"""Algorithm 1 as printed: it never accepts a worse plan, and its score is that of the paper's model."""

import math

import numpy as np
import pytest

from benchmarks.policies.sa_paper import V100, achieved, in_turn, view
from benchmarks.policies.sa_printed import RULES, Burst, as_printed
from sloserve.core.kernels.anneal import BatchPlan
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.sa.times import bilinear_of

TRUTH = view(6, 0, bilinear_of(load_profile(V100)))


def test_the_score_of_a_plan_is_that_of_the_papers_model() -> None:
    plan = in_turn(6, 2)
    met, latency_s = achieved(TRUTH, plan)
    found, found_s = Burst(TRUTH).score([[0, 1], [2, 3], [4, 5]])
    assert found == met and found_s == pytest.approx(latency_s)


@pytest.mark.slow
def test_as_printed_no_worse_plan_is_accepted_and_with_the_sign_turned_round_nearly_all_are() -> None:
    shares = [as_printed(Burst(TRUTH), 6, 1, np.random.default_rng(0), rule)[1] for rule in RULES]
    assert shares[0] == 0.0 and shares[1] > 0.99


def test_the_climb_ends_no_lower_than_it_starts() -> None:
    batches, _ = as_printed(Burst(TRUTH), 6, 2, np.random.default_rng(0), RULES[0])
    assert sorted(i for batch in batches for i in batch) == list(range(6)) and max(map(len, batches)) <= 2
    order = np.array([i for batch in batches for i in batch])
    met, latency_s = achieved(TRUTH, BatchPlan(order, np.array([len(batch) for batch in batches]), 0, 0.0))
    base_met, base_latency_s = achieved(TRUTH, in_turn(6, 2))
    assert met / latency_s >= base_met / base_latency_s and math.isfinite(latency_s)
