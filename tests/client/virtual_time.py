"""Virtual time for code that waits: an event loop whose time jumps to its next timer, and a clock for each thread."""

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from sloserve.core.clock import ManualClock
from tests import bounded

T = TypeVar("T")

START_S = ManualClock.EPOCH_OFFSET_S


_LIMIT_S = 10.0


class _Selector(selectors.SelectSelector):
    """Does not wait for the time that it is given, but makes it pass; without one, waits for other threads."""

    now_s = START_S

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            self.now_s += max(timeout, 0.0)
            return super().select(0)
        ready = super().select(_LIMIT_S)
        if not ready:
            raise RuntimeError(f"all tasks wait, and no timer of theirs is set{bounded.tasks()}")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which is a clock as well."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    now_s = time


def run(main: Coroutine[Any, Any, T]) -> T:
    return bounded.run(main, loop=VirtualLoop)


class LoopClock:
    """The running virtual loop's time."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def monotonic_s(self) -> float:
        return self.now_s() - START_S


class SteppedClock(LoopClock):
    """The running virtual loop's time on a host whose wall clock is set by ``step_s`` after ``after_s`` seconds."""

    def __init__(self, after_s: float, step_s: float) -> None:
        self._after_s, self._step_s = after_s, step_s

    def now_s(self) -> float:
        now_s = super().now_s()
        return now_s + (self._step_s if now_s >= START_S + self._after_s else 0.0)

    def monotonic_s(self) -> float:
        return super().now_s() - START_S


class ThreadClocks:
    """For each thread a time of its own: what the one waits for need not be waited for by the other."""

    def __init__(self) -> None:
        self._clocks = threading.local()

    def now_s(self) -> float:
        return self._mine().now_s()

    def monotonic_s(self) -> float:
        return self._mine().monotonic_s()

    def sleep(self, duration_s: float) -> None:
        self._mine().advance_to(self.now_s() + duration_s)

    def _mine(self) -> ManualClock:
        if not hasattr(self._clocks, "mine"):
            self._clocks.mine = ManualClock(START_S)
        return self._clocks.mine  # type: ignore[no-any-return]
