"""The load a policy carries at a mean QoE of 0.9."""

import pytest

from sloserve.report.load_capacity import Bound
from sloserve.report.qoe_capacity import qoe_capacity
from sloserve.report.summary import Run


def runs_of(policy: str, *qoes: float | None) -> list[Run]:
    """A run at 1, 2, 3 and so on times stock's capacity."""
    return [
        {"policy": policy, "seed": 0, "rps": 9.0 * i, "load": float(i), "qoe_mean": q} for i, q in enumerate(qoes, 1)
    ]


def test_the_load_at_which_users_are_no_longer_content() -> None:
    stock, ours = qoe_capacity(runs_of("stock", 1.0, 0.8, 0.5) + runs_of("ours", 1.0, 0.95, 0.9))
    assert stock.load is not None and ours.load is not None and ours.ratio is not None
    assert (stock.threshold, stock.load.value, stock.load.bound) == (0.9, pytest.approx(1.5), Bound.EXACT)
    assert (ours.load.value, ours.load.bound, ours.ratio.value) == (3.0, Bound.AT_LEAST, pytest.approx(2.0))


def test_nothing_to_say_without_timelines_or_at_one_load() -> None:
    assert qoe_capacity(runs_of("stock", None, None, None)) == []
    assert qoe_capacity(runs_of("stock", 1.0)) == []
