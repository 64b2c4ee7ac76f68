"""The compiled search over virtual queues: against a plain evaluation, every order there is, and its own promises."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.group_spans import group_spans
from sloserve.core.kernels.fleet import FleetProblem, FleetQueues, fleet_search
from tests.seeds import seeds


def problem(seed: int, groups: int, instances: int, models: int, tightness: float = 1.0) -> FleetProblem:
    """Some models that only some instances can serve, two kinds of devices, some groups without a deadline."""
    rng = np.random.default_rng(seed)
    kinds = min(2, instances)
    work = rng.uniform(1, 10, groups) * np.linspace(1.0, 2.0, kinds)[:, None]
    due = rng.uniform(2, 2 + 10 * groups / instances, groups) / tightness
    due[rng.random(groups) < 0.1] = np.inf
    swap = rng.uniform(1, 20, (instances, models + 1, models))
    swap[:, range(models), range(models)] = 0.0
    kept = rng.integers(0, instances, models)  # so that some instance serves each model
    for i, m in itertools.product(range(instances), range(models)):
        if kept[m] != i and rng.random() < 0.3:
            swap[i, m, :] = swap[i, :, m] = np.inf
    active = [int(rng.choice([-1, *(m for m in range(models) if swap[i, m, m] == 0.0)])) for i in range(instances)]
    ready = rng.uniform(0, 3, instances)
    return FleetProblem(
        model=rng.integers(0, models, groups),
        first_due_s=due,
        last_due_s=due + rng.uniform(0, 3, groups),
        weight=rng.integers(1, 100, groups).astype(float),
        work_s=work,
        judged_s=rng.uniform(0.1, 1, (kinds, groups)),
        own_s=rng.uniform(1, 3, (kinds, groups)),
        kind=np.arange(instances) % kinds,
        active=np.array(active),
        ready_s=ready,
        drained_s=ready + rng.uniform(0, 3, instances),
        swap_s=swap,
        min_active_s=float(rng.choice([0.0, 15.0])),
        swap_price=float(rng.choice([0.0, 2.0])),
    )


def reference(p: FleetProblem, queues: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Cost and lateness, group after group."""
    cost = late = 0.0
    for i, queue in enumerate(queues):
        now, model, k = p.ready_s[i], int(p.active[i]), p.kind[i]
        leave = max(p.drained_s[i], now)
        for g in queue:
            if p.model[g] != model:
                swap_s = p.swap_s[i, model, p.model[g]]  # model -1 is the last row
                now = max(now, leave) + swap_s
                leave, model = now + p.min_active_s, int(p.model[g])
                cost += p.swap_price * swap_s
            first, last = now + p.judged_s[k, g], now + p.work_s[k, g] + p.judged_s[k, g]
            over = p.weight[g] * (max(first - p.first_due_s[g], 0) + max(last - p.last_due_s[g], 0)) / 2
            now += p.work_s[k, g]
            leave = max(leave, now + p.own_s[k, g])
            cost, late = cost + over, late + over
    return cost, late


def assert_sound(p: FleetProblem, found: FleetQueues) -> None:
    assert sorted(g for queue in found.queues for g in queue) == list(range(p.model.size))
    assert len(found.queues) == p.kind.size
    assert all(p.swap_s[i, p.model[g], p.model[g]] == 0 for i, queue in enumerate(found.queues) for g in queue)
    assert (found.cost, found.late) == pytest.approx(reference(p, found.queues), rel=1e-9, abs=1e-9)
    assert found.cost <= found.start_cost * (1 + 1e-12)


