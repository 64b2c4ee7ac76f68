"""Print where the prose of Python files is not plain English; exit with 1 if it is not.

Usage: ``python -m tests.plain_english [--count] [--rules a,b] FILE_OR_FOLDER ...``
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.plain_english.prose import prose_of
from tests.plain_english.rules import Finding, findings

RULES = ("imperative", "opening", "fragment", "phrase", "parameter", "form")


def findings_in(path: Path) -> list[Finding]:
    """Return what is not plain in a file, in the order of its lines.

    Args:
        path: a Python file.
    """
    found = {finding for prose in prose_of(path.read_text()) for finding in findings(prose)}
    return sorted(found, key=lambda finding: (finding.line, finding.rule, finding.phrase))


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among files and below folders, sorted.

    Args:
        paths: files and folders.
    """
    return sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings and return the exit status: 1 if there are any, else 0.

    Args:
        arguments: the command line without the name of the program; ``None`` for the arguments of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.plain_english")
    parser.add_argument("paths", nargs="+", type=Path, help="files and folders")
    parser.add_argument("--rules", default=",".join(RULES), help="the rules to check, separated by commas")
    parser.add_argument("--count", action="store_true", help="print how many findings each rule has, file by file")
    options = parser.parse_args(arguments)
    rules = options.rules.split(",")
    total = Counter[str]()
    for path in python_files(options.paths):
        found = [finding for finding in findings_in(path) if finding.rule in rules]
        counts = Counter(finding.rule for finding in found)
        total += counts
        if options.count and found:
            print(f"{path}: {', '.join(f'{count} {rule}' for rule, count in sorted(counts.items()))}")
        elif not options.count:
            for finding in found:
                print(f"{path}:{finding.line}: {finding.rule}: {finding.phrase!r}: {finding.reason}")
    if total:
        print(f"{total.total()} findings: {', '.join(f'{count} {rule}' for rule, count in sorted(total.items()))}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
