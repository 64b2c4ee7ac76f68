"""The virtual engine with drafts: vLLM's scheduler proposes, verifies and rejects as it does with an EAGLE head."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.engine.virtual.drafts import Drafts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile

pytestmark = pytest.mark.vllm

PROFILE = load_profile("h100-llama3-8b")
SMALLEST_S = PROFILE.step_s(StepLoad.of([], [1]))
ALL, NONE = Drafts(3, 1.0, spread=0.0), Drafts(3, 0.0, spread=0.0)
Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def decode_s(context: int) -> float:
    return PROFILE.step_s(StepLoad.of([], [context], 3)) + 3 * ALL.round_share * SMALLEST_S


@pytest.mark.parametrize("policy", [None, "edf"])
def test_a_step_gives_the_accepted_drafts_and_one_token_more(
    build: Build, request_of: RequestOf, policy: str | None
) -> None:
    log = build(policy, drafts=ALL).run([request_of("a", 0.0, 20, 9)])
    times_s = np.cumsum([PROFILE.step_s(StepLoad.of([(20, 0)])), decode_s(21), decode_s(25)])
    assert log.requests[0].token_times_s == pytest.approx(np.repeat(times_s, [1, 4, 4]))
    assert (log.counters["draft_tokens"], log.counters["accepted_draft_tokens"]) == (6, 6)


def test_rejected_drafts_give_a_token_a_step_and_their_places_back(build: Build, request_of: RequestOf) -> None:
    engine = build(None, drafts=NONE)
    computed: list[int] = []
    engine.on_step = lambda output: computed.extend(output.scheduled_cached_reqs.num_computed_tokens)
    (log,) = engine.run([request_of("a", 0.0, 20, 5)]).requests
    # Each step is scheduled while the three drafts of the one before it count as computed.
    assert computed[:4] == [20, 24, 25, 26]
    assert np.diff(log.token_times_s) == pytest.approx([decode_s(21), decode_s(25), decode_s(26), decode_s(27)])


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("max_tokens", [None, 6])
def test_no_reply_is_longer_than_it_is(
    build: Build, request_of: RequestOf, tokens: int, max_tokens: int | None
) -> None:
    """A reply may end, by its own end or by its limit, among the drafts that are accepted."""
    engine = build(None, drafts=ALL)
    (log,) = engine.run([request_of("a", 0.0, 20, tokens, max_tokens=max_tokens)]).requests
    assert (log.outcome, log.token_times_s.size) == (Outcome.COMPLETED, min(tokens, max_tokens or tokens))


@pytest.mark.parametrize("policy", [None, "edf", "chaos:pause=0.5"])
def test_every_reply_and_every_block_comes_back_where_kv_is_short(
    build: Build, request_of: RequestOf, policy: str | None
) -> None:
    """The requests are preempted with drafts in flight, and come back."""
    engine = build(policy, drafts=Drafts(4, 0.7), kv_blocks=17)
    log = engine.run([request_of(f"r{i}", 0.002 * i, 40, 90, e2e_s=0.5 + i % 3) for i in range(8)])
    assert [r.token_times_s.size for r in log.requests] == [90] * 8
    assert sum(r.num_preemptions for r in log.requests) > 3
    assert log.counters.get("internal_errors", 0) == 0
    assert engine.kv_used == 0.0


def test_whoever_schedules_the_same_drafts_are_accepted(build: Build, request_of: RequestOf) -> None:
    """The tokens of each step of a request are the same, whatever the policy."""
    requests = [request_of(f"r{i}", 0.001 * i, 20, 60) for i in range(4)]
    runs = [build(policy, drafts=Drafts(3, 0.7)).run(requests) for policy in (None, "edf")]
    stock, edf = ([np.unique(r.token_times_s, return_counts=True)[1].tolist() for r in log.requests] for log in runs)
    assert stock == edf
    assert 0.6 < runs[0].counters["accepted_draft_tokens"] / 240 < 0.9
