"""How many hosts: what is needed, and for how long it must be before hosts come or go."""

import pytest

from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.planning.scaling import FULL, ScaledKind, Scaling, hosts_for, instances_needed


def _plan(instances: int, pressure: float, needed: int | None = None) -> PlanInForce:
    return PlanInForce(0.0, {f"n/{k}": () for k in range(instances)}, 0.0, needed, pressure={"a": pressure, "b": 0.0})


@pytest.mark.parametrize(
    ("plan", "needed"),
    [
        (_plan(4, FULL), 4),
        (_plan(4, FULL / 2), 2),
        (_plan(4, 2 * FULL), 8),
        (_plan(4, 0.0), 1),
        (_plan(4, 5.0, needed=6), 6),
        (_plan(0, 0.0), 1),
    ],
)
def test_the_planner_says_what_is_needed(plan: PlanInForce, needed: int) -> None:
    assert instances_needed(plan) == needed


def test_the_first_kind_is_filled_first_within_its_bounds() -> None:
    kinds = {"h100": ScaledKind(8, 1, 2), "a100": ScaledKind(4, 0, 3)}
    wanted = {1: (1, 0), 9: (2, 0), 17: (2, 1), 24: (2, 2), 99: (2, 3)}
    assert {n: tuple(hosts_for(n, kinds).values()) for n in wanted} == wanted


def _course(needed: list[int], there: int = 1) -> list[int]:
    """What is wanted each second, of hosts with one instance."""
    scaling = Scaling({"h": ScaledKind(1, 1, 5)}, up_s=3.0, down_s=10.0)
    return [scaling.want(float(s), n, there)["h"] for s, n in enumerate(needed)]


def test_a_burst_starts_no_host_and_a_lull_ends_none() -> None:
    assert _course([1, 1, 1, 4, 4, 1, 1, 1, 1]) == [1] * 9
    assert _course([3] * 12 + [1] * 9 + [3] * 3, there=3) == [3] * 24


def test_hosts_come_for_what_is_needed_throughout_and_go_to_the_most_that_was_needed() -> None:
    course = _course([1] * 3 + [4, 3, 4, 5] + [1] * 5 + [2] * 20)
    assert course[6] == 3, "the least of the last three seconds"
    assert course[16:19] == [3, 2, 2] and course[-1] == 2
    assert _course([9] * 5)[-1] == 5, "no more than are allowed"
