"""A small batch through OpenAI's SDK and a live fleet of stand-ins: each line has one result, each phase its time."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow


def test_a_small_batch_goes_through_the_sdk(printed: Callable[..., str]) -> None:
    said = dict(line.rsplit(maxsplit=1) for line in printed("fleet.batch_sdk", "--quick").splitlines()[1:])
    assert said["lines"] == "200" and float(said["all"]) > float(said["upload"])
    assert float(said["gateway, peak RSS MB"]) > 0 and float(said["agent, peak RSS MB"]) > 0
