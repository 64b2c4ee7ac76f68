import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.lso.pausing import short_of_blocks

BLOCK = 16


def sits_out(computed: list[int], *, free: int, prompt: int = 10, may: list[bool] | None = None) -> list[int]:
    n = len(computed)
    return short_of_blocks(
        np.array(computed),
        np.array(computed) >= prompt,
        np.ones(n, np.bool_) if may is None else np.array(may),
        layout=KVLayout.full(BLOCK),
        decode_tokens=1,
        free_blocks=free,
    ).tolist()


def test_as_many_as_blocks_are_missing_the_last_served_first() -> None:
    assert sits_out([16, 32, 48, 64], free=0) == [3, 2, 1, 0]
    assert sits_out([16, 32, 48, 64], free=1) == [3, 2, 1]
    assert sits_out([16, 32, 48, 64], free=3) == [3]
    assert sits_out([16, 32, 48, 64], free=4) == []


def test_only_those_that_need_a_block() -> None:
    assert sits_out([16, 33, 47, 64], free=0) == [3, 0]
    assert sits_out([16, 33, 47, 64], free=1) == [3]
    # Its prompt is not computed yet: vLLM gives it no chunk for which it has no blocks.
    assert sits_out([16, 32], free=0, prompt=20) == [1]


@pytest.mark.parametrize("free", [0, 1])
def test_only_those_that_may(free: int) -> None:
    assert sits_out([16, 32, 48, 64], free=free, may=[True, False, True, False]) == [2, 0]


def test_nobody() -> None:
    assert sits_out([], free=0) == []