def every_plan(p: FleetProblem) -> float:
    """The least cost of all orders and cuts."""
    n, least = p.model.size, math.inf
    for order in itertools.permutations(range(n)):
        for cuts in itertools.combinations_with_replacement(range(n + 1), p.kind.size - 1):
            ends = (0, *cuts, n)
            queues = [order[a:b] for a, b in itertools.pairwise(ends)]
            if all(math.isfinite(p.swap_s[i, p.model[g], p.model[g]]) for i, q in enumerate(queues) for g in q):
                least = min(least, reference(p, queues)[0])
    return least


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(0, 12),
    instances=st.integers(1, 4),
    models=st.integers(1, 4),
    moves=st.sampled_from([0, 1, 65, 2000]),
    known=st.floats(0, 1),
)
def test_a_plan_is_sound_and_never_worse_than_the_last_one(
    seed: int, groups: int, instances: int, models: int, moves: int, known: float
) -> None:
    p = problem(seed, groups, instances, models, tightness=2.0)
    first = fleet_search(p, moves=moves, seed=seed)
    assert_sound(p, first)
    rng = np.random.default_rng(seed)
    last = [[g for g in queue if rng.random() < known] for queue in first.queues]
    again = fleet_search(p, last, moves=moves, seed=seed)
    assert_sound(p, again)
    assert fleet_search(p, last, moves=moves, seed=seed).queues == again.queues
    kept = fleet_search(p, first.queues)
    assert kept.queues == first.queues and kept.cost == kept.start_cost == pytest.approx(first.cost, abs=1e-9)


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_finds_the_best_of_all_plans(seed: int) -> None:
    p = problem(seed, groups=5, instances=2, models=3, tightness=1.5)
    assert fleet_search(p, moves=4000).cost == pytest.approx(every_plan(p), rel=1e-9, abs=1e-9)


def test_swaps_back_and_forth_are_put_together() -> None:
    """Earliest deadlines first would swap at each group; two swaps' worth of lateness is more than the wait."""
    p = replace(
        problem(1, groups=8, instances=1, models=2),
        model=np.arange(8) % 2,
        work_s=np.ones((1, 8)),
        judged_s=np.zeros((1, 8)),
        own_s=np.zeros((1, 8)),
        first_due_s=np.arange(8) + 6.0,
        last_due_s=np.arange(8) + 6.0,
        weight=np.ones(8),
        ready_s=np.zeros(1),
        drained_s=np.zeros(1),
        active=np.zeros(1, np.int64),
        swap_s=np.array([[[0.0, 10.0], [10.0, 0.0], [10.0, 10.0]]]),
        min_active_s=0.0,
    )
    (queue,) = fleet_search(p, moves=2000).queues
    assert [int(p.model[g]) for g in queue] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("change", "last", "moves", "message"),
    [
        ({"model": np.array([0, 3])}, (), 0, "model: 3 is not within 0..1"),
        ({"kind": np.array([2, 0])}, (), 0, "kind: 2 is not within 0..1"),
        ({"work_s": np.full((2, 2), np.nan)}, (), 0, "work: nan is not a finite number from 0"),
        ({"own_s": np.zeros((2, 3))}, (), 0, r"own: shape \[2, 3\] is not \[2, 2\]"),
        ({"first_due_s": np.array([np.nan, 1])}, (), 0, "due: not a number"),
        ({"swap_s": -np.ones((2, 3, 2))}, (), 0, "swap: from 0 to 0 on instance 0: -1.0"),
        ({"swap_s": np.full((2, 3, 2), np.inf)}, (), 0, "model: no instance serves that of group"),
        ({}, [[0, 0], []], 0, "order: names group 0 twice"),
        ({}, [[7], []], 0, "order: names no group"),
        ({}, [[0]], 0, "sizes: one for each instance"),
        ({}, (), -1, "moves: -1 is not within 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    change: dict[str, np.ndarray], last: list[list[int]], moves: int, message: str
) -> None:
    swap = np.array([[[0.0, 1], [1, 0], [1, 1]]] * 2)
    p = replace(problem(0, groups=2, instances=2, models=2), swap_s=swap, active=np.array([0, 1]))
    with pytest.raises(ValueError, match=message):
        fleet_search(replace(p, **change), last, moves=moves)


def test_spans_of_groups_are_those_that_the_search_judges_by() -> None:
    for seed in range(8):
        p = problem(seed, groups=12, instances=3, models=3, tightness=2.0)
        found = fleet_search(p, moves=500)
        spans = group_spans(p, found.queues)
        judged = p.judged_s[p.kind[spans.instance], range(12)]
        late = np.maximum(spans.start_s + judged - p.first_due_s, 0) + np.maximum(
            spans.end_s + judged - p.last_due_s, 0
        )
        assert float((p.weight * late).sum()) / 2 == pytest.approx(found.late)
