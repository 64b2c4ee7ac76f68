"""The compiled annealer and exhaustive search: against the paper's equations in plain form, and each other."""

import numpy as np
import pytest

from sloserve.core.kernels.anneal import BatchPlan, BatchRequests, BatchTimes, Cooling, anneal, exhaustive

THOROUGH = Cooling(moves=88)
"""Ten times the default: 0.3 ms, what the paper's own search takes."""


def paper_requests(rng: np.random.Generator, n: int, tightness: float = 1.0) -> BatchRequests:
    """Half chats with TTFT 10 s and TPOT 50 ms, half code with e2e 30 s, on the paper's two V100 (Table 2)."""
    prompt = np.clip(rng.lognormal(5.0, 1.0, n), 8, 2000).astype(int)
    output = np.clip(rng.lognormal(5.5, 0.8, n), 8, 2000).astype(int)
    context = prompt * output + output * (output + 1) / 2
    chat = rng.random(n) < 0.5
    return BatchRequests.of(
        BatchTimes(
            prefill_base_s=0.01e-3 * prompt + 43.67e-3,
            prefill_slope_s=0.1e-3 * prompt + 5.7e-3,
            decode_base_s=15.85e-3 * output + 0.00088e-3 * context,
            decode_slope_s=0.275e-3 * output + 0.0002e-3 * context,
        ),
        ttft_s=np.where(chat, 10.0 * tightness, np.nan),
        decode_limit_s=np.where(chat, 0.05 * output, np.nan),
        e2e_s=np.where(chat, np.nan, 30.0 * tightness),
    )


def reference(requests: BatchRequests, plan: BatchPlan) -> tuple[int, float]:
    """Requests met and summed latency, by Eq. 2 to 12 and 16 to 19."""
    prefill0, prefill1, decode0, decode1, share, waited, ttft, decode_limit, e2e = requests.columns
    met, latency_s, wait_s, at = 0, 0.0, 0.0, 0
    for size in plan.sizes.tolist():
        batch = plan.order[at : at + size]
        at += size
        prefill = prefill0[batch] + prefill1[batch] * size
        decode = decode0[batch] + decode1[batch] * size
        since = waited[batch] + wait_s
        missed = (
            (since + prefill > ttft[batch]) | (decode > decode_limit[batch]) | (since + prefill + decode > e2e[batch])
        )
        met += int((~missed).sum())
        latency_s += float((since + prefill + decode).sum())
        wait_s += float(((prefill + decode) * share[batch]).max())
    return met, latency_s


def assert_sound(requests: BatchRequests, plan: BatchPlan, max_batch: int) -> None:
    """A permutation in batches within the limit, whose score, followed move by move, is that of the plan itself."""
    assert sorted(plan.order.tolist()) == list(range(len(requests)))
    assert plan.sizes.sum() == len(requests) and plan.sizes.min() >= 1 and plan.sizes.max() <= max_batch
    met, latency_s = reference(requests, plan)
    assert plan.met == met and plan.latency_s == pytest.approx(latency_s, rel=1e-9)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 40, 150])
