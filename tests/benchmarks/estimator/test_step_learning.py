"""The benchmark of step times learnt on line, once and small."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow


def test_quick(printed: Callable[..., str]) -> None:
    (engine,) = json.loads(printed("estimator.step_learning", "--quick")).values()
    for case in ("no profile", "wrong profile"):
        assert engine[case]["32"]["mean_error_percent"] < engine[case]["0"]["mean_error_percent"]
    assert engine["right profile"]["0"]["mean_error_percent"] == 0.0
