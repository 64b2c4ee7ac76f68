"""Every text file is read and written in a named encoding, which no locale of a machine changes.

What users write is read as ``utf-8-sig``, so that the byte order mark of some editors is no part of the text.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sloserve", "benchmarks", "examples", "docs/site")
MODE_AT = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0, "SpooledTemporaryFile": 1}
"""Functions whose mode says whether they open text, and which of their arguments the mode is."""
BINARY_UNLESS_T = ("TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile")
OTHER_OPEN = ("os", "PageMemory", "Measurements", "tarfile", "zipfile")
"""Owners of an ``open`` that opens no text."""


def _mode(call: ast.Call, at: int) -> str | None:
    """Return the mode of a call; ``""`` for none, ``None`` where the argument in its place is no mode."""
    given = next((k.value for k in call.keywords if k.arg == "mode"), None) or next(iter(call.args[at:]), None)
    if given is None:
        return ""
    is_mode = isinstance(given, ast.Constant) and isinstance(given.value, str) and set(given.value) <= set("rwaxbt+")
    return given.value if is_mode else None  # type: ignore[attr-defined]


def _is_text(call: ast.Call) -> bool:
    """Whether ``call`` reads or writes text in an encoding that it has to name."""
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    owner = ast.unparse(called.value) if isinstance(called, ast.Attribute) else None
    if name in ("read_text", "write_text", "TextIOWrapper"):
        return not (owner or "").startswith("distribution(")  # whose files are UTF-8, and which takes no encoding
    if any(k.arg in ("text", "universal_newlines") and ast.unparse(k.value) == "True" for k in call.keywords):
        return name in ("run", "Popen", "check_output", "check_call", "call")
    if name not in MODE_AT or (name == "open" and owner in OTHER_OPEN):
        return False
    if owner == "gzip":
        return "t" in (_mode(call, 1) or "")
    mode = _mode(call, 0 if name == "open" and owner is not None else MODE_AT[name])
    if mode is None or (mode == "" and name in BINARY_UNLESS_T):
        return False
    return "b" not in mode


def unnamed(source: str) -> list[int]:
    """Lines of ``source`` with a call that names no encoding."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if _is_text(call) and not any(k.arg == "encoding" for k in call.keywords)]


@pytest.mark.slow
def test_every_text_file_has_a_named_encoding() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in unnamed(path.read_text("utf-8"))]
    assert len(files) > 500 and found == [], 'add encoding="utf-8", or "utf-8-sig" for what users write'


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("path.read_text()", True),
        ("path.read_text(errors='replace')", True),
        ("distribution('numpy').read_text('RECORD')", False),
        ("path.write_text(text, encoding='utf-8')", False),
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("open(path, mode='w', newline='')", True),
        ("path.open()", True),
        ("path.open('ab')", False),
        ("os.open(path, os.O_RDONLY)", False),
        ("files.open(id)", False),
        ("gzip.open(path, 'rt')", True),
        ("gzip.open(path)", False),
        ("os.fdopen(fd, 'w')", True),
        ("TemporaryFile()", False),
        ("NamedTemporaryFile('w')", True),
        ("io.TextIOWrapper(file)", True),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command)", False),
    ],
)
def test_a_call_without_an_encoding_is_found(call: str, is_found: bool) -> None:
    assert bool(unnamed(call)) == is_found
