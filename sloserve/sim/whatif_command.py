"""The command ``sloserve whatif``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError
from sloserve.sim.record_command import FolderFlag, NameArgument

if TYPE_CHECKING:
    from sloserve.sim.replay.whatif import Answer, Question

_NOT_TRUSTED = 3
"""Exit status where the replay of what ran is too far from the recording."""


@app.command()
def whatif(
    name: NameArgument = None,
    *,
    last: Annotated[str, typer.Option(help="Stretch of time to judge, counted from the end: 90s, 10m, 2h or all.")] = (
        "10m"
    ),
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to try, comma-separated; stock is vLLM's own scheduler. Default: stock, edf and auto, or "
            "the policy that ran if another flag changes something."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="An engine flag to change, max_num_seqs=64; may be repeated."),
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="SLO file with other targets for the recorded classes, as for `simulate`.")
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            help="Numbers of replicas to try, comma-separated: 3, or +1 and -1 for one more or less than were "
            "recorded. Recordings of engines that ran beside each other are joined."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="model: the engine model; vllm: vLLM's own scheduler in virtual time, slower.")
    ] = "model",
    seeds: Annotated[int, typer.Option(help="Replays of each run; they differ in how step times vary.")] = 3,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Try the others even if the replay is not to be trusted.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="PNG file to write: requests in time along the recording, for each run.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes; the answer does not depend on it.")] = 1,
    folder: FolderFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay a recording under other settings.

    These are policies, engine flags, targets and numbers of replicas. What ran is replayed first, and compared with the
    recording. If the shares of requests in time are more than 3 points apart, the replay is not to be trusted, and the
    exit status is 3. Without NAME the latest recording is replayed; `sloserve serve --record-mib 64` makes recordings.
    See docs/whatif.md.
    """
    from rich.console import Console

    from sloserve.core import json_text
    from sloserve.core.progress_bar import progress
    from sloserve.engine.recording.folder import recordings_folder
    from sloserve.engine.recording.reading import find_recording
    from sloserve.engine.recording.reading import recordings as recordings_in
    from sloserve.sim.replay.joined import beside
    from sloserve.sim.replay.whatif import answer
    from sloserve.sim.replay.whatif_text import MIN_TABLE_WIDTH, whatif_text

    chosen, recording = find_recording(folder, name)
    recordings = [recording]
    if replicas is not None:
        recordings = beside(recordings_in(recordings_folder(None) if folder is None else folder), recording)
    question = _question(last, policy, set_ or [], slo, replicas, len(recordings), engine, seeds)
    console = Console(stderr=as_json)
    console.width = max(console.width, MIN_TABLE_WIDTH)
    with progress("replays", console) as bar:
        result = answer(recordings, question, anyway=anyway, jobs=jobs, on_progress=bar.update)
    if plot is not None:
        _plot(plot, chosen, result, console)
    if as_json:
        print(json_text.dumps({"name": chosen, **result.figures()}, indent=2))
    else:
        for line in whatif_text(chosen, result):
            console.print(line, soft_wrap=True, highlight=False)
    if not result.error.is_trusted:
        raise typer.Exit(_NOT_TRUSTED)


def _plot(path: Path, name: str, result: "Answer", console: Any) -> None:
    import numpy as np

    from sloserve.sim.report.replay_plot import InTimeSeries, write_replay_plot

    recorded = result.recorded
    if not recorded.met.size or not result.base.fates[0].met.size:
        raise ConfigError("--plot: no request of the recording had targets, so there is nothing to draw; give --slo")
    series = [
        InTimeSeries(row.label(result.replicas), row.fates[0].at_s, np.mean([one.met for one in row.fates], axis=0))
        for row in (result.base, *result.rows)
    ]
    series[0] = InTimeSeries(f"{series[0].name}, replayed", series[0].at_s, series[0].met)
    try:
        write_replay_plot(path, InTimeSeries("recorded", recorded.at_s, recorded.met), series, f"recording {name}")
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written: {error.strerror}; give another file") from error
    console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def _question(
    last: str,
    policy: str | None,
    options: list[str],
    slo: str | None,
    replicas: str | None,
    recorded: int,
    engine: str,
    seeds: int,
) -> "Question":
    from sloserve.sim.build_experiment import listed
    from sloserve.sim.experiment import ENGINE_KINDS
    from sloserve.sim.replay.whatif import Question
    from sloserve.sim.run_name import check_option
    from sloserve.sim.workloads.named_slos import find_slos

    if engine not in ENGINE_KINDS:
        raise ConfigError(f"--engine: {engine!r} is not one of {', '.join(ENGINE_KINDS)}")
    changed = []
    for text in options:
        flag, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set: {text!r} is not a flag and its value, as max_num_seqs=64")
        changed.append((flag.strip(), check_option("--set", flag.strip(), value.strip())))
    return Question(
        last_s=_seconds(last),
        policies=() if policy is None else tuple(listed(policy)),
        options=tuple(changed),
        slos=None if slo is None else find_slos(slo).table,
        replicas=() if replicas is None else tuple(_count(one, recorded) for one in listed(replicas)),
        engine_kind=engine,
        seeds=seeds,
    )


def _seconds(text: str) -> float | None:
    """Return the seconds that a text as ``10m`` names; ``None`` for all."""
    from sloserve.core import numbers

    if text == "all":
        return None
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        if factor is None:
            raise ValueError(text)
        return numbers.number(text[:-1]) * factor
    except ValueError:
        raise ConfigError(f"--last: {text!r} is not a time as 90s, 10m or 2h, nor all") from None


def _count(text: str, recorded: int) -> int:
    from sloserve.core import numbers

    sign = text[:1] if text[:1] in ("+", "-") else ""
    try:
        value = numbers.whole(text.removeprefix(sign))
    except ValueError:
        raise ConfigError(f"--replicas: {text!r} is not a whole number, nor +1 or -1") from None
    return recorded + value if sign == "+" else recorded - value if sign else value
