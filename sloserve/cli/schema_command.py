"""``sloserve schema``: what editors need to know of the files that operators write."""

import json
from typing import Annotated

import typer

from sloserve.cli import registered
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError


def schema_text(kind: str) -> str:
    """Return the schema of a kind of file as it stands in ``configs/schemas``.

    Raises: ConfigError for an unknown kind.
    """
    from sloserve.core.files.model import unknown

    known = tuple(registered.names(registered.SCHEMAS))
    if kind not in known:
        raise ConfigError(f"schema {kind!r} {unknown(kind, known)}")
    return json.dumps(registered.load(registered.SCHEMAS, kind)(), indent=2) + "\n"


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in registered.names(registered.SCHEMAS) if kind.startswith(incomplete)]


@app.command()
def schema(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=", ".join(registered.names(registered.SCHEMAS)),
            show_default=False,
            autocompletion=_kinds,
        ),
    ],
) -> None:
    """Print the JSON schema of a kind of file, for editors.

    Editors complete and check a file with its schema. A first line `# yaml-language-server: $schema=PATH` names it
    to the YAML extension of VS Code, Neovim and others; the files in configs/ have that line. See docs/editors.md.
    """
    print(schema_text(kind), end="")
