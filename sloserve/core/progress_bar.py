"""Progress of a long command: a bar in a terminal, else a line from time to time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINES = 10
"""Number of lines that are printed, each after an equal part of the work."""
LINE_AFTER_S = 60.0
"""Seconds without a line after which one is printed, so that a log shows that the command is alive."""


class Bar:
    """One piece of work, counted in steps of a kind."""

    def __init__(self, progress: Progress, task: TaskID, *, lines: bool) -> None:
        self._progress = progress
        self._id = task
        self._lines = lines
        self._part, self._said_s = 0, 0.0

    def advance(self) -> None:
        """Count one more step as done."""
        task = self._progress.tasks[0]
        self.update(int(task.completed) + 1, None if task.total is None else int(task.total))

    def update(self, done: int, total: int | None) -> None:
        """Set how many steps are done, of how many.

        Args:
            done: Number of steps that are done.
            total: Number of all steps; ``None`` where it is not known yet.
        """
        self._progress.update(self._id, completed=done, total=total)
        if not self._lines or not total:
            return
        task = self._progress.tasks[0]
        elapsed_s, part = task.elapsed or 0.0, LINES * done // total
        if part <= self._part and elapsed_s < self._said_s + LINE_AFTER_S:
            return
        self._part, self._said_s = part, elapsed_s
        share = f"{done / total:.0%}"
        print(f"{task.description}: {done} of {total} ({share}), {elapsed_s:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, console: Console, total: int | None = None, *, refresh_per_second: float = 10) -> Iterator[Bar]:
    """Show a bar of ``what`` on ``console`` until the block ends, or lines on stderr where this is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=refresh_per_second,
        disable=not console.is_terminal,
    )
    with shown:
        yield Bar(shown, shown.add_task(what, total=total), lines=not console.is_terminal)
