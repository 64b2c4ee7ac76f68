"""Which of a request's deadlines orders it while it is held back."""

import pytest

from sloserve.core.slo import Targets


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
