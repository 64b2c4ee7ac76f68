"""``sloserve configs``: the example files, without a checkout."""

from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.output_flags import JsonFlag, show_names
from sloserve.cli.root import app


@app.command()
def configs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Copy these examples; none: list all.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Copy into this folder, all examples if none is named.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the example files, or copy them to a folder.

    There are files for servers, fleets, SLOs and dashboards.
    """
    from sloserve.core.files.examples import copied, examples, purpose

    if names or to is not None:
        for path in copied(names or [], to or Path()):
            print(path)
        return
    show_names({name: purpose(path) for name, path in examples().items()}, as_json)
