"""How many tokens a step may compute: what decodes can bear, what prompts are owed, and when nothing is limited."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.length.choice import ORACLE
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.lso.lengths import Lengths
from sloserve.lso.prompts_beside_decodes import HEADROOM, LEAST_SHARE
from sloserve.lso.step_budget import MOST_PROMPTS, SPEND_TOKENS, SPREAD_STEPS, StepBudget
from sloserve.scheduler.policy import NO_SLOTS, Snapshot
from tests.snapshots import make_snapshot

NOW_S = 1000.0
BASE_S, TOKEN_S, DECODE_S = 0.010, 0.0001, 0.0001


def new() -> StepBudget:
    """One that knows lengths where a request states them."""
    return StepBudget(Lengths(ORACLE, seed=0))


class Linear:
    """10 ms a step, 0.1 ms a prompt token or decode."""

    def step_s(self, load: StepLoad) -> float:
        return BASE_S + TOKEN_S * load.prefill_tokens + DECODE_S * load.decode_seqs if load.tokens else 0.0

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        fixed_s = BASE_S + TOKEN_S * base.prefill_tokens + DECODE_S * base.decode_seqs
        return max(int((seconds - fixed_s) / TOKEN_S + 1e-6), 0)


def decode(*, made: int = 1, pace_s: float = 0.05, since_s: float = 0.0, **values: Any) -> dict[str, Any]:
    """A request whose first token came ``since_s`` ago, and whose last one just did in sync scheduling."""
    state = {"output_tokens": made, "computed_tokens": 100 + made - 1, "first_token_s": NOW_S - since_s}
    return {"prompt_tokens": 100, "max_tokens": 10_000, "tpot_s": pace_s, "arrival_s": NOW_S - since_s} | state | values


def prompt(tokens: int = 5000, computed: int = 0, ttft_s: float = math.nan, **values: Any) -> dict[str, Any]:
    fresh = {"prompt_tokens": tokens, "computed_tokens": computed, "ttft_s": ttft_s, "arrival_s": NOW_S}
    return fresh | {"max_tokens": 1000} | values


def tokens(
    at: Snapshot,
    *,
    budget: StepBudget | None = None,
    now_s: float = NOW_S,
    aged: list[int] | None = None,
    admits: int = MOST_PROMPTS,
    **facts: Any,
) -> int | None:
    engine = replace(at.engine, **{"step_latency": Linear(), "token_budget": 4096, "free_blocks": 10_000} | facts)
    named = NO_SLOTS if aged is None else np.array(aged)
    return (budget or new()).tokens(at.rows, at.running, at.waiting, named, engine, now_s, admits=admits)


def bearable_tokens(seconds: float, decodes: int = 1) -> int:
    """Decodes and prompt tokens of a step that ``seconds`` can bear."""
    return decodes + int((HEADROOM * seconds - BASE_S - DECODE_S * decodes) / TOKEN_S + 1e-6)


def half_of_slack(seconds: float, decodes: int = 1) -> float:
    """Length of a step that leaves half of what a token can wait beyond a step of decodes alone."""
    return (seconds + BASE_S + DECODE_S * decodes) / 2.0


def test_a_step_takes_no_longer_than_the_promised_pace() -> None:
    assert tokens(make_snapshot([prompt()], [decode()])) == bearable_tokens(0.05)


def test_prompts_that_the_plan_keeps_out_are_none_to_compute() -> None:
    """They count as those for which there is no slot."""
    at = make_snapshot([prompt(400) for _ in range(4)], [decode()], max_num_seqs=64)
    for admits in (0, 1, 3):
        assert tokens(at, admits=admits) == tokens(at, free_slots=admits)
    assert tokens(at) != tokens(at, admits=1)
    assert tokens(make_snapshot([prompt()], [decode()]), admits=0) is None


def test_a_lead_is_spent_over_the_next_tokens() -> None:
    # Ten tokens in 0.1 s where 0.45 s were promised for the nine after the first.
    ahead = decode(made=10, since_s=0.1)
    assert tokens(make_snapshot([prompt()], [ahead])) == bearable_tokens(0.05 + 0.35 / SPEND_TOKENS)


def test_a_lag_is_made_up_over_what_is_still_to_come() -> None:
    behind = decode(made=10, since_s=0.95, oracle_output_tokens=60)
    assert tokens(make_snapshot([prompt()], [behind])) == bearable_tokens(0.05 - 0.5 / 50)


def test_slack_counts_from_the_end_of_the_step_in_flight_and_its_token() -> None:
    at = make_snapshot([prompt()], [decode(in_flight_tokens=1, computed_tokens=101)])
    # The step in flight brings the second token as its pace has it: neither lead nor lag.
    assert tokens(at, busy_s=0.05) == bearable_tokens(0.05)
    assert tokens(at, busy_s=0.02) == bearable_tokens(0.05 + 0.03 / SPEND_TOKENS)


def test_readers_and_deadlines_are_promises_too() -> None:
    reader = decode(pace_s=math.nan, tds=25.0)
    assert tokens(make_snapshot([prompt()], [reader])) == bearable_tokens(0.04)
    due = decode(pace_s=math.nan, e2e_s=4.0, oracle_output_tokens=101)
    assert tokens(make_snapshot([prompt()], [due])) == bearable_tokens(half_of_slack(4.0 / 100))


def test_a_deadline_that_later_calls_have_to_keep_as_well_slows_no_prompt() -> None:
    """The prompt would be in time at a tenth of the full rate, which is all that the decode would leave it."""
    due = decode(pace_s=math.nan, e2e_s=4.0, oracle_output_tokens=101)
    assert tokens(make_snapshot([prompt(e2e_s=60.0)], [due])) is not None
    due["own_e2e_s"] = math.nan
    assert tokens(make_snapshot([prompt(e2e_s=60.0)], [due])) is None


def test_lengths_with_which_a_reply_is_late_in_any_case_make_no_step_short() -> None:
    """Half of the replies have 100 tokens, half 1,000. There is time for 600, and 50 came."""
    lengths = Lengths(seed=0)
    for tokens_of_one in [100, 1000] * 256:
        lengths.learn(0, tokens_of_one)
    due = decode(made=50, pace_s=math.nan, e2e_s=6.0)
    at = make_snapshot([prompt()], [due])
    left = float(lengths.left(at.rows, at.running)[0])
    assert left > 400
    found = tokens(at, budget=StepBudget(lengths))
    assert found is not None and found == pytest.approx(bearable_tokens(half_of_slack(6.0 / 50)), rel=0.1)
    # Beside a request that has a pace the mean of all lengths counts.
    both = make_snapshot([prompt()], [due, decode(pace_s=0.5)])
    assert tokens(both, budget=StepBudget(lengths)) == pytest.approx(bearable_tokens(6.0 / left, 2), rel=0.1)


@pytest.mark.parametrize(
    ("running", "facts"),
    [
        ([decode(pace_s=math.nan)], {}),  # nothing was promised
        ([decode(made=10, since_s=500.0)], {}),  # lost, whatever is done
        ([decode(pace_s=0.5)], {}),  # a full step is within the pace
        ([prompt(computed=10)], {}),  # nothing decodes
        ([decode()], {"chunked_prefill": False}),
        ([decode()], {"free_slots": 0}),  # no prompt can start
        ([decode()], {"free_blocks": 3}),
    ],
)
def test_nothing_is_limited(running: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    assert tokens(make_snapshot([prompt()], running), **facts) is None


def test_a_queue_longer_than_what_is_looked_at_says_nothing_of_room() -> None:
    many = make_snapshot([prompt(8)] * (2 * MOST_PROMPTS), [decode(pace_s=0.5)])
    assert tokens(many, free_slots=2 * MOST_PROMPTS, admits=2 * MOST_PROMPTS) is None
    assert tokens(many, free_slots=MOST_PROMPTS - 1, admits=2 * MOST_PROMPTS) is not None


def test_prompts_are_spread_where_room_is_short_unless_one_becomes_late() -> None:
    running = [decode(), prompt(1600, computed=160)]
    at = make_snapshot([prompt(160)], running)
    assert tokens(at, free_blocks=100) == bearable_tokens(0.05)
    # 90 blocks for the prompt in progress leave 9, and the one that waits needs 10.
    assert tokens(at, free_blocks=99) == 1 + 1440 // SPREAD_STEPS
    assert tokens(at, free_slots=0) == 1 + 1440 // SPREAD_STEPS
    easy = [decode(pace_s=math.nan), running[1]]
    assert tokens(make_snapshot([prompt(160)], easy), free_blocks=99) == 1 + 1440 // SPREAD_STEPS
    assert tokens(make_snapshot([prompt(160)], easy), free_blocks=100) is None
    due = [easy[0], easy[1] | {"ttft_s": 0.25}]
    assert tokens(make_snapshot([prompt(160)], due), free_blocks=99) is None


@pytest.mark.parametrize(
    ("left", "facts", "steps"),
    [
        (1000, {"free_slots": 0}, SPREAD_STEPS),
        (64, {"free_slots": 0}, 8),
        (4, {"free_slots": 0}, 1),
        (1000, {"free_blocks": 99}, SPREAD_STEPS),
        (4, {"free_blocks": 99}, 4),
        (1, {"free_blocks": 99}, 1),
    ],
)
def test_prompts_are_spread_over_no_more_steps_than_decodes_need(left: int, facts: dict[str, int], steps: int) -> None:
    """And over an eighth of them where slots are short, which a spread prompt holds without a token."""
    running = [decode(pace_s=math.nan, oracle_output_tokens=1 + left), prompt(1600, computed=160)]
    found = tokens(make_snapshot([prompt(160)], running), **facts)
    assert found == (1 + 1440 // steps if steps > 1 else None)


def test_an_output_that_can_hardly_be_in_time_is_not_written_off() -> None:
    """A step of decodes alone is 10.1 ms: 91 of the 94 tokens fit that the headroom leaves."""
    due = decode(pace_s=math.nan, e2e_s=1.0, oracle_output_tokens=92)
    found = tokens(make_snapshot([prompt()], [due]))
    assert found is not None and found < bearable_tokens(1.0 / 91)


def test_prompts_that_the_encoder_has_no_room_for_do_not_wait_for_prefill() -> None:
    """Nor does one behind them, which the engine does not admit before."""
    item = {"item_tokens": 100, "first_item_tokens": 100, "left_item_tokens": 100}
    at = make_snapshot([prompt(**item), prompt()], [decode()])
    assert tokens(at) == tokens(at, encoder_tokens=100) == bearable_tokens(0.05)
    assert tokens(at, encoder_tokens=99) is None
    text_first = make_snapshot([prompt(), prompt(**item)], [decode()])
    assert tokens(text_first, encoder_tokens=99) is not None
    within_a_hit = make_snapshot([prompt(item_tokens=100, hit_tokens=160), prompt()], [decode()])
    assert tokens(within_a_hit, encoder_tokens=0) == bearable_tokens(0.05)


class Launched(Linear):
    """As Linear, but a step with prompts takes 30 ms at least, as where each of its kernels is launched by itself."""

    def step_s(self, load: StepLoad) -> float:
        return max(super().step_s(load), 0.030 * (load.prefill_tokens > 0))


def test_prompts_are_spread_over_no_more_steps_than_pay() -> None:
    """90 tokens would cost the decodes 20 ms, as 200 do: a token nearly twice what it costs in a full step."""
    at = make_snapshot([prompt(160)], [decode(pace_s=math.nan), prompt(1600, computed=160)])
    assert tokens(at, free_blocks=99) == 1 + 90
    assert tokens(at, free_blocks=99, step_latency=Launched()) == 1 + 180


def test_draft_tokens_are_part_of_every_decode() -> None:
    at = make_snapshot([prompt()], [decode(), decode()])
    assert tokens(at, decode_tokens=4) == bearable_tokens(0.05, 2) - 2 + 8


def test_the_fewest_requests_are_lost() -> None:
    """One decode at 20 ms a token against prompts that only long steps can save, and the other way round."""
    urgent = [prompt(300, ttft_s=0.1), prompt(300, ttft_s=0.1), prompt(300, ttft_s=0.1)]
    assert tokens(make_snapshot(urgent, [decode(pace_s=0.02)])) is None
    four = [decode(pace_s=0.02, oracle_output_tokens=3) for _ in range(4)]
    assert tokens(make_snapshot(urgent, four)) == bearable_tokens(0.02, 4)
    # Of the decodes only some need be lost: a step of 50 ms saves the prompts as well as a full one.
    assert tokens(make_snapshot(urgent[:2], [decode(pace_s=0.011), decode()])) == bearable_tokens(0.05, 2)


@pytest.mark.parametrize(
    "values",
    [
        {},  # far from its end: the prompts are computed soon, then the steps are short
        {"oracle_output_tokens": 3, "since_s": 1.0, "made": 2, "ttft_s": 0.1, "first_token_s": NOW_S - 0.02},
    ],
)
def test_decodes_that_long_steps_do_not_lose_hold_no_prompt_up(values: dict[str, Any]) -> None:
    """The second one missed its first token already. Where no prompt pays for it, their pace is kept all the same."""
    four = [decode(pace_s=0.02, **values) for _ in range(4)]
    assert tokens(make_snapshot([prompt(300, ttft_s=0.1)] * 3, four)) is None
    assert tokens(make_snapshot([prompt(300)] * 3, four)) is not None


def test_one_pace_does_not_hold_up_the_prompts_that_arrive() -> None:
    """One decode of four was promised a pace at which half of the prompts that arrive cannot be computed."""
    others = [decode(pace_s=math.nan) for _ in range(3)]
    at = make_snapshot([prompt()], [decode(pace_s=0.02, oracle_output_tokens=3), *others])
    budget = new()
    assert tokens(at, budget=budget) == bearable_tokens(0.02, 4)
    arriving = make_snapshot([prompt(1000)], [])
    for i in range(100):
        budget.arrived(arriving.rows, int(arriving.waiting[0]), NOW_S - 10.0 + 0.1 * i)
    assert tokens(at, budget=budget) is None


@pytest.mark.slow
def test_prompts_are_owed_their_least_share_over_time() -> None:
    """Decodes at a pace that leaves nothing: prompts still come forward, at the least share of the full rate."""
    budget, given, now_s, steps = new(), 0, NOW_S, 150
    for _ in range(steps):
        at = make_snapshot([prompt(10**6)], [decode(pace_s=0.0109, first_token_s=now_s)])
        found = tokens(at, budget=budget, now_s=now_s, free_blocks=10**6)
        assert found is not None
        given += found - 1
        now_s += Linear().step_s(StepLoad(prefill_tokens=found - 1, decode_seqs=1))
    full_rate = 4095 / Linear().step_s(StepLoad(prefill_tokens=4095, decode_seqs=1))
    assert given / (now_s - NOW_S) >= 0.98 * LEAST_SHARE * full_rate


@pytest.mark.parametrize("left", [1, 20, 63, 64])
def test_a_prompt_shorter_than_a_chunk_is_owed_its_share_too(left: int) -> None:
    budget, now_s = new(), NOW_S
    for _ in range(40):
        at = make_snapshot([prompt(left)], [decode(pace_s=0.0102 / HEADROOM - 1e-4, first_token_s=now_s)])
        found = tokens(at, budget=budget, now_s=now_s)
        if found is None or found == 1 + left:
            return
        assert found == 1
        now_s += Linear().step_s(StepLoad(decode_seqs=1))
    raise AssertionError("it gets nothing")


def test_a_clock_that_jumps_forward_makes_one_step_long() -> None:
    budget = new()
    for now_s, expected in ((NOW_S, False), (NOW_S + 3600.0, True), (NOW_S + 3600.01, False)):
        at = make_snapshot([prompt(10**6)], [decode(pace_s=0.0109, first_token_s=now_s)])
        found = tokens(at, budget=budget, now_s=now_s, free_blocks=10**6)
        assert found is not None and (found == 4096) == expected


def test_an_aged_prompt_gets_its_full_chunk() -> None:
    at = make_snapshot([prompt(), prompt()], [decode()])
    assert tokens(at, aged=[1]) is None
    assert tokens(at, aged=[2]) == bearable_tokens(0.05)


def test_no_more_than_the_latency_can_be_trusted_with() -> None:
    class Unsure(Linear):
        def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
            return min(super().prefill_within(seconds, base, prefix_tokens), 128)

    at = make_snapshot([prompt(60) for _ in range(20)], [decode()], max_num_seqs=64)
    assert tokens(at) == bearable_tokens(0.05)
    assert tokens(at, step_latency=Unsure()) == 1 + 128


def test_the_chunks_that_the_engine_makes_are_foreseen() -> None:
    """One prompt gets no more than a chunk, whatever the step has left; several get one each."""
    at = make_snapshot([prompt()], [decode()])
    assert bearable_tokens(0.05) == tokens(at) == 375
    assert tokens(at, chunk_tokens=300) is None
    both = make_snapshot([prompt(), prompt()], [decode()], max_num_seqs=64)
    assert tokens(both, chunk_tokens=300) == tokens(at, chunk_tokens=1000) == 374, "a rounding off what they can bear"


def test_no_chunk_ends_inside_an_item() -> None:
    assert tokens(make_snapshot([prompt(item_tokens=900)], [decode()])) == 1 + 900


decodes = st.builds(
    decode, made=st.integers(1, 50), pace_s=st.floats(0.005, 0.3), since_s=st.floats(0.0, 5.0), e2e_s=st.floats(1, 90)
)
prompts = st.builds(prompt, tokens=st.integers(1, 9000), ttft_s=st.floats(0.01, 20.0))


@given(
    st.lists(decodes, min_size=1, max_size=8),
    st.lists(prompts, min_size=1, max_size=8),
    st.sampled_from(["h100-llama3-8b", "v100x2-qwen2.5-7b", "a100-opt-13b"]),
    st.floats(0.0, 0.2),
)
def test_a_limit_leaves_every_decode_its_token_and_keeps_those_that_can_be_kept(
    running: list[dict[str, Any]], waiting: list[dict[str, Any]], profile: str, busy_s: float
) -> None:
    at = make_snapshot(waiting, running, max_num_seqs=64)
    profiled = load_profile(profile)
    found = tokens(at, step_latency=profiled, busy_s=busy_s)
    assert found is None or len(running) <= found <= 4096
    if found is not None:
        # One with targets that nothing on time needs is never slower than the same with fewer prompts.
        calm = [one | {"ttft_s": math.nan} for one in waiting]
        least = tokens(make_snapshot(calm, running, max_num_seqs=64), step_latency=profiled, busy_s=busy_s)
        assert least is not None and least <= found
