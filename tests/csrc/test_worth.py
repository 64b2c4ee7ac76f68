"""The compiled gain and cost against a plain reading of their rules, request by request."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels import WorthColumns, WorthEngine, worth
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.survival import Chances, chances, mean_left
from sloserve.estimator.length.remaining import KnownRequests
from tests.csrc.facts import COUNTED, ENGINE, STATED

AHEAD = np.array([0, 4, 10, 30, 100, 400, 2000])
STEP_S, FULL_S, PROMPT_TOKEN_S, TOKEN_S = (ENGINE[f"{of}_s"] for of in ("step", "full", "prompt_token", "token"))
STEP_WAIT_S = ENGINE["step_wait_s"]
KV_TOKENS, SEATS = ENGINE["kv_blocks"], ENGINE["seats"]
SHARE, LATE_SHARE, LATE_AT = ENGINE["wait_share"], ENGINE["late_wait_share"], ENGINE["late_at"]
TTFT_S, TDS = ENGINE["reader_ttft_s"], ENGINE["reader_tds"]
NODES, WEIGHTS = np.polynomial.laguerre.laggauss(3)
NAN = math.nan


TOKENS = KVLayout.full(1)
"""Blocks of one token each."""


def row(draw: st.DrawFn) -> list[float]:
    def maybe(low: float, high: float) -> float:
        return draw(st.one_of(st.just(NAN), st.floats(low, high)))

    done = draw(st.integers(0, 300))
    age = draw(st.floats(0.0, 100.0))
    since_first = draw(st.floats(0.0, age)) if done else NAN
    left = draw(st.floats(1.0, 500.0))
    prefill = draw(st.integers(0, 4000))
    values = [age, maybe(0.1, 60.0), maybe(0.01, 0.5), maybe(0.5, 200.0), done, since_first, left]
    most = math.ceil(left) + draw(st.integers(0, 2000))
    return [*values, most, prefill, prefill + done + 1.0, draw(st.floats(0.0, 1.0)), 0.5]


@st.composite
def queues(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    rows = [row(draw) for _ in range(draw(st.integers(1, 6)))]
    ratios = [draw(st.lists(st.floats(0.2, 1.0), min_size=6, max_size=6)) for _ in rows]
    return (
        np.array(rows).T.copy(),
        np.cumprod(np.hstack((np.ones((len(rows), 1)), ratios)), axis=1),
        draw(st.integers(0, len(rows))),
    )


def counts(values: object) -> np.ndarray:
    return np.array(values, np.float64).astype(np.int64)


def as_known(runs: np.ndarray, output_tokens: np.ndarray, max_tokens: np.ndarray) -> Chances:
    """These chances, whatever the class would say."""
    slots = np.arange(len(runs))
    columns = KnownRequests(class_id=np.zeros_like(slots), output_tokens=output_tokens, max_tokens=max_tokens)
    return chances(np.ones((1, 1)), 8, columns, slots, AHEAD, (runs, slots))


def found_worth(
    requests: np.ndarray, queued: int, runs: np.ndarray, facts: dict[str, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The kernel, of requests as the rows of :func:`row` have them; at 0 s, and of one class."""
    age, ttft, pace, e2e, done, since_first, left, most, prefill, context, again_s, _ = requests
    output = counts(done)
    columns = {
        "arrival_s": 0.0 - age,
        "ttft_s": ttft.copy(),
        "tpot_s": pace.copy(),
        "tds": np.full_like(age, NAN),
        "e2e_s": e2e.copy(),
        "first_token_s": 0.0 - since_first,
        "class_rank": np.zeros_like(output),
        "prompt_tokens": counts(context) - output,
        "output_tokens": output,
        "max_tokens": output + counts(most),
    }
    return worth(
        as_known(runs, output, columns["max_tokens"]),
        TOKENS,
        WorthEngine(**facts),
        WorthColumns(**columns),
        queued=queued,
        left=left.copy(),
        per_step=np.ones_like(left),
        prefill=counts(prefill),
        again_s=again_s[queued:].copy(),
        weights=np.array([0.5]),
        now_s=0.0,
    )


def ends_within(tokens: float, most: float, runs: np.ndarray) -> float:
    if not tokens >= 1.0:
        return 0.0
    return 1.0 if tokens >= most else 1.0 - float(np.interp(tokens, AHEAD, runs))


def until_its_kv_s(prefill: float) -> float:
    """Return the seconds until a request with this many tokens to compute has its next token."""
    return prefill * PROMPT_TOKEN_S + STEP_WAIT_S if prefill else 0.0


