"""How fast auto takes the engine to be."""

from dataclasses import replace

import pytest

from sloserve.scheduler.auto.engine_pace import pace_of
from tests.snapshots import STEP_S, make_snapshot


@pytest.mark.parametrize("decodes", [51, 52, 200])
def test_prompts_are_not_lost_where_drafts_fill_the_step(decodes: int) -> None:
    """Decodes end and leave room: 200 prompt tokens take 8 steps of 26, not 200 steps of the one token left."""
    engine = replace(make_snapshot().engine, token_budget=256)
    with_drafts = pace_of(replace(engine, decode_tokens=5), decodes, 100 * decodes, 0.0)
    assert 200 * with_drafts.prompt_token_s == pytest.approx(200 / 26 * STEP_S)
    assert pace_of(engine, 16, 1600, 0.0).prompt_token_s == STEP_S / 240
