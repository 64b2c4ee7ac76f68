"""SA: the order that meets most targets, new on arrivals and ends alone, in batches only when asked to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.rows import LENGTH_QUANTILES, Rows, State
from sloserve.estimator.length.at_admission import LEVELS
from sloserve.estimator.length.choice import reads_quantiles
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.papers.sa_batches import SABatches
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.registry import make_policy, policy_names
from sloserve.scheduler.sa.policy import MOST_ANNEALED, SA, cooling_for
from sloserve.scheduler.sa.times import RemainingWork, Slots, batch_times, bilinear_of, slot_times

Make = Callable[..., Snapshot]
ORACLE = SA.Settings(length="oracle", profile="v100x2-qwen2.5-7b")


def policy(settings: SA.Settings = ORACLE, seed: int = 0, cls: type[SA] = SA) -> SA:
    """One to which something has happened, so that it plans."""
    made = cls(settings, seed=seed)
    made.arrived(Rows(SA.needs), 0, 0.0)
    return made


def plan(at: Snapshot, sa: SA, now_s: float = 0.0) -> Plan:
    made = sa.plan(at, now_s)
    check_plan(made, at)
    return made


def order(made: Plan) -> list[int]:
    assert made.waiting is not None
    return made.waiting.tolist()


def job(tokens: int, **more: Any) -> dict[str, Any]:
    """A waiting request that arrived at 0 and takes about 16 ms a token on the V100 profile."""
    return {"arrival_s": 0.0, "prompt_tokens": 10, "max_tokens": 5000, "oracle_output_tokens": tokens} | more


def test_a_nearer_deadline_first_where_both_can_be_met(snapshot: Make) -> None:
    waiting = [job(200, e2e_s=30.0), job(300, e2e_s=5.5)]  # 3.3 s and 4.9 s
    assert order(plan(snapshot(waiting, max_num_seqs=1), policy())) == [1, 0]


def test_the_shortest_first_where_all_are_met(snapshot: Make) -> None:
    waiting = [job(300, e2e_s=60.0), job(100), job(200, ttft_s=60.0)]
    assert order(plan(snapshot(waiting, max_num_seqs=1), policy())) == [1, 2, 0]


def test_whom_nothing_can_help_goes_behind(snapshot: Make) -> None:
    waiting = [job(100, e2e_s=0.1), job(200, e2e_s=4.0), job(100, ttft_s=10.0, tpot_s=0.001)]
    assert order(plan(snapshot(waiting, max_num_seqs=1), policy()))[0] == 1


def test_a_readers_speed_counts_as_a_target_per_token(snapshot: Make) -> None:
    waiting = [job(100, tds=1000.0), job(200, e2e_s=4.0), job(100, tds=10.0)]
    assert order(plan(snapshot(waiting, max_num_seqs=1), policy())) == [1, 2, 0]


def test_time_already_waited_counts(snapshot: Make) -> None:
    waiting = [job(200, e2e_s=8.0), job(200, e2e_s=8.0, arrival_s=-3.0)]
    assert order(plan(snapshot(waiting, max_num_seqs=1), policy())) == [1, 0]


def test_keeps_its_order_until_something_happens(snapshot: Make) -> None:
    at = snapshot([job(300), job(100), job(200)], max_num_seqs=1)
    sa = policy()
    assert order(plan(at, sa)) == [1, 2, 0]
    at.rows.oracle_output_tokens[1] = 5000
    assert order(plan(at, sa)) == [1, 2, 0]
    at.rows.state[1] = State.RUNNING
    assert order(plan(Snapshot(at.rows, at.waiting[[0, 2]], at.running, at.engine), sa)) == [2, 0]
    at.rows.state[1] = State.PREEMPTED
    sa.finished(at.rows, 1, 0.0)
    assert order(plan(at, sa)) == [2, 0, 1]


def test_nobody_waits(snapshot: Make) -> None:
    assert plan(snapshot(running=[{}]), policy()) is Plan.IDENTITY


def test_the_same_events_and_seed_give_the_same_plan(snapshot: Make) -> None:
    rng = np.random.default_rng(0)
    waiting = [
        job(int(n), e2e_s=float(t)) for n, t in zip(rng.integers(10, 400, 60), rng.uniform(2, 90, 60), strict=True)
    ]
    at = snapshot(waiting, max_num_seqs=4)
    first, second = policy(ORACLE, cls=SABatches), policy(ORACLE, cls=SABatches)
    assert order(plan(at, first)) == order(plan(at, second))
    assert plan(at, first).max_running == plan(at, second).max_running


def test_predicts_lengths_per_class_from_what_ended(snapshot: Make) -> None:
    at = snapshot([job(0, class_id=0, oracle_output_tokens=-1), job(0, class_id=1, oracle_output_tokens=-1)])
    sa = policy(SA.Settings())
    for class_id, tokens in ((0, 900), (1, 20)):
        ended = at.rows.add(class_id=class_id, output_tokens=tokens)
        for _ in range(50):
            sa.finished(at.rows, ended, 0.0)
    assert order(plan(at, sa)) == [1, 0]


def test_a_length_model_counts_unless_another_source_is_named(snapshot: Make) -> None:
    """The model says that the first is short; the class alone, that both are as long."""
    short = dict(zip(LENGTH_QUANTILES, (10.0 * LEVELS).tolist(), strict=True))
    at = snapshot([job(0, oracle_output_tokens=-1), job(0, oracle_output_tokens=-1) | short])
    ended = at.rows.add(class_id=0, output_tokens=900)

    def planned(settings: SA.Settings) -> list[int]:
        sa = policy(settings)
        for _ in range(50):
            sa.finished(at.rows, ended, 0.0)
        return order(plan(at, sa))

    assert planned(SA.Settings()) == [1, 0] == planned(SA.Settings(length="predicted"))
    assert planned(SA.Settings(length="gaussian")) == [0, 1]


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_that_predicts_reads_a_length_model_by_default(name: str) -> None:
    length = getattr(make_policy(name).settings, "length", None)
    assert length is None or reads_quantiles(length)


def test_batches_limit_how_many_run(snapshot: Make) -> None:
    """Two in a batch take longer than a token may; one alone does not."""
    waiting = [job(200, ttft_s=60.0, tpot_s=0.0163), job(200, ttft_s=60.0, tpot_s=0.0163)]
    at = snapshot(waiting, max_num_seqs=4)
    assert plan(at, policy(ORACLE, cls=SABatches)).max_running == 1
    assert plan(at, policy(ORACLE)).max_running is None


def test_batches_count_those_that_run(snapshot: Make) -> None:
    runs = {
        "arrival_s": 0.0,
        "oracle_output_tokens": 300,
        "output_tokens": 10,
        "computed_tokens": 25,
        "first_token_s": 0.1,
    }
    at = snapshot([job(100), job(100)], [runs, runs], max_num_seqs=3)
    made = plan(at, policy(ORACLE, cls=SABatches), 1.0)
    assert made.max_running == 3 and order(made) == [2, 3]


def test_a_batch_is_no_larger_than_the_kv_cache_holds(snapshot: Make) -> None:
    at = snapshot([job(150) for _ in range(8)], max_num_seqs=8, total_blocks=30)
    assert plan(at, policy(ORACLE, cls=SABatches)).max_running == 3


def test_more_than_are_annealed(snapshot: Make) -> None:
    n = MOST_ANNEALED + 40
    at = snapshot([job(10 + i % 90, e2e_s=20.0) for i in range(n)], max_num_seqs=n)
    for cls in (SA, SABatches):
        found = order(plan(at, policy(cls=cls)))
        assert len(set(found)) == MOST_ANNEALED
        left_out = set(range(n)) - set(found)
        assert {10 + i % 90 for i in left_out} <= set(range(90, 100))


def test_effort_is_a_number_of_moves_that_falls_with_what_a_move_costs() -> None:
    few, many = cooling_for(10, 1, 1.0), cooling_for(500, 64, 1.0)
    assert few.moves > 3 * many.moves > 0
    assert cooling_for(10, 1, 0.0).moves == 0 and cooling_for(10, 1, 10.0).moves == pytest.approx(10 * few.moves, abs=5)


@pytest.mark.parametrize("name", ["v100x2-qwen2.5-7b", "h100-llama3-8b", "a100-opt-13b"])
def test_a_profile_of_any_form_becomes_bilinear(name: str) -> None:
    profile = load_profile(name)
    fit = bilinear_of(profile)
    for load in (StepLoad.of([(512, 0)] * 2), StepLoad.of((), [700] * 8), StepLoad.of((), [1500] * 64)):
        if profile.within_grid(load):
            assert fit.step_s(load) == pytest.approx(profile.step_s(load), rel=0.3)


def test_step_times_are_the_engines_unless_a_profile_is_named(snapshot: Make) -> None:
    """On a V100 the long job cannot be in time and goes last; an H100 has it done."""
    at = snapshot([job(200), job(500, e2e_s=4.5)], max_num_seqs=1)
    for engine, first in (("v100x2-qwen2.5-7b", [0, 1]), ("h100-llama3-8b", [1, 0])):
        seen = replace(at, engine=replace(at.engine, step_latency=load_profile(engine)))
        assert order(plan(seen, policy(SA.Settings(length="oracle")))) == first
        assert order(plan(seen, policy())) == [0, 1]


def test_times_are_those_of_the_papers_equations() -> None:
    fit = bilinear_of(load_profile("v100x2-qwen2.5-7b"))
    times = batch_times(fit, RemainingWork(np.array([100, 0]), np.array([100, 130]), np.array([3.0, 2.0])))
    for b in (1, 4):
        prefill = fit.step_s(StepLoad.of([(100, 0)] * b))
        decode = [
            sum(fit.step_s(StepLoad.of((), [c + k] * b)) for k in range(1, n + 1)) for c, n in ((100, 3), (130, 2))
        ]
        assert times.prefill_base_s + times.prefill_slope_s * b == pytest.approx([prefill, 0.0])
        assert times.decode_base_s + times.decode_slope_s * b == pytest.approx(decode)


def test_in_slots_a_token_takes_at_most_a_full_step_and_free_slots_shorten_the_queue() -> None:
    fit = bilinear_of(load_profile("h100-llama3-8b"))
    work = RemainingWork(np.full(50, 1000), np.full(50, 1000), np.full(50, 100.0))
    small, large = (slot_times(fit, work, Slots(50, budget, bind=True)) for budget in (256, 2048))
    assert (small.decode_base_s < large.decode_base_s).all()
    free = slot_times(fit, work, Slots(50, 2048, bind=False))
    delay_s = [(t.share * (t.prefill_base_s + t.decode_base_s))[0] for t in (free, large)]
    assert 0.0 < delay_s[0] and delay_s[1] == pytest.approx(delay_s[0], rel=1.0)


@pytest.mark.parametrize("settings", [{"length": "guess"}, {"effort": -1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SA.Settings(**settings)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown profile 'v1000'"):
        SA(SA.Settings(profile="v1000"))
