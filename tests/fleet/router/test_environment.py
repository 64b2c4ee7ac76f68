"""The simulator that routers learn in: its times by hand, every request ends once, and masks with the error counted."""

import numpy as np
import pytest

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.fleet.router.arrivals import Changing, Phases, Stable
from sloserve.fleet.router.environment import Environment, Speed, System
from sloserve.fleet.router.evaluation import at_rates, unpredictable, windows
from sloserve.fleet.router.greedy import greedy
from sloserve.fleet.router.masks import SURE, feasible
from sloserve.fleet.router.replay import ReplayMemory
from sloserve.fleet.router.routing import always, masked_greedy


def a_system(**changes: object) -> System:
    """The notes' constants: the large model breaks at about 2 requests/s."""
    fields: dict[str, object] = {
        "models": ("small", "middle", "large"),
        "speeds": (Speed(0.005, 0.00035), Speed(0.010, 0.001), Speed(0.025, 0.005)),
        "tasks": ("hard", "easy"),
        "quality": np.array([[0.45, 0.78, 1.0], [0.82, 0.96, 1.0]]),
        "weights": np.ones(2),
        "prompt_tokens": np.zeros(2),
        "token_s": np.full(2, 0.040),
        "error": 0.0,
    }
    return System(**(fields | changes))  # type: ignore[arg-type]


class At:
    """Arrivals of one system at these times."""

    def __init__(self, *times_s: float) -> None:
        self._times_s = [*times_s, np.inf]
        self.rate_per_s, self.entered = np.ones(1), np.zeros(1, np.bool_)

    def gaps_s(self, systems: IntArray, now_s: FloatArray) -> FloatArray:
        return np.array([self._times_s.pop(0) - now_s[0]])


def latencies(system: System, model: int, *times_s: float) -> list[float]:
    world = Environment(system, At(*times_s), 1, np.random.default_rng(0))
    served = 0
    while not world.over:
        at = world.next_arrivals()
        if at.size:
            world.serve(at, np.full(1, model), np.full(1, served))
            served += 1
    tickets, _, ended_s = world.finished.take()
    return [float(ended_s[tickets == i][0] - time) for i, time in enumerate(times_s)]


def test_requests_share_a_replica_token_by_token() -> None:
    one_device = a_system(devices=1, interference=0.0)
    assert latencies(one_device, 1, 0.0) == pytest.approx([128 * 0.011])
    # Alone for 64 tokens, two for 64 each, then the second alone again.
    half_s = 64 * 0.011
    assert latencies(one_device, 1, 0.0, half_s) == pytest.approx([half_s + 64 * 0.012] * 2)


def test_beyond_max_num_seqs_a_request_waits_and_a_prompt_holds_up_all() -> None:
    narrow = a_system(devices=1, speeds=(Speed(0.005, 0.0, max_num_seqs=1),) * 3)
    assert latencies(narrow, 0, 0.0, 0.0) == pytest.approx([128 * 0.005, 256 * 0.005])
    prompts = a_system(devices=1, speeds=(Speed(0.005, 0.0, 0.001),) * 3, prompt_tokens=np.full(2, 100.0))
    assert latencies(prompts, 0, 0.0, 0.0) == pytest.approx([128 * 0.005 + 0.2] * 2)


@pytest.mark.slow
def test_every_request_ends_once_and_equal_seeds_give_equal_runs() -> None:
    system = a_system(error=0.05)
    runs = [
        unpredictable(system, masked_greedy(system), Phases(), replicas=4, until_s=3.0, seed=seed) for seed in (3, 3, 4)
    ]
    assert np.isfinite(runs[0].latency_s).all() and (runs[0].latency_s > 0.6).all()
    np.testing.assert_array_equal(runs[0].latency_s, runs[1].latency_s)
    assert runs[0].latency_s.size != runs[2].latency_s.size
    assert windows(runs[0]).size > 20


@pytest.mark.slow
def test_one_model_alone_breaks_where_its_replicas_are_full_and_greedy_does_not() -> None:
    system = a_system(error=0.05)
    rates = (0.5, 8.0)
    small, middle, large, mixed = (
        [float(of.reward.mean()) for of in at_rates(system, rule, rates, replicas=1, seed=0, limits=2.0)]
        for rule in (always(0), always(1), always(2), masked_greedy(system))
    )
    assert large[0] > 0.95 and large[1] < 0.2  # not in time
    assert middle[1] == pytest.approx(0.87, abs=0.02)
    assert all(m > max(s) - 0.03 for m, *s in zip(mixed, small, middle, large, strict=True))


def test_the_network_takes_its_part_of_the_time() -> None:
    rule = always(2)
    near, far = (
        at_rates(a_system(network_s=between), rule, (0.25,), replicas=4, seed=0)[0].reward.mean()
        for between in ((0.01, 0.02), (2.0, 2.1))
    )
    assert near > 0.99 and far < 0.05


def test_rates_change_by_count_and_by_time() -> None:
    arrivals = Changing(Phases((1.0, 100.0), (5, 6), 2.0, timed=0.5), 2, np.random.default_rng(0))
    now_s, entered = np.zeros(2), np.zeros((200, 2), np.bool_)
    for i in range(200):
        now_s += arrivals.gaps_s(np.arange(2), now_s)
        entered[i] = arrivals.entered
    assert set(np.diff(np.flatnonzero(entered[:, 1]))) == {6} and (1.0 <= arrivals.rate_per_s).all()
    assert 1.5 < now_s[0] / entered[:, 0].sum() < 4.5  # some phases pass without an arrival
    stable = Stable(np.array([5.0]), 10.0, np.random.default_rng(0))
    assert stable.gaps_s(np.array([0]), np.array([10.0]))[0] == np.inf


def test_feasible_counts_the_error_and_leaves_each_request_a_model() -> None:
    predicted_s = np.array([[1.0, 2.0, 4.0], [5.0, 6.0, 7.0], [np.inf, np.inf, np.inf]])
    limit_s = np.array([4.0, 4.0, 4.0])
    assert feasible(predicted_s, limit_s, 0.0).tolist() == [[True, True, True], [True, False, False], [False] * 3]
    assert feasible(predicted_s, limit_s, 1.0 / SURE).tolist()[0] == [True, True, False]


def test_greedy_takes_the_best_allowed_and_of_equals_the_soonest() -> None:
    quality = np.array([[0.5, 0.9, 1.0], [0.9, 0.9, 0.2]])
    predicted_s = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 0.5]])
    allowed = np.array([[True, True, False], [True, True, True]])
    assert greedy(quality, predicted_s, allowed).tolist() == [1, 1]


def test_only_transitions_whose_reward_has_come_are_learnt_from() -> None:
    replay, rng = ReplayMemory(1, 40, 1, 1), np.random.default_rng(0)
    tickets = []
    for i in range(60):
        state, every = np.full((1, 1), i, np.float32), np.ones((1, 1), np.bool_)
        tickets += replay.add(np.zeros(1, np.int64), state, np.zeros(1, np.int64), every, np.array([float(i)])).tolist()
    assert replay.sample(4, rng) is None
    replay.fill(np.array(tickets[:50]), np.arange(50.0))  # the first twenty are forgotten already
    found = replay.sample(4, rng)
    assert found is not None
    np.testing.assert_array_equal(found.states[:, 0], found.rewards)
    np.testing.assert_array_equal(found.next_states[:, 0], found.rewards + 1)
    assert (found.rewards >= 20).all() and (found.rewards < 50).all() and (found.gap_s == 1.0).all()
