"""Keep exceptions of our own code away from vLLM: its engine stops at any exception in its loop."""

import logging
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_KINDS: Final = 32
"""Kinds of errors that one log tells apart. A program has few; this bounds what a fault with many faces can write."""

Kind = tuple[type[BaseException], str, str]
"""The type of an exception, the innermost line of sloserve in its traceback, and the line that raised it."""


class ErrorLog:
    """Logs exceptions without filling the log, although a fault may come back at each step.

    The first exception of each kind is logged with its traceback, every later one as one line when the number of that
    kind reaches a power of ten. Kinds beyond ``MOST_KINDS`` share one count; its first exception is logged with its
    traceback.
    """

    def __init__(self) -> None:
        self._times: dict[Kind | None, int] = {}

    def caught(self, error: BaseException, what: str) -> None:
        """Log ``error``, which is being handled.

        Args:
            error: The exception.
            what: A sentence that says what failed and what holds instead.
        """
        kind: Kind | None = _kind_of(error)
        if kind not in self._times and len(self._times) >= MOST_KINDS:
            kind = None
        times = self._times[kind] = self._times.get(kind, 0) + 1
        if times == 1:
            logger.error("%s", what, exc_info=error)
        elif str(times).strip("0") == "1":
            logger.warning("%s: %d times so far (%s)", what, times, _named(kind))


def _kind_of(error: BaseException) -> Kind:
    """Return the kind of an exception.

    The line that raised it may be numpy's and called from many places, or a third party's policy: so both lines count.
    """
    ours = innermost = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        innermost = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        if str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "sloserve":
            ours = innermost
        frame = frame.tb_next
    return type(error), ours, innermost


def _named(kind: Kind | None) -> str:
    if kind is None:
        return "errors of further kinds"
    error, _, place = kind
    return f"{error.__name__} in {place}"


class Containment:
    """Calls code of ours. An exception there is counted as ``internal_errors``, logged, and answered with a default.

    It is only for code that calls nothing of vLLM's that changes anything: vLLM's own exceptions are for vLLM to see.
    """

    def __init__(
        self, counters: MutableMapping[str, Any], what: str, on_error: Callable[[], None] | None = None
    ) -> None:
        """Build a containment that counts in ``counters``.

        Args:
            counters: Counters that count the exceptions.
            what: A sentence for the log that says what holds instead.
            on_error: Function that is called after each exception; what it raises is contained as well.
        """
        self._counters = counters
        self._what = what
        self._on_error = on_error
        self._log = ErrorLog()

    def __call__(self, default: T, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what ``call`` returns, or ``default`` if it raises."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self._caught(error)
            if self._on_error is not None:
                try:
                    self._on_error()
                except Exception as another:
                    self._caught(another)
            return default

    def _caught(self, error: Exception) -> None:
        self._counters["internal_errors"] = self._counters.get("internal_errors", 0) + 1
        self._log.caught(error, self._what)
