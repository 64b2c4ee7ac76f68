"""Facts that could be taken for one another reach the compiled code by name: no order of arguments can swap two."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels import WorthColumns, WorthEngine
from sloserve.core.kernels.requests import ProgressColumns
from sloserve.core.kernels.step_budget import PromiseColumns
from tests.csrc.facts import COUNTED, ENGINE, PROGRESS, STATED
from tests.csrc.stub import STUB

MOST_ALIKE = 3
"""Arguments of one type that a compiled function may take by position."""
REAL, NUMBER = np.zeros(1), np.zeros(1, np.int64)
PROMISED = dict.fromkeys(STATED, REAL) | {"output_tokens": NUMBER, "in_flight_tokens": NUMBER}
STRUCTS: list[tuple[type, dict[str, Any]]] = [
    (WorthEngine, dict(ENGINE)),
    (WorthColumns, dict.fromkeys(STATED, REAL) | dict.fromkeys(COUNTED, NUMBER)),
    (PromiseColumns, PROMISED),
    (ProgressColumns, dict.fromkeys(PROGRESS, NUMBER)),
]
CASES = [pytest.param(made, facts, name, id=f"{made.__name__}-{name}") for made, facts in STRUCTS for name in facts]


def refusal(made: type, facts: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names that the TypeError says the constructor takes, and those that it says it was given."""
    with pytest.raises(TypeError) as refused:
        made(**facts)
    takes, given = str(refused.value).split("Invoked with types: ")
    return re.findall(r"(\w+): (?:float|ndarray)", takes), re.findall(r"(\w+): (?:float|ndarray)", given)


@pytest.mark.parametrize(("made", "facts", "name"), CASES)
def test_a_fact_left_out_is_refused_by_name(made: type, facts: dict[str, Any], name: str) -> None:
    made(**facts)
    takes, given = refusal(made, {key: value for key, value in facts.items() if key != name})
    assert [one for one in takes if one not in given] == [name]


@pytest.mark.parametrize(("made", "facts", "name"), CASES)
def test_a_fact_by_another_name_is_refused_by_that_name(made: type, facts: dict[str, Any], name: str) -> None:
    takes, given = refusal(made, {f"{key}_" if key == name else key: value for key, value in facts.items()})
    assert [one for one in given if one not in takes] == [f"{name}_"]


@pytest.mark.parametrize(("made", "facts"), STRUCTS)
def test_facts_by_position_are_refused(made: type, facts: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        made(*facts.values())


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    tree = ast.parse(STUB.read_text())
    for node in tree.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef):
                yield f"{getattr(node, 'name', '')}.{inner.name}", inner


def test_no_compiled_function_takes_many_of_one_type_by_position() -> None:
    found = dict(functions())
    assert len(found) > 60
    for name, function in found.items():
        of_type = Counter(ast.dump(one.annotation) for one in function.args.args if one.annotation is not None)
        assert max(of_type.values(), default=0) <= MOST_ALIKE, f"{name}: take the facts by nb::kw_only()"
