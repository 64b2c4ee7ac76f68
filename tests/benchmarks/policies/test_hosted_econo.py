"""Guests of ``econo``: which requests each form admits behind one that does not fit."""

from typing import Any

import pytest

from benchmarks.policies.hosted_econo import FORMS, HostedEcono
from sloserve.scheduler.econo.policy import Econo
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from tests.snapshots import make_snapshot

BLOCKS = 20


def plan(form: str, at: Snapshot, **settings: Any) -> Plan:
    policy = HostedEcono(Econo.Settings(**{"length": "oracle", "preempt": False} | settings), form, seed=0)
    made = policy.plan(at, 0.0)
    check_plan(made, at)
    return made


def new(output: int, prompt: int = 16, **of: Any) -> dict[str, Any]:
    return {"oracle_output_tokens": output, "prompt_tokens": prompt, "arrival_s": 0.0} | of


def admitted(made: Plan, running: int) -> list[int]:
    assert made.waiting is not None
    return made.waiting[: (made.max_running or 0) - running].tolist()


def crowded(*waiting: dict[str, Any]) -> Snapshot:
    """One runs that comes to fill 14 of 20 blocks of 16 tokens."""
    runs = new(200, output_tokens=10, computed_tokens=25, e2e_s=1.0)
    return make_snapshot(list(waiting), [runs], free_blocks=BLOCKS - 2, total_blocks=BLOCKS)


def test_a_guest_overtakes_where_it_fits_at_every_step() -> None:
    at = crowded(new(190, e2e_s=1.0), new(20, e2e_s=10**6))
    assert not admitted(Econo(Econo.Settings(length="oracle", preempt=False)).plan(at, 0.0), 1)
    for form in ("first-fit", "backfill"):
        assert admitted(plan(form, at), 1) == [2]


def test_backfill_admits_no_guest_that_delays_who_does_not_fit() -> None:
    # The urgent one needs 16 blocks, which it finds when the running one has ended, in 100 steps. A guest of 200 steps
    # is in its way then.
    urgent, long = new(150, prompt=256, e2e_s=1.0), new(200, prompt=1, e2e_s=10**6)
    runs = new(110, prompt=150, output_tokens=10, computed_tokens=159)
    at = make_snapshot([urgent, long], [runs], free_blocks=16, total_blocks=27)
    assert admitted(plan("first-fit", at), 1) == [2]
    assert not admitted(plan("backfill", at), 1)
    brief = make_snapshot([urgent, new(80, prompt=1, e2e_s=10**7)], [runs], free_blocks=16, total_blocks=27)
    assert admitted(plan("backfill", brief), 1) == [2]


def test_the_mean_alone_admits_more_where_lengths_are_not_known() -> None:
    waiting = [{"max_tokens": 1000, "arrival_s": 0.0}] * 30
    at = make_snapshot(waiting, free_blocks=200, total_blocks=200, max_num_seqs=30)
    econo = Econo(Econo.Settings()).plan(at, 0.0)
    guests = plan("mean", at, length="predicted")
    assert len(admitted(guests, 0)) > len(admitted(econo, 0))


def test_a_span_takes_a_request_of_less_than_half_its_host() -> None:
    policy = HostedEcono(Econo.Settings(length="oracle", preempt=False), "spans", seed=0)
    at = crowded(new(190, e2e_s=1.0), new(60, e2e_s=10**6), new(120, e2e_s=10**7))
    assert admitted(policy.plan(at, 0.0), 1) == [2], "120 tokens and a buffer are more than half of 190"


@pytest.mark.parametrize("form", FORMS)
def test_nobody_is_a_guest_where_all_fit(form: str) -> None:
    at = make_snapshot([new(20), new(30)], free_blocks=200, total_blocks=200)
    assert admitted(plan(form, at), 0) == [0, 1]
