"""Decodes before unfinished prompts: what is unfinished, and that a policy's order is kept within both parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.lso.decode_first import decode_first, uncomputed_tokens, unfinished

PROMPT = 100


def running(*rows: dict[str, int]) -> Rows:
    table = Rows(frozenset(COLUMNS))
    for row in rows:
        table.add(**{"state": State.RUNNING, "prompt_tokens": PROMPT} | row)
    return table


@pytest.mark.parametrize(
    ("computed", "output", "left"),
    [
        (0, 0, 100),
        (99, 0, 1),
        # All of the prompt is in flight; the reply's first token follows in the next step.
        (100, 0, 0),
        # The reply's last token is computed next, or is in flight.
        (109, 10, 0),
        (110, 10, 0),
        # Drafts in flight count as computed.
        (115, 10, 0),
        # Resumed: prompt and output so far are computed again.
        (0, 10, 110),
        (100, 10, 10),
        (108, 10, 2),
    ],
)
def test_prefill_that_is_left(computed: int, output: int, left: int) -> None:
    rows = running({"computed_tokens": computed, "output_tokens": output})
    assert uncomputed_tokens(rows, np.array([0])).tolist() == [left]
    assert unfinished(rows, np.array([0])).tolist() == [left > 0]


def test_an_unfinished_prompt_does_not_stand_before_decodes() -> None:
    rows = running({"computed_tokens": 64}, {"computed_tokens": 100}, {"computed_tokens": 104, "output_tokens": 5})
    assert decode_first(rows, np.array([0, 2, 1])).tolist() == [2, 1, 0]


def test_nobody_runs() -> None:
    assert decode_first(running(), np.empty(0, np.int64)).size == 0


PROGRESS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20)), max_size=20)


@given(PROGRESS.flatmap(lambda progress: st.tuples(st.just(progress), st.permutations(range(len(progress))))))
def test_each_part_is_in_the_policys_order(case: tuple[list[tuple[int, int]], list[int]]) -> None:
    progress, order = case
    rows = running(*({"computed_tokens": computed, "output_tokens": output} for computed, output in progress))
    is_prompt = unfinished(rows, np.arange(len(progress)))
    decodes, prompts = [s for s in order if not is_prompt[s]], [s for s in order if is_prompt[s]]
    assert decode_first(rows, np.array(order, np.int64)).tolist() == decodes + prompts
