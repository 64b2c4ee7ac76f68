"""docs/walks.md names files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STOPS = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", (ROOT / "docs" / "walks.md").read_text(), re.MULTILINE)


def defined(file: Path) -> set[str]:
    """Functions of the file, a method as ``Class.method``."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.slow
def test_each_stop_of_a_walk_exists() -> None:
    assert len(STOPS) > 40
    missing = [f"{file}: {name}" for file, name in STOPS if name not in defined(ROOT / file)]
    assert not missing
