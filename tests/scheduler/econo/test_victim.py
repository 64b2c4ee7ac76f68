"""Whose preemption saves most, against sums over pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sloserve.scheduler.econo.victim import TOKENS_PER_STEP, ServiceOrder, victim_worth_preempting

TOTAL = 1000


def ranked(work: list[float], target_s: list[float]) -> ServiceOrder:
    columns = np.array(sorted(zip(work, target_s, strict=True), key=lambda one: one[0] * one[1])).reshape(-1, 2)
    return ServiceOrder(np.arange(len(columns)), columns.prod(axis=1), columns[:, 0], columns[:, 1])


def saved(waiting: ServiceOrder, running: ServiceOrder, victim: int, context_tokens: float) -> float:
    """Delay of all as a share of the targets, in steps, with the victim where it is minus that without."""
    own, share = running.work[victim] / TOTAL, 1.0 / running.target_s[victim]
    again = context_tokens / TOKENS_PER_STEP
    total = -again * (share + sum(1.0 / one for i, one in enumerate(running.target_s) if i != victim))
    for key, work, target_s in zip(waiting.key, waiting.work, waiting.target_s, strict=True):
        total -= again / target_s
        if key < running.key[victim]:
            total += own / target_s - work / TOTAL * share
    return float(total)


REQUESTS = st.lists(st.tuples(st.floats(1.0, 1e7), st.floats(0.1, 100.0)), min_size=1, max_size=8)


@given(REQUESTS, REQUESTS, st.integers(0, 2**32 - 1))
def test_it_is_the_one_that_saves_most_or_none(
    waits: list[tuple[float, float]], runs: list[tuple[float, float]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    waiting, running = (ranked([w for w, _ in of], [t for _, t in of]) for of in (waits, runs))
    context = rng.integers(1, 2000, len(runs))
    may = rng.random(len(runs)) < 0.7
    each = [saved(waiting, running, i, float(context[i])) if may[i] else 0.0 for i in range(len(runs))]
    found = victim_worth_preempting(waiting, running, context, may, total_tokens=TOTAL)
    slack = 1e-9 * max(map(abs, each))
    if found is None:
        assert max(each) <= slack
    else:
        assert may[found] and each[found] >= max(each) - slack and each[found] > -slack


def test_nobody_runs_or_waits() -> None:
    some, none = ranked([1e6], [10.0]), ranked([], [])
    assert victim_worth_preempting(some, none, np.empty(0, np.int64), np.empty(0, np.bool_), total_tokens=TOTAL) is None
    assert victim_worth_preempting(none, some, np.array([10]), np.array([True]), total_tokens=TOTAL) is None
