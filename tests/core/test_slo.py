"""Which of a request's deadlines orders it while it is held back, and what is left of its targets."""

import pytest

from sloserve.core.slo import DUE_NOW_S, Targets


@pytest.mark.parametrize(
    ("targets", "before", "after"),
    [
        (Targets(ttft_s=2.0, e2e_s=20.0), 2.0, 20.0),
        (Targets(ttft_s=30.0, e2e_s=20.0), 20.0, 20.0),
        (Targets(e2e_s=20.0), 20.0, 20.0),
        (Targets(ttft_s=2.0), 2.0, None),
        (Targets(tpot_s=0.1), None, None),
    ],
)
def test_the_deadline_that_comes_next(targets: Targets, before: float | None, after: float | None) -> None:
    assert (targets.next_s(), targets.next_s(begun=True)) == (before, after)


def test_what_is_left_of_targets() -> None:
    asked = Targets(ttft_s=2.0, tpot_s=0.1, e2e_s=20.0, tds=5.0)
    assert asked.left(0.5, begun=False) == Targets(ttft_s=1.5, tpot_s=0.1, e2e_s=19.5, tds=5.0)
    assert asked.left(0.5, begun=True) == Targets(ttft_s=None, tpot_s=0.1, e2e_s=19.5, tds=5.0)
    assert asked.left(60.0, begun=False) == Targets(ttft_s=DUE_NOW_S, tpot_s=0.1, e2e_s=DUE_NOW_S, tds=5.0)
    assert Targets().left(60.0, begun=False) == Targets()
