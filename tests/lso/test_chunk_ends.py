"""Limits on a step under which a prompt whose chunks end at multiples is computed beside decodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.chunk_ends import advancing_tokens


@pytest.mark.parametrize(
    ("tokens", "multiple", "decodes", "limit"),
    [(600, 1, 100, 600), (600, 528, 100, 527), (628, 528, 100, 628), (520, 528, 100, 520), (560, 528, 550, 1078)],
)
def test_a_limit_that_computes_no_prompt_is_moved(tokens: int, multiple: int, decodes: int, limit: int) -> None:
    assert advancing_tokens(tokens, multiple, decodes) == limit


@given(st.integers(1, 3000), st.integers(2, 900), st.integers(0, 900))
def test_a_prompt_advances_under_every_limit_above_the_decodes(tokens: int, multiple: int, decodes: int) -> None:
    limit = advancing_tokens(tokens + decodes, multiple, decodes)
    assert limit > decodes and (limit < multiple or limit - decodes >= multiple)
    assert advancing_tokens(limit, multiple, decodes) == limit
