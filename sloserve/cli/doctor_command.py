"""``sloserve doctor``."""

from dataclasses import asdict
from typing import Annotated

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app
from sloserve.core import json_text


@app.command()
def doctor(
    host: Annotated[str, typer.Option(help="Address that servers shall listen on.")] = "127.0.0.1",
    port: Annotated[
        list[int] | None, typer.Option(help="Port that shall be free; may be repeated. Default: 8000.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check this machine and installation before serving.

    Looked at are vLLM, CUDA, memory and limits, clock, ports and extras, and each finding says what to do. Nothing
    is changed, and vLLM is not loaded. The exit status is 1 if there is a fault, which keeps a server from starting; a
    warning and an absent part do not. See docs/doctor.md.
    """
    from sloserve.cli.doctor.examine import examine
    from sloserve.cli.doctor.finding import FindingState

    findings = list(examine(host, port or [8000]))
    if as_json:
        print(json_text.dumps([asdict(one) for one in findings], indent=2))
    else:
        width = max(len(one.check) for one in findings)
        for one in findings:
            print(f"{one.state:<7}  {one.check:<{width}}  {one.found}")
            if one.remedy:
                print(f"{'':<7}  {'':<{width}}  -> {one.remedy}")
    if any(one.state is FindingState.FAULT for one in findings):
        raise typer.Exit(1)
