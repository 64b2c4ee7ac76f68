"""Write descriptions of parameters as capitalised whole phrases that end in a full stop.

Usage: ``python -m tests.plain_english.parameters FILE_OR_FOLDER ...``
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.plain_english.prose import Kind, Prose, prose_of

_WORD = re.compile(r"[a-z]{2,}(?:'s)?(?![\w.(=\[{'/])")
"""A word that a sentence begins with a capital; no name of code, unit or symbol."""
_ENDS = re.compile(r"[.!?:][)\"'`]?$|[.!?]\)$")
_SMALL = frozenset({"inf", "nan", "numpy", "torch", "pip", "nginx", "pytest"})
"""Words that are names."""


def is_small(text: str) -> bool:
    """Return whether a description begins with a small letter that should be a capital.

    Args:
        text: The description of a parameter, without its name.
    """
    found = _WORD.match(text)
    return found is not None and found[0] not in _SMALL


def is_open(text: str) -> bool:
    """Return whether a description ends without a full stop.

    Args:
        text: The description of a parameter, without its name.
    """
    return not _ENDS.search(text.rstrip())


def written(source: str) -> str:
    """Return a source file with its descriptions of parameters in this form.

    Args:
        source: The text of the file.
    """
    lines = source.split("\n")
    for prose in prose_of(source):
        if prose.kind is Kind.PARAMETER:
            _write(lines, prose)
    return "\n".join(lines)


def _write(lines: list[str], prose: Prose) -> None:
    parts = prose.text.split("\n")
    first, last = prose.line - 1, prose.line + len(parts) - 2
    if is_open(prose.text) and lines[last].rstrip().endswith(parts[-1]):
        lines[last] = lines[last].rstrip() + "."
    if is_small(prose.text) and (at := lines[first].find(parts[0])) >= 0:
        lines[first] = f"{lines[first][:at]}{parts[0][0].upper()}{lines[first][at + 1 :]}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite the Python files among files and below folders.

    Args:
        arguments: Files and folders; ``None`` for the arguments of this process.
    """
    paths = [Path(each) for each in (sys.argv[1:] if arguments is None else arguments)]
    for path in (file for each in paths for file in (sorted(each.rglob("*.py")) if each.is_dir() else [each])):
        source = path.read_text(encoding="utf-8")
        if (text := written(source)) != source:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
