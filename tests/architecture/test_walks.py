"""docs/walks.md names files and functions that exist, and counts its stops and climbs right."""

import ast
import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "walks.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def stops_of(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", text, re.MULTILINE)


STOPS = stops_of(PAGE)


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


def heights(package: str) -> Mapping[str, int]:
    """How deep each of a package's parts is, by its import contract; 0 is on top."""
    (layers,) = [c["layers"] for c in CONTRACTS if c.get("containers") == [package]]
    return {part: depth for depth, layer in enumerate(layers) for part in re.findall(r"\w+", layer)}


def climbs(stops: Sequence[tuple[str, str]]) -> int:
    """Stops in a package, within the fleet in a subpackage, that stands above the one before."""
    packages, fleet = heights("sloserve"), heights("sloserve.fleet")
    parts = [file.split("/") for file, _ in stops]
    depth = [(packages[part[1]], fleet[part[2]] if part[1] == "fleet" else 0) for part in parts]
    return sum(after < before for before, after in pairwise(depth))


def test_the_page_counts_stops_and_climbs_as_they_are() -> None:
    said = re.findall(r"^\| [^|`]+ \| (\d+) \| (\d+) \| \d+: ", PAGE, re.MULTILINE)
    walks = [stops_of(section) for section in PAGE.split("\n## ")[1:]]
    assert [(int(stops), int(up)) for stops, up in said] == [(len(walk), climbs(walk)) for walk in walks]
