"""No hint installs ``sloserve`` by its bare name: nothing of ours is published, so it would install somebody else's."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("sloserve", "docs", "deploy", "examples", "configs", "benchmarks", "clients", "tests/deploy")
FILES = ("README.md", "CONTRIBUTING.md", "Makefile", "CMakeLists.txt", "pyproject.toml")
KINDS = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".json", ".service", ".html", ".ts", ".mjs", ""}

BY_NAME = re.compile(
    r"""\b(?: pip3?\s+(?:install|download|wheel) | pipx\s+(?:install|run) | uvx
        | uv\s+(?:add|tool\s+\w+|pip\s+install) )\b
        [^\n`]*? (?<=[\s'"=])
        (?<!--reinstall-package\ ) (?<!--refresh-package\ ) (?<!--find-links\ )
        sloserve (?:\[[^\]\n]*\])? (?:[=<>~!]=[^\s'"]*)? (?= ['"\s`;,)\\] | $ )""",
    re.VERBOSE | re.MULTILINE,
)


def _files() -> list[Path]:
    found = [ROOT / name for name in FILES]
    for place in PLACES:
        found += [path for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in KINDS]
    return [path for path in found if "node_modules" not in path.parts and "wire/page" not in path.as_posix()]


@pytest.mark.slow
def test_nothing_is_installed_by_its_bare_name() -> None:
    found = []
    for path in _files():
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in BY_NAME.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'sloserve[ray]'",
        "pip install sloserve",
        "pip install --find-links dist 'sloserve[gpu,sim]'",
        'uv pip install --torch-backend cpu "sloserve[cpu]"',
        "uv tool install sloserve",
        "pip install sloserve==0.1.0",
        'x: pip install --force-reinstall --no-deps sloserve"',
        "f\"{what}: pip install 'sloserve[{extra}]'\"",
    ],
)
def test_the_pattern_finds_bare_names(line: str) -> None:
    assert BY_NAME.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install -e '.[ray]'",
        "pip install './sloserve-0.1.0-cp311-cp311-linux_x86_64.whl[ray]'",
        'pip install "$(ls dist/sloserve-*.whl)[sim]"',
        "uv pip install --reinstall-package sloserve -e .",
        "pip install ./examples/third_party_policy",
        "sloserve serve builtin:tiny",
    ],
)
def test_the_pattern_leaves_files_and_checkouts_alone(line: str) -> None:
    assert not BY_NAME.search(line)
