"""How long streams may take to end before their model leaves."""

from typing import Any

import numpy as np
import pytest

from sloserve.lso.draining import drain_s


def found(remaining: list[float], slack: list[float], **change: Any) -> float:
    given = {"away_s": 30.0, "waiting": np.array([10.0]), "waiting_slack_s": np.array([2.0])} | change
    return drain_s(np.array(remaining), np.array(slack), np.full(len(remaining), 0.02), **given)


def test_streams_that_stay_in_time_are_parked_at_once_and_none_waits_for_nothing() -> None:
    assert found([3.0, 8.0], [100.0, 100.0]) == 0.0
    assert found([], []) == 0.0


def test_streams_that_would_be_late_end_first_while_the_waiting_have_time() -> None:
    assert found([1.5, 8.0], [5.0, 100.0]) == 1.5
    # Ten requests that are late by six seconds each weigh more than one that is late by twenty-five.
    assert found([8.0], [5.0]) == 0.0
    assert found([8.0], [5.0], waiting_slack_s=np.array([9.0])) == 8.0


def test_a_group_counts_from_when_it_would_be_late_itself() -> None:
    groups = {"waiting": np.array([1.0, 500.0]), "waiting_slack_s": np.array([0.0, 60.0])}
    assert found([8.0], [5.0], **groups) == 8.0


def test_draining_is_no_loss_while_the_batch_is_full_and_moving_kv_costs() -> None:
    nobody = {"waiting": np.zeros(0), "waiting_slack_s": np.zeros(0)}
    assert found([1.0, 1.0], [100.0, 100.0], **nobody) == pytest.approx(1.0)
    assert found([1.0, 30.0], [100.0, 100.0], **nobody) in (0.0, 1.0)
