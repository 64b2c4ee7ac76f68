"""Batch size against context: the points are decode-only steps of a run, before the cache is full."""

import pytest

from benchmarks.policies.batch_context import measured, points
from sloserve.estimator.step_time.profile import load_profile


@pytest.mark.slow
def test_contexts_grow_with_the_batch_and_stay_within_the_cache() -> None:
    found = points(0, 60)
    assert found[:, 0].min() >= 1 and (found[:, 1] >= found[:, 0]).all()
    assert found[:, 1].max() < load_profile("a100x4-opt-66b").kv_capacity_tokens


@pytest.mark.slow
def test_the_result_has_a_correlation_for_each_seed() -> None:
    result = measured((0,), 60)
    assert len(result["pearson"]) == 1 and 0.5 < result["pearson"][0] <= 1.0
