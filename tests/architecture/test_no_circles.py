"""No modules import each other in a circle, neither at run time nor for their types."""

import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROM = re.compile(r"^[ \t]*from (sloserve[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*import (sloserve[\w.]+)", re.MULTILINE)


def imports() -> dict[str, set[str]]:
    """For each module the modules that it names; a name from a package is the module of that name, if there is one."""
    files = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
        for f in (ROOT / "sloserve").rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, file in files.items():
        text = file.read_text()
        named = {
            f"{origin}.{name}" if f"{origin}.{name}" in files else origin
            for origin, names in FROM.findall(text)
            for name in re.findall(r"(?:^|[(,])\s*(\w+)", names)
        } | set(IMPORT.findall(text))
        found[module] = {name for name in named if name in files and name != module}
    return found


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    found = imports()
    assert len(found) > 500
    assert "sloserve.http3.request_stream" in found["sloserve.http3.server_connection"]
    try:
        graphlib.TopologicalSorter(found).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
