"""The compiled gain and cost against a plain reading of their rules, request by request."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.kernels.survival import survival
from sloserve.kernels.worth import worth

AHEAD = np.array([0.0, 4.0, 10.0, 30.0, 100.0, 400.0, 2000.0])
STEP_S, FULL_S, PROMPT_TOKEN_S, TOKEN_S, KV_TOKENS, SEATS, SHARE, TTFT_S, TDS, *_ = FACTS = (
    *(0.02, 0.1, 5e-5, 1e-4),
    *(50_000.0, 64.0, 0.2, 1.0, 4.8),
    *(0.5, 0.1, 600.0, 2.0),
)
NODES, WEIGHTS = np.polynomial.laguerre.laggauss(3)
NAN = math.nan


def row(draw: st.DrawFn) -> list[float]:
    def maybe(low: float, high: float) -> float:
        return draw(st.one_of(st.just(NAN), st.floats(low, high)))

    done = draw(st.integers(0, 300))
    age = draw(st.floats(0.0, 100.0))
    since_first = draw(st.floats(0.0, age)) if done else NAN
    left = draw(st.floats(1.0, 500.0))
    prefill = draw(st.integers(0, 4000))
    values = [age, maybe(0.1, 60.0), maybe(0.01, 0.5), maybe(0.5, 200.0), done, since_first, left]
    return [*values, left + draw(st.integers(0, 2000)), prefill, prefill + done + 1.0, draw(st.floats(0.0, 1.0)), 0.5]


@st.composite
def queues(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    rows = [row(draw) for _ in range(draw(st.integers(1, 6)))]
    ratios = [draw(st.lists(st.floats(0.2, 1.0), min_size=6, max_size=6)) for _ in rows]
    return (
        np.array(rows).T.copy(),
        np.cumprod(np.hstack((np.ones((len(rows), 1)), ratios)), axis=1),
        draw(st.integers(0, len(rows))),
    )


def ends_within(tokens: float, most: float, runs: np.ndarray) -> float:
    if not tokens >= 1.0:
        return 0.0
    return 1.0 if tokens >= most else 1.0 - float(np.interp(tokens, AHEAD, runs))


def known(of: np.ndarray, runs: np.ndarray, delay_s: float) -> tuple[float, float, float]:
    """Good, experience and stretch of a request that is served after ``delay_s``; pace and first token left aside."""
    age, ttft, pace, e2e, done, since_first, left, most, prefill, *_ = of
    begun, reads = not math.isnan(since_first), not (math.isnan(ttft) and math.isnan(pace))
    prefill_s, gen_s = prefill * PROMPT_TOKEN_S, left * STEP_S
    ttft_s, reading_s = TTFT_S if math.isnan(ttft) else ttft, 1.0 / TDS if math.isnan(pace) else pace
    in_time = 1.0 if math.isnan(e2e) else ends_within((e2e - age - prefill_s - delay_s) / STEP_S, most, runs)
    dry_s = (reading_s * done - since_first if begun else ttft_s - age) - prefill_s
    span = max(gen_s, STEP_S)
    experience = (span / (span + max(delay_s - dry_s, 0.0))) ** 2 if reads else 0.0
    streamed = ttft_s + (0.0 if math.isnan(pace) else pace * (done + left)) if reads else 600.0
    target = streamed if math.isnan(e2e) else e2e
    return in_time, experience, target / (target + age + prefill_s + gen_s + delay_s)


@given(queues())
def test_gain_and_cost_are_those_of_the_rules(queue: tuple[np.ndarray, np.ndarray, int]) -> None:
    requests, runs, queued = queue
    n = requests.shape[1]
    gain, cost, wait_s = worth(requests, queued, runs, AHEAD, np.array(FACTS))
    age, ttft, pace, e2e, done, since_first, left, _, prefill, context, again_s, weight = requests
    seconds = left * STEP_S
    taken = np.array(
        [prefill * PROMPT_TOKEN_S + left * TOKEN_S, (context + left / 2) * seconds / KV_TOKENS, seconds / SEATS]
    )
    price = (taken.sum(axis=1) / taken.sum(axis=1).max()) ** 2
    assert cost == pytest.approx(price @ taken)
    good = np.zeros(n)
    slack = np.full(n, np.inf)
    for i in range(n):
        begun = not math.isnan(since_first[i])
        if begun:
            found = pace[i] * (done[i] + left[i]) - since_first[i] - prefill[i] * PROMPT_TOKEN_S - seconds[i]
        else:
            found = ttft[i] - age[i] - prefill[i] * PROMPT_TOKEN_S
        slack[i] = np.inf if math.isnan(found) else found
        if begun and age[i] - since_first[i] > ttft[i]:
            slack[i] = -np.inf
        if not np.isnan(requests[1:4, i]).all() and slack[i] >= -FULL_S:
            good[i] = known(requests[:, i], runs[i], 0.0)[0]
    free = np.isnan(requests[1:4]).all(axis=0)
    assert wait_s == pytest.approx(max(SHARE * float((cost * np.where(free, 1.0, good))[:queued].sum()), FULL_S))
    for i in range(n):
        now = known(requests[:, i], runs[i], 0.0)
        then = WEIGHTS @ [known(requests[:, i], runs[i], again_s[i] + wait_s * node) for node in NODES]
        in_time = min(then[0] / good[i], 1.0) if good[i] > 0.0 and not math.isnan(e2e[i]) else 1.0
        kept = 1.0 - math.exp(-max(slack[i] - again_s[i], 0.0) / wait_s)
        expected = good[i] * (1.0 - in_time * kept) + 0.5 * (now[1] - then[1]) + 0.1 * (now[2] - then[2])
        assert gain[i] == pytest.approx(weight[i] * expected, abs=1e-9)


def test_no_price_jumps_when_another_machine_is_short() -> None:
    requests = np.array([[1.0, NAN, NAN, NAN, 0, NAN, 500, 500, 0, tokens, 0, 1] for tokens in (4000, 10)]).T.copy()
    runs = np.ones((2, AHEAD.size))

    def cost(kv_tokens: float) -> np.ndarray:
        return worth(requests, 2, runs, AHEAD, np.array([*FACTS[:4], kv_tokens, *FACTS[5:]]))[1]

    assert cost(1e8)[0] == pytest.approx(cost(1e8)[1], rel=0.01)
    assert cost(5e3)[0] > 5 * cost(5e3)[1]
    at = [cost(tokens)[0] for tokens in range(30_000, 60_000, 100)]
    assert max(abs(b / a - 1.0) for a, b in zip(at, at[1:], strict=False)) < 0.02


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90), st.integers(0, 200)), max_size=6))
def test_survival_is_looked_up(requests: list[tuple[int, int, int]]) -> None:
    longer = np.cumprod(np.full((2, 12), [[0.9], [0.5]]), axis=1)
    ahead = np.array([0, 3, 8, 17, 64])
    class_id, done, most = (np.array([one[k] for one in requests], np.int64) for k in range(3))
    found = survival(longer, 8, class_id, done, most, ahead)
    for i, (of, so_far, limit) in enumerate(requests):
        for k, further in enumerate(ahead.tolist()):
            place, reached = (min(tokens // 8, 11) for tokens in (so_far + further, so_far))
            assert found[i, k] == (0.0 if further >= limit - so_far else longer[of, place] / longer[of, reached])


def test_what_does_not_fit_together_is_refused() -> None:
    one, runs, facts = np.zeros((12, 1)), np.ones((1, AHEAD.size)), np.array(FACTS)
    for wrong in ((one, 2, runs, AHEAD, facts), (one[:5], 1, runs, AHEAD, facts), (one, 1, runs, AHEAD, facts[:3])):
        with pytest.raises(ValueError):
            worth(*wrong)
    column = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="class_id"):
        survival(np.ones((1, 3)), 8, column + 1, column, column, column)
