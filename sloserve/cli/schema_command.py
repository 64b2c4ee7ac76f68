"""``sloserve schema``: what editors need to know of the files that operators write."""

import json
from typing import Annotated

import typer

from sloserve.cli.root import app
from sloserve.core.errors import ConfigError

KINDS = ("settings", "fleet", "slo", "profile", "router", "keys")
"""Of files that have a schema."""


def schema_text(kind: str) -> str:
    """The schema of a kind of file as it stands in ``configs/schemas``. Raises: ConfigError for an unknown kind."""
    from pydantic import BaseModel

    from sloserve.core.files.json_schema import schema_of
    from sloserve.core.files.model import unknown
    from sloserve.estimator.step_time.profile import Profile
    from sloserve.fleet.file import FleetSections
    from sloserve.fleet.gateway.keys import KeysFile
    from sloserve.fleet.router.settings import RouterSettings
    from sloserve.scheduler.settings import PluginSettings
    from sloserve.sim.workloads.slo_file import slo_file_schema

    if kind not in KINDS:
        raise ConfigError(f"schema {kind!r} {unknown(kind, KINDS)}")
    models: dict[str, tuple[type[BaseModel], str]] = {
        "settings": (PluginSettings, "Settings of sloserve serve"),
        "fleet": (FleetSections, "Fleet of sloserve"),
        "profile": (Profile, "Profile of sloserve"),
        "router": (RouterSettings, "Router of sloserve"),
        "keys": (KeysFile, "Keys of a fleet of sloserve"),
    }
    found = slo_file_schema() if kind == "slo" else schema_of(*models[kind])
    return json.dumps(found, indent=2) + "\n"


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


@app.command()
def schema(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=", ".join(KINDS), show_default=False, autocompletion=_kinds),
    ],
) -> None:
    """Print the JSON schema of a kind of file, with which editors complete and check it.

    A first line `# yaml-language-server: $schema=PATH` names it to the YAML extension of VS Code, Neovim and others;
    the files in configs/ have that line. See docs/editors.md.
    """
    print(schema_text(kind), end="")
