"""Exceptions of our own code never reach vLLM, whose engine stops at any exception in its loop."""

import logging
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


def log_seldom(times: int, what: str) -> None:
    """Logs an exception that is being handled: the first in full, then one line at each power of ten, since a fault
    that comes back at each step must not fill the log. times: how often it came, this time included.
    """
    if times == 1:
        logger.exception("%s", what)
    elif str(times).strip("0") == "1":
        logger.warning("%s: %d times so far", what, times)


class Containment:
    """Calls what is ours. An exception there is counted as ``internal_errors``, logged, and answered with a default.

    Only for what calls nothing of vLLM's that changes anything: vLLM's own exceptions are for vLLM to see.
    """

    def __init__(
        self, counters: MutableMapping[str, Any], what: str, on_error: Callable[[], None] | None = None
    ) -> None:
        """what: a sentence for the log that says what holds instead. on_error: called after each; must not raise."""
        self._counters = counters
        self._what = what
        self._on_error = on_error
        self._times = 0

    def __call__(self, default: T, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except Exception:
            self._times += 1
            self._counters["internal_errors"] = self._counters.get("internal_errors", 0) + 1
            log_seldom(self._times, self._what)
            if self._on_error is not None:
                self._on_error()
            return default
