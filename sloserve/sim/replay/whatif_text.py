"""What replays of a recording say, for a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from sloserve.sim.replay.judged import Interval
    from sloserve.sim.replay.whatif import Answer, TriedRun

MIN_TABLE_WIDTH: Final = 130
"""The least width of the table; a narrower one would break its cells, and a terminal wraps lines instead."""
_BEYOND: Final = 0.01
"""Share of steps larger than any recorded one from which a run is marked."""


def whatif_text(name: str, answer: "Answer") -> Iterator[Any]:
    """Yield lines and the table of what replays say.

    Args:
        name: Name of the recording.
        answer: What the replays say.
    """
    span = answer.span
    engines = "" if answer.replicas == 1 else f" on {answer.replicas} engines"
    open_ = f", {answer.traffic.unfinished} of them unfinished" if answer.traffic.unfinished else ""
    yield (
        f"recording {name}: {answer.ran}{engines}, {span.end_s - span.begin_s:.0f} s, "
        f"{len(answer.traffic.judged)} requests{open_}"
    )
    for number, what in ((answer.traffic.refused, "refused"), (len(answer.traffic.left_s), "left by their clients")):
        if number:
            yield f"{number} requests were {what}; they do not count"
    if answer.lost:
        yield f"WARNING: {answer.lost} events of the recording were lost, so the replay misses some of what happened"
    yield f"step times fitted to the recorded steps: mean error {answer.fitted.score.mape_percent:.0f} % of a step"
    yield _error_line(answer)
    yield _table(answer)
    if any(row.extrapolated > _BEYOND for row in answer.rows):
        yield "* has steps larger than any recorded one; their times are extrapolated"
    if not answer.error.is_trusted:
        yield "The replay of what ran is not to be trusted, so what else it says is not either. See docs/whatif.md."
    else:
        yield (
            "Differences count the same requests under both, with a 95 % interval over the recorded time. Clients that "
            "react, by trying again, giving up or sending the next call of a task, are not modelled."
        )


def _error_line(answer: "Answer") -> str:
    error, recorded = answer.error, answer.recorded
    if error.points is None:
        return "no request had targets, so the replay cannot be judged"
    parts = [f"{error.points:+.1f} points of {100.0 * (recorded.in_time() or 0.0):.1f} % in time"]
    parts += [
        f"TTFT {label} {100.0 * off:+.0f} %"
        for label, off in (("p50", error.ttft_p50), ("p99", error.ttft_p99))
        if off is not None
    ]
    return f"error of the replay of what ran: {', '.join(parts)}"


def _table(answer: "Answer") -> Table:
    classes = sorted({name for name in answer.base.fates[0].slo_class})
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("run")
    for heading in ("in time %", "difference", *(f"{name} %" for name in classes), "TTFT p50 s", "p99 s", "tokens"):
        table.add_column(heading, justify="right")
    real = answer.recorded
    by_class = [_percent(real.in_time(name)) for name in classes]
    recorded = (_percent(real.in_time()), "", *by_class, _seconds(real.ttft(0.5)), _seconds(real.ttft(0.99)))
    table.add_row("recorded", *recorded, str(real.output_tokens))
    for row in (answer.base, *answer.rows):
        table.add_row(*_cells(answer, row, classes))
    return table


def _cells(answer: "Answer", row: "TriedRun", classes: list[str]) -> tuple[str, ...]:
    figures = row.figures()
    label = row.label(answer.replicas) + (", replayed" if row is answer.base else "")
    return (
        label + (" *" if row.extrapolated > _BEYOND else ""),
        _ranged(row.in_time, "{:.1f}"),
        _ranged(row.gain, "{:+.1f}"),
        *(_percent(figures["in_time_by_class"].get(name)) for name in classes),
        _seconds(figures["ttft_p50_s"]),
        _seconds(figures["ttft_p99_s"]),
        f"{figures['output_tokens']:.0f}",
    )


def _ranged(interval: "Interval | None", form: str) -> str:
    if interval is None:
        return ""
    low, high = form.format(interval.low), form.format(interval.high)
    return f"{form.format(interval.value)} [{low}, {high}]"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100.0 * share:.1f}"


def _seconds(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s:.3f}" if value_s < 10.0 else f"{value_s:.1f}"
