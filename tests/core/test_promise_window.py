"""What watchers see of promises: the latest ones of all processes, against what their levels allow."""

import numpy as np
import pytest

from sloserve.core.promise_window import MAX_PROMISES, EndedPromises, PromiseWindow, ended_promises
from sloserve.core.stamps import Stamps


def stamps() -> Stamps:
    return np.zeros(MAX_PROMISES, np.uint64)


def test_promises_are_counted_by_what_came_of_them() -> None:
    one = stamps()
    window = PromiseWindow(one)
    assert ended_promises([one]) == EndedPromises() and EndedPromises().broken_share is None
    for outcome, level in (("kept", 0.9), ("kept", 0.99), ("broken", 0.5), ("withdrawn", 0.5)):
        window.record(outcome, level, 1.0)
    found = ended_promises([one])
    assert (found.kept, found.broken, found.withdrawn) == (2, 1, 1)
    assert found.allowed == pytest.approx(0.1 + 0.01 + 0.5, abs=1e-3)
    assert found.broken_share == pytest.approx(1 / 3) and found.allowed_share == pytest.approx(0.61 / 3, abs=1e-3)


def test_the_latest_of_all_processes_count() -> None:
    first, second = stamps(), stamps()
    earlier, window = PromiseWindow(first), PromiseWindow(second)
    for i in range(MAX_PROMISES):
        earlier.record("broken", 0.99, float(i))
    for i in range(MAX_PROMISES + 7):
        window.record("kept", 0.99, 1e4 + i)
    found = ended_promises([first, second])
    assert (found.kept, found.broken) == (MAX_PROMISES, 0)
    assert found.allowed == pytest.approx(0.01 * MAX_PROMISES, rel=0.01)


@pytest.mark.parametrize(
    ("broken", "allowed", "too_many"),
    [(2, 0.1, False), (3, 0.1, True), (17, 9.0, False), (19, 9.0, True), (0, 0.0, False)],
)
def test_a_few_more_broken_promises_than_allowed_are_chance(broken: int, allowed: float, too_many: bool) -> None:
    assert EndedPromises(kept=900, broken=broken, allowed=allowed).too_many_broken == too_many
