"""The command ``sloserve`` without its subcommands, and its exit statuses."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NoReturn

import typer
from typer.core import TyperGroup

import sloserve
from sloserve.cli.flag_numbers import read_strictly
from sloserve.cli.registered import import_commands
from sloserve.cli.value_names import name_values
from sloserve.core.errors import ConfigError
from sloserve.core.extras import explained
from sloserve.core.json_lines import lines_of
from sloserve.core.nearest import nearest

_UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of typer's usage errors; its module differs, since only some versions of typer bring their own click."""


class OneLine(TyperGroup):
    """A group of commands with errors in one line, strict numbers and help that is not cut.

    Wrong flags and arguments are reported in one line, as all other mistakes are; numbers in flags are read by our
    rule. The help lists commands under :attr:`headings`, each with its whole first sentence.
    """

    headings: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of commands by the heading of the help under which they stand; all others stand under the last heading."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section of the help for each heading that has commands."""
        shown = {name: one for name in self.list_commands(ctx) if not (one := self.get_command(ctx, name)).hidden}
        widest = max(map(len, shown), default=0)
        for heading, names in self._sections(shown).items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{widest}}", _first_sentence(shown[name].help)) for name in names])

    def _sections(self, shown: Collection[str]) -> dict[str, list[str]]:
        """Return the names of commands by the heading that they stand under."""
        sections = {heading: [name for name in names if name in shown] for heading, names in self.headings.items()}
        others = [name for name in shown if not any(name in names for names in self.headings.values())]
        sections["Other commands" if self.headings else "Commands"] = others
        return {heading: names for heading, names in sections.items() if names}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` name. Raises: ConfigError if there is none of this name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise ConfigError(_unknown("command", args[0], self.list_commands(ctx), ctx))
        return super().resolve_command(ctx, args)

    def get_command(self, *args: Any, **named: Any) -> Any:
        command = super().get_command(*args, **named)
        return None if command is None else name_values(read_strictly(command))

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
    said = error.format_message().strip().removesuffix(".").replace("Value error, ", "")  # pydantic's words
    if error.ctx is None or "\n" in said:
        return error  # type: ignore[no-any-return]
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and option is not None:
        flags = [flag for parameter in error.ctx.command.params for flag in parameter.opts]
        return ConfigError(_unknown("flag", option, flags, error.ctx))
    return ConfigError(f"{said}; see {_path(error.ctx)} --help")


_PARTS_OF_URL: Final = frozenset({"--port", "--host", "-p"})


def _unknown(what: str, name: str, known: Iterable[str], ctx: Any) -> str:
    """Return the message on a name that the command of ``ctx`` does not have.

    Dashes at the beginning do not count when names are compared: all flags have them.
    """
    bare = {one.lstrip("-"): one for one in known}
    if what == "command" and name == "help":
        return f"no such command: {name}; use {_path(ctx)} COMMAND --help"
    if "--url" in bare.values() and name in _PARTS_OF_URL:
        return f"no such flag: {name}; the address is one flag: --url http://HOST:PORT"
    close = nearest(name.lstrip("-"), bare)
    hint = f"; see {_path(ctx)} --help" if close is None else f"; did you mean {bare[close]}? See {_path(ctx)} --help"
    return f"no such {what}: {name}{hint}"


def _path(ctx: Any) -> str:
    """Return the words that call the command of ``ctx``, from ``sloserve`` on."""
    return f"sloserve{ctx.command_path.removeprefix(ctx.find_root().command_path)}"


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a command's help, on one line."""
    words = " ".join((text or "").partition("\n\n")[0].split())
    first, end, _ = words.partition(". ")
    return f"{first}." if end else words


class Root(OneLine):
    """The commands of ``sloserve`` itself."""

    headings: ClassVar[Mapping[str, Sequence[str]]] = {
        "Serve": ("serve", "check-config", "policies", "presets", "doctor"),
        "While serving": ("status", "top", "key", "edge"),
        "Measure and choose": (
            "advise",
            "simulate",
            "workloads",
            "bench",
            "judge",
            "profile",
            "record",
            "whatif",
            "explain",
            "train-length",
        ),
        "Files": ("configs", "schema"),
        "Several models": ("fleet", "train-router", "router-quality"),
    }


app = typer.Typer(cls=Root, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


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
