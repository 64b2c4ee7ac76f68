"""Bounds for what tests wait for: a wait that runs out fails its test with what was waited for.

The one bound is a timer of the process, whose signal interrupts whatever the main thread does. What is waited for in
another thread has a timeout of its own. ``tests/architecture/test_waits.py`` says which waits must have a bound.
"""

import asyncio
import inspect
import linecache
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

LIMIT_S: Final = 400.0
"""Several times what a wait takes on a machine that does much else."""
UNTIL_S: Final = 100.0
"""The same for one condition, of which a test waits for several: processes start meanwhile."""
AGAIN_S: Final = 20.0
"""A failure that was caught where it was raised is raised again after this time, until the block ends."""


@contextmanager
def within(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Fail the test if the block takes too long; for the main thread.

    A bound around it that ends earlier is kept.

    Args:
        what: says what the block waits for.
        limit_s: seconds that the block may take.
    """

    def run_out(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"waited {limit_s:g} s for {what}{tasks()}")

    left_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    if 0.0 < left_s < limit_s:
        yield
        return
    before = signal.signal(signal.SIGALRM, run_out)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        unused_s, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left_s > 0.0:  # at least a moment, as 0 would stop the timer of the block around this one
            signal.setitimer(signal.ITIMER_REAL, max(left_s - limit_s + unused_s, 0.001), again_s)


def run(main: Coroutine[Any, Any, T], limit_s: float = LIMIT_S, loop: Callable[[], Any] | None = None) -> T:
    """Run a coroutine as :func:`asyncio.run` does; if it takes too long, say where each task waits.

    Args:
        main: the coroutine to run.
        limit_s: seconds that it may take.
        loop: makes the event loop; by default asyncio's own.
    """
    with within(f"the end of {main.__qualname__}", limit_s), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


async def until(condition: Callable[[], Any], limit_s: float = UNTIL_S, period_s: float = 0.002) -> None:
    """Return once a condition holds; fail the test if it does not within the limit of the running loop's time.

    Args:
        condition: is tried again and again, and is quoted where the test fails.
        limit_s: seconds for which it is tried.
        period_s: seconds from one try to the next, in which other tasks run.
    """
    for _ in range(round(limit_s / period_s)):
        if condition():
            return
        await asyncio.sleep(period_s)
    raise AssertionError(f"waited {limit_s:g} s in vain: {inspect.getsource(condition).strip()}")


def tasks() -> str:
    """Return where each task of the running loop waits, a line for each coroutine that awaits the next one."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return ""
    lines = []
    for task in sorted(tasks, key=lambda task: task.get_name()):
        lines.append(f"\n{task.get_name()}:")
        awaited: Any = task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            path, number = frame.f_code.co_filename, frame.f_lineno
            lines.append(f"  {path}:{number}: {linecache.getline(path, number).strip()}")
            awaited = awaited.cr_await
    return "\n".join(lines)
