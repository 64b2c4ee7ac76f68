"""The command ``sloserve explain``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError
from sloserve.sim.record_command import FolderFlag, chosen_segments

if TYPE_CHECKING:
    from sloserve.engine.recording.reading import Recording

_NOT_TRUSTED = 3
"""Exit status where the replay of what ran is too far from the recording to name a cause."""


@app.command()
def explain(
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST",
            help="The request as `sloserve top`, the live page and --late name it: RANK-NUMBER, or its number alone.",
            show_default=False,
        ),
    ] = None,
    *,
    late: Annotated[bool, typer.Option("--late", help="List the requests that missed a target.")] = False,
    worst: Annotated[int, typer.Option(help="Explain the N requests that were late by most.", metavar="N")] = 0,
    recording: Annotated[
        str | None, typer.Option(help="Name of the recording. Default: the latest, of the rank that is named.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Replays of each change; they differ in how step times vary.")] = 3,
    folder: FolderFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Say why a request was late, and what would have saved it.

    What the recording says comes first. Then the traffic around the request is replayed as it was, and with one fact
    changed at a time. A cause is named only if the request is late in every replay of what ran, and in time in every
    replay with the change; otherwise the exit status is 3. `sloserve serve --record-mib 64` makes recordings. See
    docs/explain.md.
    """
    from sloserve.core import json_text
    from sloserve.engine.recording.reading import read_recording
    from sloserve.sim.replay.explain_course import late_courses
    from sloserve.sim.replay.explain_text import late_text

    if (request is not None) + late + bool(worst) != 1 or worst < 0 or seeds < 1:
        raise ConfigError("explain: give a REQUEST, --late or --worst N with N >= 1, and --seeds >= 1; see --help")
    rank, number = (None, None) if request is None else _named(request)
    name, paths = _segments(folder, recording, rank)
    read, rank = read_recording(paths), name.rpartition("-rank")[2]
    if number is None:
        ordered = late_courses(read)
        if late:
            rows = [one.figures() for one in ordered]
            print(
                json_text.dumps({"name": name, "late": rows}, indent=2)
                if as_json
                else "\n".join(late_text(rank, ordered))
            )
            return
        ordered.sort(key=lambda one: -one.late_by_s)
        numbers = [one.request.number for one in ordered[:worst]]
        if not numbers:
            raise ConfigError(f"recording {name}: no request was late")
    else:
        numbers = [number]
    if not _explained(read, name, rank, numbers, seeds, as_json):
        raise typer.Exit(_NOT_TRUSTED)


def _explained(read: "Recording", name: str, rank: str, numbers: list[int], seeds: int, as_json: bool) -> bool:
    """Print the explanations of requests; return whether each could be explained."""
    from rich.console import Console

    from sloserve.core import json_text
    from sloserve.core.progress_bar import progress
    from sloserve.sim.replay.engine_of import fitted_steps
    from sloserve.sim.replay.explain import explain as explained
    from sloserve.sim.replay.explain_text import explain_text

    fitted, console, all_trusted = fitted_steps(read), Console(stderr=as_json), True
    found = []
    for number in numbers:
        with progress("replays", console) as bar:
            one = explained(read, number, seeds=seeds, fitted=fitted, on_progress=bar.update)
        all_trusted &= one.mistrust is None
        text = list(explain_text(f"{rank}-{number}", one))
        found.append({"request": f"{rank}-{number}", "recording": name, **one.figures(), "text": text})
        if not as_json:
            for line in text:
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            console.print()
    if as_json:
        print(json_text.dumps(found[0] if len(found) == 1 else found, indent=2))
    return all_trusted


def _named(request: str) -> tuple[str | None, int]:
    """Return the rank, ``None`` if none is named, and the number of a request."""
    rank, dash, number = request.rpartition("-")
    if not number.isdecimal() or (dash and not rank.isdecimal()):
        raise ConfigError(
            f"request {request!r}: is not RANK-NUMBER as in 0-12, nor a number; request ids are not recorded, --late "
            "lists the late requests"
        )
    return rank if dash else None, int(number)


def _segments(folder: Path | None, name: str | None, rank: str | None) -> tuple[str, list[Path]]:
    """Return the name and the segments of the chosen recording, or else of the latest one of a rank."""
    found, chosen = chosen_segments(folder, name)
    if name is None and rank is not None:
        of_rank = [one for one in found if one.endswith(f"-rank{rank}")]
        if not of_rank:
            raise ConfigError(f"rank {rank}: has no recording among {', '.join(found)}")
        chosen = of_rank[-1]
    return chosen, found[chosen]
