"""What the requests of a step can bear: the compiled figures against the same in numpy, and prompt by prompt."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.step_budget import PromiseColumns, any_promised, decoding, step_prompts
from sloserve.lso.decode_first import progress_columns
from sloserve.lso.step_budget import promise_columns
from tests.snapshots import make_snapshot

NOW_S, ALONE_S, HEADROOM, SPEND, BLOCK = 1000.0, 0.02, 0.95, 64.0, 16


def maybe(low: float, high: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(math.nan), st.floats(low, high))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    begun = draw(st.booleans())
    prompt_tokens = draw(st.integers(1, 200))
    return {
        "arrival_s": NOW_S - draw(st.floats(0.0, 9.0)),
        **{"ttft_s": draw(maybe(0.1, 9.0)), "tpot_s": draw(maybe(0.01, 0.5)), "tds": draw(maybe(2.0, 50.0))},
        **{"e2e_s": draw(maybe(0.5, 60.0)), "prompt_tokens": prompt_tokens},
        "output_tokens": draw(st.integers(1, 90)) if begun else 0,
        "first_token_s": NOW_S - draw(st.floats(0.0, 5.0)) if begun else math.nan,
        "computed_tokens": draw(st.integers(0, prompt_tokens)),
        "in_flight_tokens": draw(st.integers(0, 2)),
        "hit_tokens": draw(st.integers(0, prompt_tokens)),
    }


MANY = st.lists(requests(), min_size=1, max_size=7)


@pytest.mark.slow
@given(MANY, st.data())
def test_decodes_bear_what_numpy_says(running: list[dict[str, Any]], data: st.DataObject) -> None:
    at = make_snapshot([], running)
    rows, slots = at.rows, np.array(data.draw(st.permutations(at.running.tolist())), np.int64)
    promises = promise_columns(rows)
    left = np.array(data.draw(st.lists(st.floats(0.0, 300.0), min_size=slots.size, max_size=slots.size)))
    per_step = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.5, 4.0]), min_size=slots.size, max_size=slots.size)))
    found = decoding(
        promises,
        slots,
        left=left,
        per_step=per_step,
        starts_s=NOW_S,
        alone_s=ALONE_S,
        headroom=HEADROOM,
        spend_tokens=SPEND,
    )

    pace, end_s = np.fmin(rows.tpot_s[slots], 1.0 / rows.tds[slots]), rows.arrival_s[slots] + rows.e2e_s[slots]
    assert any_promised(promises, slots) == (not np.isnan(np.fmin(pace, end_s)).all())
    in_flight = per_step * (rows.in_flight_tokens[slots] > 0)
    left = np.maximum(left - in_flight, 1.0)
    first_s = np.where(np.isnan(rows.first_token_s[slots]), NOW_S, rows.first_token_s[slots])
    lead_s = first_s + pace * (rows.output_tokens[slots] + in_flight - 1) - NOW_S
    by_pace = pace + lead_s / np.where(lead_s > 0.0, np.minimum(left, SPEND), left)
    token_s = HEADROOM * np.fmin(by_pace, (end_s - NOW_S) / left)
    bearable = token_s * per_step
    order = np.argsort(bearable, kind="stable")
    order = order[bearable[order] >= ALONE_S]
    counts = ~(first_s[order] - rows.arrival_s[slots[order]] > rows.ttft_s[slots[order]])
    assert [found.bearable_s(i) for i in range(len(found))] == bearable[order].tolist()
    assert found.lost_already == np.count_nonzero(~counts)

    reads, time_s, left = rows.tds[slots[order]] > 0.0, (left * token_s)[order], (left / per_step)[order]
    for step_s in (0.0, 0.1, 1.0, *bearable[order]):
        rate, pending, arrival_rate = data.draw(st.tuples(st.floats(1.0, 1e4), st.integers(0, 9000), st.floats(0, 1e4)))
        with_prompts_s = np.minimum((pending + arrival_rate * time_s) / rate, time_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = with_prompts_s / step_s + (time_s - with_prompts_s) / ALONE_S
        is_lost = (bearable[order] < step_s) & ((steps < left) | reads) & counts
        assert found.lost(step_s=step_s, rate=rate, pending=pending, arrival_rate=arrival_rate) == np.count_nonzero(
            is_lost
        )


@given(MANY, st.lists(requests(), max_size=7), st.integers(0, 60), st.data())
def test_prompts_start_while_there_are_blocks(
    running: list[dict[str, Any]], waiting: list[dict[str, Any]], free_blocks: int, data: st.DataObject
) -> None:
    at = make_snapshot([one | {"computed_tokens": 0} for one in waiting], [one | {"hit_tokens": 0} for one in running])
    rows = at.rows
    progress = progress_columns(rows)
    found = step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(BLOCK), free_blocks=free_blocks)

    def left_of(slot: int) -> int:
        without = (
            rows.prompt_tokens[slot] + rows.output_tokens[slot] - rows.computed_tokens[slot] - rows.hit_tokens[slot]
        )
        return 0 if without <= (rows.output_tokens[slot] > 0) else int(without)

    def blocks(slot: int) -> int:
        return math.ceil((rows.prompt_tokens[slot] + rows.output_tokens[slot]) / BLOCK)

    room = free_blocks - sum(blocks(i) - math.ceil(rows.computed_tokens[i] / BLOCK) for i in at.running)
    needed = np.cumsum([blocks(i) for i in at.waiting])
    startable = at.waiting[: np.count_nonzero(needed <= room)]
    asked = [*at.running.tolist(), *(i for i in startable.tolist() if left_of(i))]
    assert (found.startable, found.slots.tolist()) == (startable.size, asked)
    ends = np.cumsum([left_of(i) for i in asked])
    assert [found.end(i) for i in range(len(found))] == ends.tolist()
    assert [found.prefix(i) for i in range(len(found))] == rows.computed_tokens[asked].tolist()

    tokens = data.draw(st.integers(0, int(ends[-1])))
    chunks = [(min(left_of(i), max(tokens - end + left_of(i), 0)), i) for i, end in zip(asked, ends, strict=True)]
    pairs = sum(chunk * (chunk + 2 * int(rows.computed_tokens[i])) for chunk, i in chunks)
    done, num_chunks, found_pairs = found.load(tokens)
    assert (done, found_pairs) == (tokens, pairs)
    assert num_chunks >= np.count_nonzero([chunk for chunk, _ in chunks])

    left = np.array(data.draw(st.lists(st.floats(1.0, 300.0), min_size=len(asked), max_size=len(asked))))
    found.promise(promise_columns(rows), left=left, step_s=ALONE_S, starts_s=NOW_S)
    first_due = rows.arrival_s[asked] + rows.ttft_s[asked]
    pace = np.fmin(rows.tpot_s[asked], 1.0 / rows.tds[asked])
    next_due = rows.first_token_s[asked] + pace * rows.output_tokens[asked]
    due_s = np.where(rows.output_tokens[asked] > 0, next_due, first_due)
    slack = np.fmin(due_s, rows.arrival_s[asked] + rows.e2e_s[asked] - left * ALONE_S) - NOW_S
    rate, full_rate = data.draw(st.tuples(st.floats(1.0, 1e4), st.floats(1.0, 1e4)))
    in_time = ends / full_rate <= slack
    assert found.late(rate, full_rate) == np.count_nonzero(in_time & (ends / rate > slack))
    in_time = ends * (1.0 / full_rate) <= slack
    assert found.late_by_token(1.0 / rate, 1.0 / full_rate) == np.count_nonzero(in_time & (ends * (1.0 / rate) > slack))


@pytest.mark.parametrize(("target", "lost"), [({"tds": 0.5}, 1), ({"tpot_s": 2.0}, 0)])
def test_a_slow_reader_feels_a_lag_that_is_made_up_later(target: dict[str, float], lost: int) -> None:
    """Long steps with few prompts leave time for all tokens, so that a mean pace is kept."""
    at = make_snapshot([], [{"arrival_s": NOW_S, "output_tokens": 1, "first_token_s": NOW_S, **target}])
    times = {"starts_s": NOW_S, "alone_s": ALONE_S, "headroom": 1.0, "spend_tokens": SPEND}
    found = decoding(promise_columns(at.rows), at.running, left=np.full(1, 100.0), per_step=np.ones(1), **times)
    assert found.lost(step_s=3.0, rate=1000.0, pending=10.0, arrival_rate=0.0) == lost


def test_a_block_may_hold_one_token() -> None:
    at = make_snapshot([{"prompt_tokens": 3}, {"prompt_tokens": 4}])
    progress = progress_columns(at.rows)
    assert step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(1), free_blocks=6).startable == 1
    assert step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(1), free_blocks=7).startable == 2


def test_what_does_not_fit_together_is_refused() -> None:
    at = make_snapshot([], [{}, {}])
    promises, progress = promise_columns(at.rows), progress_columns(at.rows)
    times = {"starts_s": NOW_S, "alone_s": ALONE_S, "headroom": HEADROOM, "spend_tokens": SPEND}
    with pytest.raises(ValueError, match="slot 64 of 64"):
        decoding(promises, np.array([64]), left=np.ones(1), per_step=np.ones(1), **times)
    with pytest.raises(ValueError, match="left: 1 elements for 2 requests"):
        decoding(promises, at.running, left=np.ones(1), per_step=np.ones(1), **times)
    with pytest.raises(ValueError, match="several lengths"):
        longer = {name: np.ones(64) for name in ("arrival_s", "ttft_s", "tpot_s", "tds", "e2e_s")}
        counted = {"output_tokens": np.zeros(64, np.int64), "in_flight_tokens": np.zeros(64, np.int64)}
        uneven = PromiseColumns(**longer, **counted, first_token_s=np.ones(1))
        decoding(uneven, at.running, left=np.ones(2), per_step=np.ones(2), **times)
    with pytest.raises(ValueError, match="slot -1 of 64"):
        step_prompts(progress, np.array([-1]), at.waiting, layout=KVLayout.full(16), free_blocks=9)
    prompts = step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(16), free_blocks=9)
    with pytest.raises(ValueError, match="left: 3 elements for 2 prompts"):
        prompts.promise(promises, left=np.ones(3), step_s=ALONE_S, starts_s=NOW_S)
    with pytest.raises(IndexError, match="place 2 of 2"):
        prompts.end(2)
    with pytest.raises(ValueError, match="tokens: -1 is negative"):
        prompts.load(-1)
    with pytest.raises(ValueError, match="rate: 0.000000 is not above 0"):
        found = decoding(promises, at.running, left=np.ones(2), per_step=np.ones(2), **times)
        found.lost(step_s=0.1, rate=0.0, pending=1.0, arrival_rate=1.0)


@pytest.mark.parametrize("tokens", [-1, 2**32, 2**62])
def test_counts_that_no_request_has_are_refused(tokens: int) -> None:
    at = make_snapshot([], [{}])
    promises, progress = promise_columns(at.rows), progress_columns(at.rows)
    times = {"starts_s": NOW_S, "alone_s": ALONE_S, "headroom": HEADROOM, "spend_tokens": SPEND}
    why = f"{tokens} is not within 0 to 4294967295"
    for name in ("output_tokens", "in_flight_tokens"):
        with _of(at.rows, name, tokens), pytest.raises(ValueError, match=f"{name} of slot 0: {why}"):
            decoding(promises, at.running, left=np.ones(1), per_step=np.ones(1), **times)
    for name in ("prompt_tokens", "output_tokens", "computed_tokens", "swapped_tokens", "hit_tokens"):
        with _of(at.rows, name, tokens), pytest.raises(ValueError, match=f"{name} of slot 0: {why}"):
            step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(16), free_blocks=9)
    for free_blocks in (2**32, -(2**32)):
        with pytest.raises(ValueError, match="free_blocks: .* is not within"):
            step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(16), free_blocks=free_blocks)


def test_prompts_whose_pairs_cannot_be_counted_are_refused() -> None:
    at = make_snapshot([], [{"prompt_tokens": 2**31}])
    progress = progress_columns(at.rows)
    found = step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(16), free_blocks=9)
    assert found.load(2**31) == (2**31, 1, 2**62)
    with _of(at.rows, "prompt_tokens", 2**31 + 1), pytest.raises(ValueError, match="more pairs than can be counted"):
        step_prompts(progress, at.running, at.waiting, layout=KVLayout.full(16), free_blocks=9)


@contextmanager
def _of(rows: Any, name: str, tokens: int) -> Iterator[None]:
    """Slot 0 has so many meanwhile."""
    column = getattr(rows, name)
    before, column[0] = int(column[0]), tokens
    yield
    column[0] = before


def test_chunks_end_at_multiples_but_for_the_last_of_a_prompt() -> None:
    at = make_snapshot(
        [], [{"prompt_tokens": 3000, "computed_tokens": 500}, {"prompt_tokens": 100}, {"prompt_tokens": 900}]
    )
    found = step_prompts(progress_columns(at.rows), at.running, at.waiting, layout=KVLayout.full(16), free_blocks=900)
    sizes = (0, 27, 28, 600, 2499, 2500, 2700, 3200, 9000)
    asked = {tokens: found.in_chunks(tokens, 9000, 528)[0] for tokens in sizes}
    assert asked == {0: 0, 27: 0, 28: 28, 600: 556, 2499: 2240, 2500: 2500, 2700: 2600, 3200: 3128, 9000: 3500}
    assert found.in_chunks(2499, 9000, 528) == (2240, 2, 2140 * (2140 + 2 * 500) + 100 * 100)
    with pytest.raises(ValueError, match="multiple: 0 is not within"):
        found.in_chunks(1, 1, 0)


def test_no_chunk_is_longer_than_the_engine_makes_it() -> None:
    at = make_snapshot(
        [], [{"prompt_tokens": 3000, "computed_tokens": 500}, {"prompt_tokens": 100}, {"prompt_tokens": 900}]
    )
    found = step_prompts(progress_columns(at.rows), at.running, at.waiting, layout=KVLayout.full(16), free_blocks=900)
    asked = {tokens: found.in_chunks(tokens, 256, 1)[:2] for tokens in (0, 100, 256, 300, 600, 9000)}
    assert asked == {0: (0, 0), 100: (100, 1), 256: (256, 1), 300: (300, 2), 600: (600, 3), 9000: (612, 3)}
    assert found.in_chunks(600, 256, 1)[2] == 256 * (256 + 2 * 500) + 100 * 100 + 244 * 244
    assert all(found.in_chunks(tokens, 9000, 1) == found.load(tokens) for tokens in (0, 99, 2500, 2600, 3500))
    with pytest.raises(ValueError, match="longest: 0 is not within"):
        found.in_chunks(1, 0, 1)
