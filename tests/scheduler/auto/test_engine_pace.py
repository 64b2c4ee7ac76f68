"""How fast auto takes the engine to be."""

from dataclasses import replace

import pytest

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.engine_pace import pace_of
from tests.snapshots import STEP_S, SteadySteps, make_snapshot


@pytest.mark.parametrize("decodes", [51, 52, 200])
def test_prompts_are_not_lost_where_drafts_fill_the_step(decodes: int) -> None:
    """Decodes end and leave room: 200 prompt tokens take 8 steps of 26, not 200 steps of the one token left."""
    engine = replace(make_snapshot().engine, token_budget=256)
    with_drafts = pace_of(replace(engine, decode_tokens=5), decodes, 100 * decodes)
    assert 200 * with_drafts.prompt_token_s == pytest.approx(200 / 26 * STEP_S)
    assert pace_of(engine, 16, 1600).prompt_token_s == STEP_S / 240


class LongerWithPrompts(SteadySteps):
    def step_s(self, load: StepLoad) -> float:
        return STEP_S + 1e-4 * load.prefill_tokens


def test_replies_go_at_the_pace_of_steps_without_prompts() -> None:
    """The step budget keeps steps short while replies need it; prompts have a price of their own."""
    pace = pace_of(replace(make_snapshot().engine, step_latency=LongerWithPrompts()), 8, 800)
    assert pace.step_s == STEP_S
    assert pace.full_s > STEP_S


@pytest.mark.parametrize(
    ("busy_s", "waits_s"),
    [
        (
            0.0,
            STEP_S,
        ),  # nothing is in flight, and the step that serves the prompt takes as long as its decodes at least
        (0.1, 0.2),  # the step budget makes steps of 0.1 s
        (2.0, 2.0 + STEP_S + 0.2040),  # several steps are in flight, and no step is longer than a full one
    ],
)
def test_a_prompt_waits_for_the_step_in_flight_and_for_one_more(busy_s: float, waits_s: float) -> None:
    engine = replace(make_snapshot().engine, step_latency=LongerWithPrompts(), busy_s=busy_s)
    assert pace_of(engine, 8, 800).step_wait_s == pytest.approx(waits_s)
