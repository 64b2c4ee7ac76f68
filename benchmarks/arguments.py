"""Arguments of benchmarks: what ``--help`` says is the text at the head of the script."""

import argparse


def parser_for(text: str | None) -> argparse.ArgumentParser:
    """A parser without arguments yet. text: of the script."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def is_quick(text: str | None) -> bool:
    """Whether the script, which takes no other arguments, is to run once and small, and to write nothing."""
    parser = parser_for(text)
    parser.add_argument("--quick", action="store_true", help="once and small; writes nothing")
    return bool(parser.parse_args().quick)