def test_the_score_of_a_long_walk_is_that_of_its_plan(n: int, max_batch: int) -> None:
    requests = paper_requests(np.random.default_rng(n), n, 1.0 if n < 50 else 5.0)
    requests.columns[4] = np.random.default_rng(1).uniform(0.1, 1.0, n)
    requests.columns[5] = np.random.default_rng(2).uniform(0.0, 5.0, n)
    for fixed in {0, min(n, max_batch) // 2}:
        plan = anneal(requests, max_batch, fixed=fixed, cooling=Cooling(moves=30), seed=3)
        assert_sound(requests, plan, max_batch)
        assert set(range(fixed)) <= set(plan.order[: plan.sizes[0]].tolist())


@pytest.mark.slow
def test_as_good_as_the_best_of_all_plans() -> None:
    """60 random instances of 4 to 8 requests, batches of 1, 2 and 4, targets as in the paper or tighter."""
    thorough, quick = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, max_batch = int(rng.integers(4, 9)), int(rng.choice([1, 2, 4]))
        requests = paper_requests(rng, n, float(rng.choice([0.3, 0.6, 1.0])))
        best = exhaustive(requests, max_batch)
        assert_sound(requests, best, max_batch)
        for cooling, ratios in ((THOROUGH, thorough), (Cooling(), quick)):
            found = anneal(requests, max_batch, cooling=cooling)
            assert found.goodput <= best.goodput * (1 + 1e-9)
            ratios.append(found.goodput / best.goodput if best.met else 1.0)
    assert np.mean(thorough) > 0.999 and np.mean(np.array(thorough) >= 0.99) >= 0.99
    assert np.mean(quick) > 0.99 and np.mean(np.array(quick) >= 0.99) >= 0.93


@pytest.mark.slow
def test_exhaustive_is_not_beaten_by_chance() -> None:
    rng = np.random.default_rng(4)
    requests = paper_requests(rng, 6, 0.4)
    best = exhaustive(requests, 3, fixed=1)
    assert 0 in best.order[: best.sizes[0]]
    for _ in range(500):
        sizes = rng.multinomial(3, [0.5, 0.5]) + 1
        others = rng.permutation(np.arange(1, 6))
        plan = BatchPlan(np.concatenate([[0], others]), np.array([sizes[0], 6 - sizes.sum(), sizes[1]]), 0, 0.0)
        if plan.sizes.min() >= 1 and plan.sizes.max() <= 3:
            met, latency_s = reference(requests, plan)
            assert met / latency_s <= best.goodput * (1 + 1e-12)


def test_the_papers_examples_of_order_and_of_batch_size() -> None:
    """Fig. 3: a later job with a nearer deadline goes first. Fig. 4: one is delayed so that all are in time."""
    order = BatchRequests.of(
        BatchTimes(np.array([0.3, 0.5, 0.8])),
        e2e_s=[0.8, 0.5, 1.8],
    )
    assert anneal(order, 1).order.tolist() == [1, 0, 2] and anneal(order, 1).met == 3
    size = BatchRequests.of(
        BatchTimes(np.array([0.2, 0.2, 0.2]), 0.2),
        e2e_s=[0.61, 0.61, 1.8],
    )
    plan = anneal(size, 3)
    assert plan.met == 3 and plan.sizes.tolist() == [2, 1] and set(plan.order[:2].tolist()) == {0, 1}


def test_a_hopeless_request_is_put_behind_those_it_would_spoil() -> None:
    """Fig. 5."""
    requests = BatchRequests.of(
        BatchTimes(np.array([0.9, 0.5, 0.4])),
        waited_s=[1.0, 0.0, 0.0],
        e2e_s=[1.5, 1.0, 1.0],
    )
    plan = anneal(requests, 1)
    assert plan.met == 2 and plan.order[-1] == 0


def test_the_same_seed_gives_the_same_plan_and_another_may_not() -> None:
    requests = paper_requests(np.random.default_rng(0), 40)
    plans = [anneal(requests, 4, cooling=THOROUGH, seed=seed) for seed in (5, 5, 6)]
    assert plans[0].order.tolist() == plans[1].order.tolist() and plans[0].sizes.tolist() == plans[1].sizes.tolist()
    assert plans[0].order.tolist() != plans[2].order.tolist()


def test_decisions_do_not_depend_on_the_platform() -> None:
    """Random numbers and arithmetic are the kernel's own: the plan of a fixed instance is a constant."""
    i = np.arange(12.0)
    requests = BatchRequests.of(
        BatchTimes(np.full(12, 0.25), 0.125, 1.0 + (i * 7) % 12, 0.0625 * ((i * 5) % 12)),
        e2e_s=4.0 + 2.0 * ((i * 11) % 12),
    )
    plan = anneal(requests, 3, cooling=Cooling(moves=11), seed=7)
    assert plan.order.tolist() == [9, 7, 0, 6, 4, 2, 8, 1, 11, 5, 3, 10]
    assert (plan.sizes.tolist(), plan.met, plan.latency_s) == ([3, 3, 3, 3], 7, 238.3125)


def test_none_and_one() -> None:
    none = BatchRequests.of(BatchTimes(np.empty(0)))
    for plan in (anneal(none, 4), exhaustive(none, 4)):
        assert (plan.order.size, plan.sizes.size, plan.met, plan.goodput) == (0, 0, 0, 0.0)
    one = paper_requests(np.random.default_rng(0), 1)
    assert anneal(one, 4).order.tolist() == [0]
    assert anneal(one, 4, fixed=1).sizes.tolist() == [1]


def test_without_targets_the_shortest_goes_first() -> None:
    requests = BatchRequests.of(BatchTimes(np.array([3.0, 1.0, 2.0])))
    plan = anneal(requests, 1)
    assert (plan.order.tolist(), plan.met, plan.latency_s) == ([1, 2, 0], 3, 10.0)


@pytest.mark.parametrize(
    ("max_batch", "fixed", "cooling", "message"),
    [
        (0, 0, Cooling(), "max_batch: 0; the least is 1"),
        (2, 3, Cooling(), "fixed: 3 is not within 0..2"),
        (8, 5, Cooling(), "fixed: 5 is not within 0..4"),
        (2, -1, Cooling(), "fixed: -1 is not within"),
        (2, 0, Cooling(tau=1.0), "cooling: the final temperature is above 0, tau between 0 and 1"),
        (2, 0, Cooling(final=0.0), "cooling"),
        (2, 0, Cooling(moves=-1), "cooling"),
    ],
)
def test_refuses_limits_that_contradict_each_other(max_batch: int, fixed: int, cooling: Cooling, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anneal(paper_requests(np.random.default_rng(0), 4), max_batch, fixed=fixed, cooling=cooling)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e13])
def test_refuses_impossible_times(value: float) -> None:
    requests = paper_requests(np.random.default_rng(0), 4)
    requests.columns[2, 1] = value
    with pytest.raises(ValueError, match="column 2 of request 1: .* is not within 0 to 1000000000000"):
        anneal(requests, 2)


def test_refuses_other_matrices_and_too_many_to_try() -> None:
    with pytest.raises(ValueError, match="requests: 8 columns; there must be 9"):
        anneal(BatchRequests(np.zeros((8, 3))), 2)
    with pytest.raises(ValueError, match="13 are too many to try every order; the most is 12"):
        exhaustive(paper_requests(np.random.default_rng(0), 13), 2)
