"""The commands ``sloserve record show`` and ``sloserve record export``, which read what engines have recorded."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import OneLine, app
from sloserve.core import json_text

record_app = typer.Typer(cls=OneLine, no_args_is_help=True, help="Read what engines have recorded.")
app.add_typer(record_app, name="record")

FolderFlag = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of recordings. Default: sloserve/recordings in your folder of state."),
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of a recording. Default: the latest.", show_default=False)
]


@record_app.command()
def show(name: NameArgument = None, folder: FolderFlag = None, as_json: JsonFlag = False) -> None:
    """Show what a recording holds.

    Without NAME the latest recording is shown, and the names of the others are listed. Attainment counts requests with
    targets that ended. `sloserve serve --record-mib 64` makes recordings. See docs/record.md.
    """
    from sloserve.sim.recorded_run import summary

    found, chosen = chosen_segments(folder, name)
    facts = summary(_read(found[chosen]))
    if as_json:
        print(json_text.dumps({"name": chosen, **facts, "recordings": list(found)}, indent=2))
        return
    print(f"recording {chosen}")
    for key, value in facts.items():
        print(f"  {key.replace('_', ' ')}: {_shown(value)}")
    others = [one for one in found if one != chosen]
    if others:
        print(f"others: {', '.join(others)}")


@record_app.command()
def export(
    name: NameArgument = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for trace.csv and slo.yaml; it must not have them yet.")],
    folder: FolderFlag = None,
) -> None:
    """Write a recording as a trace and a file of SLOs.

    `sloserve simulate`, `bench` and `advise` read both. Tenants are keyed hashes, and prompts share what they shared.
    See docs/record.md.
    """
    from sloserve.sim.recorded_run import write_trace

    found, chosen = chosen_segments(folder, name)
    recording = _read(found[chosen])
    written, left_out = write_trace(recording, out)
    reason = f"; {left_out} unfinished or without output are left out" if left_out else ""
    print(f"wrote {written} requests to {out / 'trace.csv'}, their classes to {out / 'slo.yaml'}{reason}")
    flags = f"--trace {out / 'trace.csv'} --trace-block-tokens {recording.head.stretch_tokens} --slo {out / 'slo.yaml'}"
    print(f"try: sloserve simulate {flags} --rate-scale 1 --profile PROFILE --policy stock,edf,auto")


def chosen_segments(folder: Path | None, name: str | None) -> tuple[dict[str, list[Path]], str]:
    """Return the segments of all recordings in a folder by name, and the name of the chosen one.

    Raises: ConfigError if there is no recording, or none of that name.
    """
    found = _segments(folder)
    return found, _chosen(found, name)


def _segments(folder: Path | None) -> dict[str, list[Path]]:
    from sloserve.engine.recording.folder import recordings_folder
    from sloserve.engine.recording.reading import recordings

    return recordings(recordings_folder(None) if folder is None else folder)


def _chosen(found: dict[str, list[Path]], name: str | None) -> str:
    from sloserve.core.errors import ConfigError

    if name is None:
        return list(found)[-1]
    if name not in found:
        raise ConfigError(f"recording {name!r}: is not one of {', '.join(found)}")
    return name


def _read(paths: list[Path]) -> Any:
    from sloserve.engine.recording.reading import read_recording

    return read_recording(paths)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items()) or "none"
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
