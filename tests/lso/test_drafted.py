"""Targets per token under speculative decoding: a step that brings several tokens may take as many times as long."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.estimator.drafting import DraftFacts
from sloserve.lso.drafted import mean_tokens_per_step, tokens_per_step
from sloserve.scheduler.policy import Snapshot
from tests.lso.test_step_budget import bearable_tokens, decode, prompt, tokens
from tests.snapshots import make_snapshot

FACTS = DraftFacts(2.5, 0.01, 1.5, np.array([1.0, 4 / 3]), np.array([0.8, 0.7, 0.25]))


def with_drafts(at: Snapshot, facts: DraftFacts | None = FACTS) -> Snapshot:
    return replace(at, engine=replace(at.engine, drafts=facts, decode_tokens=4))


def test_without_drafts_a_step_brings_one_token() -> None:
    at = make_snapshot(running=[decode(), decode()])
    assert tokens_per_step(at.rows, at.running, at.engine).tolist() == [1.0, 1.0]
    assert mean_tokens_per_step(at.engine) == 1.0


def test_a_request_is_known_by_its_class_and_then_by_its_own_steps() -> None:
    own: dict[str, Any] = {"drafts_promised": 2400.0, "drafts_accepted": 0.0}
    at = with_drafts(make_snapshot(running=[decode(), decode(class_id=1), decode(class_id=7), decode(**own)]))
    assert tokens_per_step(at.rows, at.running, at.engine) == pytest.approx([2.5, 3.0, 3.0, 1.0], rel=0.02)
    assert mean_tokens_per_step(at.engine) == 2.5


@pytest.mark.parametrize("per_step", [1.0, 2.5, 4.0])
def test_a_step_may_take_a_pace_times_its_tokens(per_step: float) -> None:
    """Of the budget, each decode has its drafts: four tokens."""
    facts = replace(FACTS, of_class=np.array([(per_step - 1.0) / FACTS.promised]))
    at = with_drafts(make_snapshot([prompt()], [decode(pace_s=0.03)]), facts)
    bearable = bearable_tokens(0.03 * per_step) + 3
    assert tokens(at, drafts=facts, decode_tokens=4) == pytest.approx(bearable, abs=2)


def test_a_pace_below_the_step_is_kept_where_a_step_brings_enough() -> None:
    """20 ms a token at steps of at least 10.1 ms: lost at 8 ms a token without drafts, kept with 2.5 tokens a step."""
    at = make_snapshot([prompt()], [decode(pace_s=0.008)])
    assert tokens(at) is None
    limited = tokens(with_drafts(at), drafts=FACTS, decode_tokens=4)
    assert limited is not None and limited == pytest.approx(bearable_tokens(0.02) + 3, abs=2)