def known(of: np.ndarray, runs: np.ndarray, delay_s: float) -> tuple[float, float, float]:
    """Good, experience and stretch of a request that is served after ``delay_s``; pace and first token left aside."""
    age, ttft, pace, e2e, done, since_first, left, most, prefill, *_ = of
    begun, reads = not math.isnan(since_first), not (math.isnan(ttft) and math.isnan(pace))
    prefill_s, gen_s = until_its_kv_s(prefill), left * STEP_S
    ttft_s, reading_s = TTFT_S if math.isnan(ttft) else ttft, 1.0 / TDS if math.isnan(pace) else pace
    in_time = 1.0 if math.isnan(e2e) else ends_within((e2e - age - prefill_s - delay_s) / STEP_S, most, runs)
    dry_s = (reading_s * done - since_first if begun else ttft_s - age) - prefill_s
    span = max(gen_s, STEP_S)
    experience = (span / (span + max(delay_s - dry_s, 0.0))) ** 2 if reads else 0.0
    streamed = ttft_s + (0.0 if math.isnan(pace) else pace * (done + left)) if reads else 600.0
    target = streamed if math.isnan(e2e) else e2e
    return in_time, experience, target / (target + age + prefill_s + gen_s + delay_s)


@pytest.mark.slow
@given(queues())
def test_gain_and_cost_are_those_of_the_rules(queue: tuple[np.ndarray, np.ndarray, int]) -> None:
    requests, runs, queued = queue
    n = requests.shape[1]
    requests[10, :queued] = 0.0  # what waits has no KV to have back
    gain, cost, urgency, wait_s = found_worth(requests, queued, runs, ENGINE)
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
            found = pace[i] * (done[i] + left[i]) - since_first[i] - until_its_kv_s(prefill[i]) - seconds[i]
        else:
            found = ttft[i] - age[i] - until_its_kv_s(prefill[i])
        slack[i] = np.inf if math.isnan(found) else found
        if begun and age[i] - since_first[i] > ttft[i]:
            slack[i] = -np.inf
        least = -FULL_S if begun and not prefill[i] else 0.0
        if not np.isnan(requests[1:4, i]).all() and slack[i] >= least:
            good[i] = known(requests[:, i], runs[i], 0.0)[0]
    free = np.isnan(requests[1:4]).all(axis=0)
    late = float(((good == 0.0) & ~free).sum()) / max(int((~free).sum()), 8)
    share = SHARE * (LATE_SHARE / SHARE) ** (
        min(late / LATE_AT, 1.0) * (taken[0].sum() / taken.sum(axis=1).max()) ** 0.5
    )
    waits_s = float((cost * np.where(free, 1.0, good))[:queued].sum())
    assert wait_s == pytest.approx(max(share * waits_s, FULL_S))
    for i in range(n):
        now = known(requests[:, i], runs[i], 0.0)
        then = WEIGHTS @ [known(requests[:, i], runs[i], again_s[i] + wait_s * node) for node in NODES]
        in_time = min(then[0] / good[i], 1.0) if good[i] > 0.0 and not math.isnan(e2e[i]) else 1.0
        kept = 1.0 - math.exp(-max(slack[i] - again_s[i], 0.0) / wait_s)
        expected = good[i] * (1.0 - in_time * kept) + 0.5 * (now[1] - then[1]) + 0.1 * (now[2] - then[2])
        assert gain[i] == pytest.approx(weight[i] * expected, abs=1e-9)
    unhurried = [i for i in range(queued) if free[i]]
    assert np.delete(urgency, unhurried) == pytest.approx(np.delete(gain / cost, unhurried))
    rate = ENGINE["tail"] / max(waits_s, 1e-300)
    early = {i: rate * age[i] - math.log(-math.expm1(-rate * cost[i])) for i in unhurried}
    firsts = sorted(unhurried, key=lambda i: -early[i])
    assert urgency[firsts] == pytest.approx(sorted((gain / cost)[unhurried], reverse=True))


