"""docs/walks.md names files and functions that exist, and counts the files that each walk enters."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "walks.md").read_text()


def entries_of(text: str) -> list[tuple[str, str]]:
    """Return the (file, function) pairs of the numbered lists of ``text``."""
    return re.findall(r"^\d+\. `([^`]+)` `([^`]+)`$", text, re.MULTILINE)


ENTRIES = entries_of(PAGE)


def defined(file: Path) -> set[str]:
    """Return the functions of the file, a method as ``Class.method``."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.slow
def test_each_file_of_a_walk_has_the_function() -> None:
    assert len(ENTRIES) > 90
    missing = [f"{file}: {name}" for file, name in ENTRIES if name not in defined(ROOT / file)]
    assert not missing


def test_the_page_counts_the_files_that_are_entered() -> None:
    stated = [int(count) for count in re.findall(r"^\| [^|`]+ \| (\d+) \| \d+: ", PAGE, re.MULTILINE)]
    walks = [entries_of(section) for section in PAGE.split("\n## ")[1:]]
    assert stated == [len({file for file, _ in walk}) for walk in walks]
    assert [len(walk) for walk in walks] == stated, "a file stands twice in a walk"
