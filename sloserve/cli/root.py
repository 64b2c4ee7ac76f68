"""The command without its subcommands, and how it ends."""

import sys
from typing import Annotated

import typer

import sloserve
from sloserve.core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


VLLMArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL [VLLM_FLAG]", help="Model and flags exactly as for `vllm serve`.", show_default=False
    ),
]


def main() -> None:
    """Entry point: each of an operator's mistakes ends with one line on stderr, and all with exit status 2."""
    try:
        app()
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"sloserve: {line}", file=sys.stderr)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sloserve {sloserve.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Per-request service level objectives for vLLM."""