def test_no_price_jumps_when_another_machine_is_short() -> None:
    requests = np.array([[1.0, NAN, NAN, NAN, 0, NAN, 500, 500, 0, tokens, 0, 1] for tokens in (4000, 10)]).T.copy()
    runs = np.ones((2, AHEAD.size))

    def cost(kv_tokens: float) -> np.ndarray:
        return found_worth(requests, 2, runs, ENGINE | {"kv_blocks": kv_tokens})[1]

    assert cost(1e8)[0] == pytest.approx(cost(1e8)[1], rel=0.01)
    assert cost(5e3)[0] > 5 * cost(5e3)[1]
    at = [cost(tokens)[0] for tokens in range(30_000, 60_000, 100)]
    assert max(abs(b / a - 1.0) for a, b in zip(at, at[1:], strict=False)) < 0.02


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90), st.integers(0, 200)), max_size=6))
def test_survival_is_looked_up(requests: list[tuple[int, int, int]]) -> None:
    longer = np.cumprod(np.full((2, 12), [[0.9], [0.5]]), axis=1)
    ahead = np.array([0, 3, 8, 17, 64])
    class_id, done, most = (np.array([one[k] for one in requests], np.int64) for k in range(3))
    known = np.arange(1.0, 6.0)[None]
    row = np.where(np.arange(class_id.size) == 2, 0, -1)
    of = (
        longer,
        8,
        KnownRequests(class_id=class_id, output_tokens=done, max_tokens=most),
        np.arange(class_id.size),
        ahead,
    )
    found = chances(*of).matrix().reshape(-1, ahead.size)
    better = chances(*of, (known, row)).matrix().reshape(-1, ahead.size)
    assert np.array_equal(better[row < 0], found[row < 0]) and (better[row == 0] == known).all()
    for i, (of, so_far, limit) in enumerate(requests):
        for k, further in enumerate(ahead.tolist()):
            place, reached = (min(tokens // 8, 11) for tokens in (so_far + further, so_far))
            assert found[i, k] == (0.0 if further >= limit - so_far else longer[of, place] / longer[of, reached])


def test_what_does_not_fit_together_is_refused() -> None:
    column, real = np.zeros(1, np.int64), np.zeros(1)
    runs = as_known(np.ones((1, AHEAD.size)), column, column)
    columns = dict.fromkeys(STATED, real) | dict.fromkeys(COUNTED, column)
    fits: dict[str, Any] = {
        "columns": WorthColumns(**columns),
        "queued": 1,
        "left": real,
        "per_step": np.ones(1),
        "prefill": column,
        "again_s": np.empty(0),
        "weights": np.ones(1),
        "now_s": 0.0,
    }
    engine = WorthEngine(**ENGINE)
    worth(runs, TOKENS, engine, **fits)
    for wrong, why in (
        ({"columns": WorthColumns(**columns | dict.fromkeys(STATED, np.zeros(2)))}, "several lengths: 2 and 1"),
        ({"queued": 2}, "queued: 2 is not within 0 to 1"),
        ({"left": np.zeros(2)}, "left: 2 elements for 1 requests"),
    ):
        with pytest.raises(ValueError, match=why):
            worth(runs, TOKENS, engine, **(fits | wrong))
    for class_id, slots, why in ((column + 1, column, "class_id"), (column, column + 1, "slot 1 of 1")):
        with pytest.raises(ValueError, match=why):
            chances(
                np.ones((1, 3)),
                8,
                KnownRequests(class_id=class_id, output_tokens=column, max_tokens=column),
                slots,
                column,
            )
    known = np.ones((1, 1))
    for row in (1, -2):
        with pytest.raises(ValueError, match=f"known_row: {row} is not within -1 to 0"):
            chances(
                np.ones((1, 3)),
                8,
                KnownRequests(class_id=column, output_tokens=column, max_tokens=column),
                column,
                column,
                (known, column + row),
            )
    for longer, why in ((0.0, "0.000000 is not above 0"), (NAN, "nan is not above 0")):
        with pytest.raises(ValueError, match=f"longer: {why}"):
            chances(
                np.full((1, 3), longer),
                8,
                KnownRequests(class_id=column, output_tokens=column, max_tokens=column + 9),
                column,
                column,
            ).matrix()


@pytest.mark.parametrize("ahead", [[1], [5, 9], [-1, 0], [0, 9, 9], [0, 9, 4], [0, 2**32], [0, 2**62]])
def test_tokens_ahead_ascend_from_0(ahead: list[int]) -> None:
    """Between two steps the survival is a line: before the first of them there is nothing to read."""
    column = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"ahead\[\d\]: -?\d+; it ascends from 0 to 4294967295 at most"):
        chances(
            np.ones((1, 3)),
            8,
            KnownRequests(class_id=column, output_tokens=column, max_tokens=column),
            column,
            np.array(ahead),
        )


@pytest.mark.parametrize("tokens", [-1, 2**32, 2**62])
def test_tokens_that_no_request_has_are_refused(tokens: int) -> None:
    zero, wrong, longer = np.zeros(1, np.int64), np.array([tokens]), np.ones((1, 3))
    for lengths in (
        KnownRequests(class_id=zero, output_tokens=wrong, max_tokens=zero),
        KnownRequests(class_id=zero, output_tokens=zero, max_tokens=wrong),
    ):
        with pytest.raises(ValueError, match=f"tokens of slot 0: {tokens} is not within 0 to 4294967295"):
            chances(longer, 8, lengths, zero, AHEAD)
        with pytest.raises(ValueError, match=f"tokens of slot 0: {tokens} is not within 0 to 4294967295"):
            mean_left(longer, longer, 8, lengths, zero)
