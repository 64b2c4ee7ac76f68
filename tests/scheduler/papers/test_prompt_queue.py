"""Which prompts join a step: as many as fill it, or the longest that still fit."""

import numpy as np
import pytest

from sloserve.core.arrays import IntArray
from sloserve.scheduler.papers.prompt_queue import StepRoom, fcfs_prompts, paper_prompts
from tests.snapshots import make_snapshot

NOW_S = 1000.0


def room(tokens: int, blocks: int = 1000, requests: int = 8) -> StepRoom:
    return StepRoom(tokens, blocks, 16, requests)


def admitted(found: tuple[IntArray, int]) -> list[int]:
    order, count = found
    return order[:count].tolist()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (room(1000), [0, 1, 2, 3]),
        (room(301), [0, 1, 2]),  # the last is cut
        (room(300), [0, 1]),
        (room(0), []),
        (room(-5), []),
        (room(1000, blocks=13 + 7), [0, 1]),
        (room(1000, blocks=13 + 6), [0]),
        (room(1000, blocks=-1), []),
        (room(1000, requests=2), [0, 1]),
        (room(1000, requests=0), []),
    ],
)
def test_fcfs_admits_in_order_until_the_step_or_the_blocks_are_full(given: StepRoom, expected: list[int]) -> None:
    at = make_snapshot([{"prompt_tokens": tokens} for tokens in (200, 100, 300, 10)])
    assert admitted(fcfs_prompts(at, given)) == expected


def test_what_was_preempted_is_computed_again_with_its_output() -> None:
    at = make_snapshot([{"prompt_tokens": 50, "output_tokens": 50}, {"prompt_tokens": 10}])
    assert admitted(fcfs_prompts(at, room(100))) == [0]
    assert admitted(paper_prompts(at, room(99), NOW_S)) == [1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (room(1000), [2, 0, 1, 3]),
        (room(450), [2, 1, 3]),  # 300, then the longest up to 150, then up to 50
        (room(299), [0, 3]),
        (room(1000, blocks=19 + 8), [2, 1, 3]),
        (room(1000, requests=2), [2, 0]),
        (room(5), []),
    ],
)
def test_paper_fills_the_step_with_the_longest_that_fit(given: StepRoom, expected: list[int]) -> None:
    at = make_snapshot([{"prompt_tokens": tokens} for tokens in (250, 100, 300, 10)])
    order, count = paper_prompts(at, given, NOW_S)
    assert order[:count].tolist() == expected
    assert sorted(order.tolist()) == at.waiting.tolist()


def test_the_order_names_no_more_than_could_be_admitted_under_fcfs() -> None:
    at = make_snapshot([{"prompt_tokens": 1}] * 9)
    order, _ = fcfs_prompts(at, room(100, requests=3))
    np.testing.assert_array_equal(order, [0, 1, 2])
