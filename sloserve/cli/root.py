"""The command ``sloserve`` without its subcommands, and its exit statuses."""

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import sloserve
from sloserve.cli.flag_numbers import read_strictly
from sloserve.cli.registered import import_commands
from sloserve.core.errors import ConfigError
from sloserve.core.extras import explained
from sloserve.core.json_lines import lines_of

_UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of typer's usage errors; its module differs, since only some versions of typer bring their own click."""


class OneLine(TyperGroup):
    """A group of commands with errors in one line and strict numbers.

    Wrong flags and arguments are reported in one line, as all other mistakes are; numbers in flags are read by our
    rule.
    """

    def get_command(self, *args: Any, **named: Any) -> Any:
        command = super().get_command(*args, **named)
        return None if command is None else read_strictly(command)

    def make_context(self, *args: Any, **named: Any) -> Any:
        try:
            return super().make_context(*args, **named)
        except _UsageError as error:
            raise _one_line(error) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            raise _one_line(error) from error


def _one_line(error: Any) -> Exception:
    """Return the one-line error to show; the error itself if it shows the help, since nothing was given."""
    said = error.format_message().strip().removesuffix(".")
    if error.ctx is None or "\n" in said:
        return error  # type: ignore[no-any-return]
    command = error.ctx.command_path.removeprefix(error.ctx.find_root().command_path)
    return ConfigError(f"{said}; see sloserve{command} --help")


app = typer.Typer(cls=OneLine, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Run the command line: a mistake of the operator prints one line to stderr and exits with status 2."""
    try:
        import_commands()
        app()
    except ConfigError as error:
        _exit(error)
    except ModuleNotFoundError as error:
        mistake = explained(error)
        if mistake is None:
            raise
        _exit(mistake)


def _exit(mistake: ConfigError) -> NoReturn:
    for line in lines_of(str(mistake)):
        print(f"sloserve: {line}", file=sys.stderr)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sloserve {sloserve.__version__}")
        raise typer.Exit


@app.callback(help="Per-request service level objectives for vLLM.")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the options that stand before a command."""
