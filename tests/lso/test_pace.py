"""The pace that a request asks for is one figure, whichever policy asks."""

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sloserve
from sloserve.core.slo import Targets
from sloserve.lso.pace import pace_s
from sloserve.scheduler.andes.outlook import reading_tds
from sloserve.scheduler.policy import Snapshot

CASES = [
    ({"tpot_s": 0.05}, 0.05),
    ({"tds": 10.0}, 0.1),
    ({"tpot_s": 0.05, "tds": 10.0}, 0.05),
    ({"tpot_s": 0.5, "tds": 10.0}, 0.1),
    ({"ttft_s": 1.0}, None),
]


@pytest.mark.parametrize(("targets", "expected"), CASES)
def test_the_tighter_of_tpot_and_speed_counts(
    snapshot: Callable[..., Snapshot], targets: dict[str, float], expected: float | None
) -> None:
    at = snapshot([targets])
    (found,) = pace_s(at.rows, at.waiting)
    assert Targets(**targets).pace_s == expected
    assert np.isnan(found) if expected is None else found == expected
    if expected is not None:
        assert reading_tds(at.rows, at.waiting) == pytest.approx([1.0 / expected])


@pytest.mark.slow
def test_no_policy_makes_a_pace_of_tds_itself() -> None:
    package = Path(sloserve.__file__).parent
    found = set()
    for path in (*package.glob("scheduler/**/*.py"), *package.glob("lso/*.py"), *package.glob("vllm_plugin/**/*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".tds" in text else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ".tds" in ast.unparse(node.right):
                found.add(path.name)
    # Admission judges each target by itself.
    assert not found - {"refusals.py"}  # pace.py has the compiled rule
