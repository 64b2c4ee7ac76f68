"""Levels of tenants by their service, and the bound that they put on the service of two that always wait."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.standing import SAME_LEVEL_S, by_level, levels_of


def levels(service_s: list[float], weights: list[float] | None = None, absent: tuple[int, ...] = ()) -> list[int]:
    size = len(service_s)
    present = ~np.isin(np.arange(size), absent)
    found = levels_of(np.array(service_s), np.array(weights or [1.0] * size), present, np.zeros(size, np.int64))
    assert not found[list(absent)].any()
    return [int(one) for one in found]


def test_levels_are_means_of_those_above_the_mean() -> None:
    assert levels([0.0, 0.0, 10.0, 50.0]) == [0, 0, 0, 1]
    assert levels([0.0, 0.0, 0.0, 0.0, 20.0, 50.0]) == [0, 0, 0, 0, 1, 2]
    assert levels([0.0, 0.0, 0.0, 20.0, 20.0 + SAME_LEVEL_S]) == [0, 0, 0, 1, 1]


def test_weights_divide_service_and_absent_tenants_do_not_count() -> None:
    assert levels([8.0, 2.1], [4.0, 1.0]) == [0, 1]
    assert levels([8.0, 2.1, 0.0], absent=(2,)) == [1, 0, 0]


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20), st.integers(1, 3))
def test_equal_service_is_one_level_and_groups_do_not_affect_each_other(service_s: list[float], groups: int) -> None:
    size = len(service_s)
    ones, present = np.ones(size), np.ones(size, np.bool_)
    assert not levels_of(np.full(size, service_s[0]), ones, present, np.zeros(size, np.int64)).any()
    group = np.arange(size) % groups
    together = levels_of(np.array(service_s), ones, present, group)
    for one in range(groups):
        mine = group == one
        assert together[mine].tolist() == levels([s for s, of in zip(service_s, mine, strict=True) if of])


def test_a_level_keeps_the_order_that_it_has() -> None:
    assert by_level(np.array([3, 1, 0, 2]), np.array([1, 0, 0, 1])).tolist() == [1, 2, 3, 0]


@pytest.mark.slow
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=8),
    half_life_s=st.sampled_from([30.0, 1e9]),
    seed=st.integers(0, 10_000),
)
@pytest.mark.parametrize("places", [1, 4])
def test_no_two_tenants_that_always_wait_drift_apart(
    weights: list[float], half_life_s: float, seed: int, places: int
) -> None:
    """The bound of docs/tenants.md, whatever the policy prefers within a level, and however long requests run.

    Any of the tenants on the lowest level may be served, and a policy always prefers the same one. While a request runs
    its tenant is charged for its part of the places. The others' demand pulls the mean down: some come and go.
    """
    rng = np.random.default_rng(seed)
    weight, longest_s = np.array(weights), 5.0
    size = weight.size
    service_s, running = np.zeros(size), []  # each: when it ends, and its tenant
    backlogged = np.arange(size) < 2
    for now in range(400):
        running = [(end, tenant) for end, tenant in running if end > now]
        waits = backlogged | (rng.random(size) < 0.2)
        present = waits | np.isin(np.arange(size), [tenant for _, tenant in running])
        while len(running) < places:
            level = levels_of(service_s, weight, present, np.zeros(size, np.int64))
            able = np.flatnonzero(waits & (level == level[waits].min()))
            running.append((now + int(rng.integers(1, longest_s + 1)), int(able[0])))
        part = np.bincount([tenant for _, tenant in running], minlength=size) / places
        service_s = service_s * 0.5 ** (1.0 / half_life_s) + part
        had_s = service_s[:2] / weight[:2]
        bound_s = weight.sum() / weight[had_s.argmin()] * (SAME_LEVEL_S + longest_s / weight.min())
        assert abs(had_s[0] - had_s[1]) <= bound_s
