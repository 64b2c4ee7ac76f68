"""The commands ``sloserve record show``, ``export`` and ``check``, which read what engines have recorded."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import OneLine, app
from sloserve.core import json_text

record_app = typer.Typer(cls=OneLine, no_args_is_help=True, help="Read what engines have recorded.")
app.add_typer(record_app, name="record")


class ExportFormat(StrEnum):
    """Formats of an exported trace."""

    SLOSERVE = "sloserve"
    AIPERF = "aiperf"
    VLLM = "vllm"


FolderFlag = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of recordings. Default: sloserve/recordings in your folder of state."),
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of a recording. Default: the latest.", show_default=False)
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
    out: Annotated[Path, typer.Option("--out", help="Folder for the files; it must not have them yet.")],
    format: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="sloserve: trace.csv and slo.yaml, for `simulate`, `bench` and `advise`. aiperf, vllm: trace.jsonl, "
            "for AIPerf's mooncake_trace and the timed_trace of `vllm bench serve`.",
        ),
    ] = ExportFormat.SLOSERVE,
    folder: FolderFlag = None,
) -> None:
    """Write a recording as a trace, and print a command that uses it.

    Requests that ended with an output are in it, with arrivals, lengths, and prompts that share what they shared.
    trace.csv also has classes, targets and tenants; tenants are keyed hashes. See docs/record.md.
    """
    from sloserve.engine.recording.reading import find_recording
    from sloserve.sim.recorded_run import write_trace
    from sloserve.sim.recorded_timed_trace import FILE, aiperf_command, vllm_command, write_timed_trace

    _, recording = find_recording(folder, name)
    stretch = recording.head.stretch_tokens
    if format is ExportFormat.SLOSERVE:
        written, left_out = write_trace(recording, out)
        flags = f"--trace {out / 'trace.csv'} --trace-block-tokens {stretch} --slo {out / 'slo.yaml'}"
        where = f"{out / 'trace.csv'}, their classes to {out / 'slo.yaml'}"
        command = f"sloserve simulate {flags} --rate-scale 1 --profile PROFILE --policy stock,edf,auto"
    else:
        written, left_out = write_timed_trace(recording, out)
        where = str(out / FILE)
        command = aiperf_command(out / FILE, stretch)
        if format is ExportFormat.VLLM:
            command = vllm_command(out / FILE, stretch, written)
    reason = f"; {left_out} unfinished or without output are left out" if left_out else ""
    print(f"wrote {written} requests to {where}{reason}")
    print(f"try: {command}")


@record_app.command()
def check(name: NameArgument = None, folder: FolderFlag = None, as_json: JsonFlag = False) -> None:
    """Make the plans of a recording again, and compare them bit for bit.

    `sloserve serve --record plans` records them. The exit status is 1 if a plan comes out differently. See
    docs/record.md.
    """
    from sloserve.sim.recorded_plans import check_plans

    found, chosen = chosen_segments(folder, name)
    checked = check_plans(found[chosen])
    if as_json:
        print(json_text.dumps({"name": chosen, **checked.plain()}, indent=2))
    else:
        print(f"recording {chosen}")
        for line in checked.lines():
            print(f"  {line}")
    if checked.repeated < checked.plans:
        raise typer.Exit(1)


def chosen_segments(folder: Path | None, name: str | None) -> tuple[dict[str, list[Path]], str]:
    """Return the segments of all recordings in a folder by name, and the name of the chosen one.

    Raises: ConfigError if there is no recording, or none of that name.
    """
    from sloserve.engine.recording.folder import recordings_folder
    from sloserve.engine.recording.reading import chosen, recordings

    found = recordings(recordings_folder(None) if folder is None else folder)
    return found, chosen(found, name)


def _read(paths: list[Path]) -> Any:
    from sloserve.engine.recording.reading import read_recording

    return read_recording(paths)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items()) or "none"
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
