"""Algorithm 2: requests to the instance with the most memory left, in rounds; then each instance by itself."""

import numpy as np
import pytest

from benchmarks.policies.sa_instances import assign_instances, plan_instances
from sloserve.core.kernels.anneal import BatchRequests, BatchTimes, anneal


def test_each_request_goes_where_most_is_left_and_a_full_round_starts_anew() -> None:
    # 100, 60 | 60, 60 | 20, 60 | 20, 10 | nothing holds 30: 100, 60 again.
    assert assign_instances(np.array([40.0, 40.0, 50.0, 30.0]), [100, 60]).tolist() == [0, 0, 1, 0]


def test_equal_instances_take_turns() -> None:
    assert assign_instances(np.full(7, 10.0), [100, 100, 100]).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_plans_each_instance_by_itself() -> None:
    exec_s = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    requests = BatchRequests.of(BatchTimes(exec_s))
    plans = plan_instances(requests, np.full(6, 1.0), [50, 50], 1)
    assert [p.members[p.plan.order].tolist() for p in plans] == [[2, 0, 4], [1, 3, 5]]
    assert [p.plan.latency_s for p in plans] == [2 + 5 + 9, 1 + 6 + 12]
    assert plans[0].plan.order.tolist() == anneal(BatchRequests(requests.columns[:, ::2].copy()), 1).order.tolist()


@pytest.mark.parametrize(
    ("kv_tokens", "free_tokens", "message"),
    [([1.0], [], "no instance"), ([70.0], [60, 50], "a request of 70 tokens fits into no instance of 60 or less")],
)
def test_refuses_what_fits_nowhere(kv_tokens: list[float], free_tokens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign_instances(np.array(kv_tokens), free_tokens)
