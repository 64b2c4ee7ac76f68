"""Arguments of benchmarks: what ``--help`` says is the text at the head of the script."""

import argparse
from pathlib import Path


def parser_for(text: str | None, **defaults: int | float | str | Path) -> argparse.ArgumentParser:
    """A parser. text: of the script. defaults: an argument each, of its default's type; of ``False`` a flag."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser


def is_quick(text: str | None) -> bool:
    """Whether the script, which takes no other arguments, is to run once and small, and to write nothing."""
    parser = parser_for(text)
    parser.add_argument("--quick", action="store_true", help="once and small; writes nothing")
    return bool(parser.parse_args().quick)


def quick_and_out(text: str | None, out: Path) -> tuple[bool, Path | None]:
    """Whether the script is to run once and small, and the file or folder to write: ``--out``; without it ``out``, or
    nothing if small.
    """
    parser = parser_for(text)
    parser.add_argument("--quick", action="store_true", help="once and small; writes nothing without --out")
    parser.add_argument("--out", type=Path, help=f"instead of {out.name}")
    given = parser.parse_args()
    return given.quick, given.out or (None if given.quick else out)
