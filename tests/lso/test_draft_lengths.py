"""How many drafts decodes verify: fewer only where that keeps a request in time that could be kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.step_budget import decoding
from sloserve.estimator.drafting import DraftFacts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.draft_lengths import bearable_token_s, draft_lengths
from sloserve.lso.drafted import tokens_per_step
from sloserve.lso.step_budget import HEADROOM, SPEND_TOKENS, promise_columns
from tests.lso.test_step_budget import NOW_S, decode
from tests.snapshots import make_snapshot

K = 3
ACCEPTED = np.array([0.3, 1 / 3, 0.3])
"""So the drafts of a request bring 0.3, 0.1 and 0.03 tokens."""


class Positions:
    """10 ms a step, and some time for each decode and each draft."""

    def __init__(self, draft_s: float = 5e-5, row_s: float = 5e-5) -> None:
        self.draft_s, self.row_s = draft_s, row_s

    def step_s(self, load: StepLoad) -> float:
        return 0.010 + self.row_s * load.decode_seqs + self.draft_s * (load.draft_tokens or 0)

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return 0


def lengths(
    requests: list[dict[str, Any]], latency: Positions, *, own: IntArray | None = None, by_slack: bool = True
) -> IntArray | None:
    """own: drafts that each has; ``None`` for as many as the engine drafts at most."""
    at = make_snapshot(running=requests, max_num_seqs=len(requests))
    facts = DraftFacts(1.43, 0.01, 0.43, np.ones(1), ACCEPTED)
    engine = replace(at.engine, drafts=facts, decode_tokens=1 + K, step_latency=latency)
    beside = StepLoad(0, 0, len(requests), 100 * len(requests), 0)
    left = np.full(len(requests), 100.0)
    own = np.full(len(requests), K) if own is None else own
    return draft_lengths(at.rows, at.running, own, left, engine, beside, NOW_S, by_slack=by_slack)


def pace(seconds: float) -> dict[str, Any]:
    """Return a request that has just begun, and may take ``seconds`` for each token."""
    return decode(pace_s=seconds / HEADROOM)


def untimed() -> dict[str, Any]:
    return decode(pace_s=np.nan)


def test_none_is_left_out_where_drafts_cost_nothing() -> None:
    assert lengths([pace(0.005)] * 50, Positions(draft_s=0.0)) is None
    assert lengths([pace(0.005)] * 50, Positions(draft_s=0.0), by_slack=False) is None


@pytest.mark.parametrize("requests", [[pace(1.0)] * 100, [untimed()] * 100])
def test_none_is_left_out_where_all_are_in_time(requests: list[dict[str, Any]]) -> None:
    """Nor of requests that have no targets, for the sake of the tokens per second alone."""
    assert lengths(requests, Positions()) is None


def test_the_drafts_of_others_are_left_out_where_that_keeps_a_request_in_time() -> None:
    """100 requests with all drafts take 30 ms; 20 of them bear 18 to 22 ms for a step, by what their drafts bring."""
    latency = Positions()
    found = lengths([pace(0.0155)] * 20 + [pace(1.0)] * 80, latency)
    assert found is not None
    step_s = latency.step_s(StepLoad(decode_seqs=100, decode_context_tokens=1, draft_tokens=int(found.sum())))
    gained = 1.0 + np.cumsum([0.0, 0.3, 0.1, 0.03])[found[:20]]
    assert (gained * 0.0155 >= step_s - 1e-9).all()
    assert found[20:].max() <= found[:20].min()


def test_a_request_that_is_lost_keeps_no_drafts_from_those_that_can_be_kept() -> None:
    lost = [decode(pace_s=0.001, since_s=50.0)] * 100
    found = lengths(lost + [pace(0.0165)] * 20 + [pace(1.0)] * 80, Positions())
    assert found is not None and found[:100].sum() < found[100:120].sum() * 5
    step_s = Positions().step_s(StepLoad(decode_seqs=200, decode_context_tokens=1, draft_tokens=int(found.sum())))
    gained = 1.0 + np.cumsum([0.0, 0.3, 0.1, 0.03])[found[100:120]]
    assert (gained * 0.0165 * 1.25 >= step_s).all()


def test_a_draft_is_not_left_out_whose_token_would_cost_more_later() -> None:
    """A row of a later step costs forty times a draft, so a draft of a chance of 0.03 is worth it."""
    found = lengths([pace(0.0155)] * 20 + [pace(1.0)] * 80, Positions(draft_s=5e-5, row_s=2e-3))
    assert found is None or (found == found[0]).all()


def test_by_load_the_drafts_are_those_that_bring_the_most_tokens_per_second() -> None:
    latency = Positions()
    found = lengths([untimed()] * 100, latency, by_slack=False)
    assert found is not None

    def rate(number: int) -> float:
        return 100 * (1.0 + [0.0, 0.3, 0.4, 0.43][number]) / (0.015 + 0.005 * number)

    assert found.mean() == pytest.approx(max(range(K + 1), key=rate), abs=0.5)


@pytest.mark.parametrize("by_slack", [True, False])
def test_none_is_left_out_where_the_drafts_that_there_are_fit(by_slack: bool) -> None:
    """With three drafts of each the step would take 30 ms; n-grams found some for three requests alone."""
    requests, own = [pace(0.0155)] * 20 + [pace(1.0)] * 80, np.zeros(100, np.int64)
    assert lengths(requests, Positions()) is not None
    assert lengths(requests, Positions(), own=own, by_slack=by_slack) is None
    own[[3, 50, 70]] = 2, 3, 1
    assert lengths(requests, Positions(), own=own, by_slack=True) is None


@pytest.mark.parametrize("seed", range(5))
def test_requests_keep_as_many_drafts_as_fit_beside_those_that_there_are(seed: int) -> None:
    """The tight ones bear 19.9 ms with two drafts. With two of each other request that has two the step takes 19.

    With two of all 100 it would take 21 ms, and one of each would be the most.
    """
    latency, own = Positions(draft_s=3e-5), np.random.default_rng(seed).integers(0, K + 1, 100)
    own[:20] = K
    found = lengths([pace(0.0142)] * 20 + [pace(1.0)] * 80, latency, own=own)
    assert found is not None and found.tolist() == np.minimum(own, 2).tolist()
    one = lengths([pace(0.0142)] * 20 + [pace(1.0)] * 80, latency)
    assert one is not None and one.max() == 1


@pytest.mark.parametrize("seed", range(3))
def test_by_load_no_request_gets_more_drafts_than_it_has(seed: int) -> None:
    own = np.random.default_rng(seed).integers(0, K + 1, 100)
    found = lengths([untimed()] * 100, Positions(draft_s=2e-4), own=own, by_slack=False)
    assert found is not None and (found <= own).all() and (found < own).any()


def test_one_decode_and_none() -> None:
    """One that is late with its drafts, and in time without them, verifies none."""
    found = lengths([pace(0.0105)], Positions(draft_s=0.01))
    assert found is not None and found.tolist() == [0]
    assert lengths([], Positions()) is None


def test_what_a_request_can_bear_is_what_the_step_budget_says() -> None:
    """The two state one rule, in numpy and in C++."""
    cases = [(0.05, 5, 0.1, 0), (0.02, 40, 0.9, 3), (0.03, 100, 2.0, 4), (0.08, 2, 0.0, 1), (0.01, 300, 2.5, 4)]
    made = [
        decode(pace_s=pace_s, made=tokens, since_s=since_s, in_flight_tokens=in_flight, e2e_s=60.0)
        for pace_s, tokens, since_s, in_flight in cases
    ]
    at = make_snapshot(running=made)
    engine = replace(at.engine, drafts=DraftFacts(1.43, 0.01, 0.43, np.ones(1), ACCEPTED))
    rows, slots, left = at.rows, at.running, np.array([90.0, 30.0, 200.0, 3.0, 1.0])
    per_step = tokens_per_step(rows, slots, engine)
    times = {"starts_s": NOW_S, "alone_s": 1e-9, "headroom": HEADROOM, "spend_tokens": SPEND_TOKENS}
    found = decoding(promise_columns(rows), slots, left=left, per_step=per_step, **times)
    bearable = HEADROOM * bearable_token_s(rows, slots, left, engine, NOW_S) * per_step
    assert [found.bearable_s(i) for i in range(len(found))] == pytest.approx(sorted(bearable[bearable >= 1e-9]))
    assert len(found) >= 4
