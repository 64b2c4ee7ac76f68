"""``sloserve schema``: what editors need to know of the files that operators write."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sloserve.cli.root import app
from sloserve.core.errors import ConfigError


def _settings() -> dict[str, Any]:
    from sloserve.files.json_schema import schema_of
    from sloserve.settings import PluginSettings

    return schema_of(PluginSettings, "Settings of sloserve serve")


def _fleet() -> dict[str, Any]:
    from sloserve.files.json_schema import schema_of
    from sloserve.fleet.file import FleetSections

    return schema_of(FleetSections, "Fleet of sloserve")


def _keys() -> dict[str, Any]:
    from sloserve.files.json_schema import schema_of
    from sloserve.fleet.gateway.keys import KeysFile

    return schema_of(KeysFile, "Keys of a fleet of sloserve")


def _router() -> dict[str, Any]:
    from sloserve.files.json_schema import schema_of
    from sloserve.fleet.router.settings import RouterSettings

    return schema_of(RouterSettings, "Router of sloserve")


def _profile() -> dict[str, Any]:
    from sloserve.estimator.step_time.profile import Profile
    from sloserve.files.json_schema import schema_of

    return schema_of(Profile, "Profile of sloserve")


def _slo() -> dict[str, Any]:
    from sloserve.workloads.slo_file import slo_file_schema

    return slo_file_schema()


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "settings": _settings,
    "fleet": _fleet,
    "slo": _slo,
    "profile": _profile,
    "router": _router,
    "keys": _keys,
}
"""Kinds of files to what makes their schemas."""


def schema_text(kind: str) -> str:
    """The schema of a kind of file as it stands in ``configs/schemas``. Raises: ConfigError for an unknown kind."""
    from sloserve.files.model import unknown

    if kind not in SCHEMAS:
        raise ConfigError(f"schema {kind!r} {unknown(kind, tuple(SCHEMAS))}")
    return json.dumps(SCHEMAS[kind](), indent=2) + "\n"


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in SCHEMAS if kind.startswith(incomplete)]


@app.command()
def schema(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=", ".join(SCHEMAS), show_default=False, autocompletion=_kinds),
    ],
) -> None:
    """Print the JSON schema of a kind of file, with which editors complete and check it.

    A first line `# yaml-language-server: $schema=PATH` names it to the YAML extension of VS Code, Neovim and others;
    the files in configs/ have that line. See docs/editors.md.
    """
    print(schema_text(kind), end="")
