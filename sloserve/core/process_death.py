"""Processes that end with the process that started them, however that one ends.

There are two ways. :func:`die_with` has the kernel kill a process as soon as its parent ends; Linux alone has this, and
the parent must have started the process in a thread that lives as long as itself. :func:`end_with_starter` watches the
parent from a thread, which works for whatever ``multiprocessing`` started, and lets the process end in order.

An engine of a fleet is several processes: an API server, its core, workers. Each learns the process id of its parent
from the environment; if it finds another parent at its start, the parent has already died.
"""

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Final

from sloserve.core import numbers

PARENT: Final = "SLOSERVE_DIES_WITH"
"""Variable of the environment with the process id of the parent with which a process dies.

A process without this variable dies with no other process.
"""

END_S: Final = 5.0
"""Seconds that a process has to end in order after its starter has gone; then it is killed."""

_PR_SET_PDEATHSIG: Final = 1
_watching = False


def die_with(parent: int) -> None:
    """Have this process killed when its parent, the process ``parent``, ends, or at once if it has ended already.

    The children of this process find its id in the environment, and call :func:`die_with_named_parent`.
    """
    os.environ[PARENT] = str(os.getpid())
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_named_parent() -> None:
    """Call :func:`die_with` for the parent that the environment names, if it names one.

    A second call in the same process has no effect.
    """
    named = os.environ.get(PARENT, "")
    if numbers.is_whole(named) and int(named) != os.getpid():
        die_with(int(named))


def end_with_starter(end_s: float = END_S, *, ask: bool = True) -> None:
    """End this process when the process that started it through ``multiprocessing`` is gone, or is gone already.

    Nothing happens in a process that was started in another way, and a second call changes nothing.

    Args:
        end_s: Seconds that the process has to end in order; then it gets SIGKILL.
        ask: Whether to send SIGTERM first. A forked process may share the pipe by which an event loop of another one
            learns of signals, which would then take the signal for its own.
    """
    global _watching
    starter = multiprocessing.parent_process()
    if starter is None or _watching:
        return
    _watching = True
    threading.Thread(target=_end_after, args=(starter, end_s, ask), daemon=True, name="SloserveStarterWatch").start()


def _end_after(starter: Any, end_s: float, ask: bool) -> None:
    _wait_for_end(starter)
    if ask:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(end_s)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(starter: Any) -> None:
    """Return once the process ``starter`` has ended, even if siblings hold the pipe that would tell it."""
    try:
        descriptor = os.pidfd_open(starter.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # macOS, an old kernel, or a container that forbids the call
        starter.join()
        return
    with os.fdopen(descriptor, "rb", buffering=0):
        if not starter.is_alive():  # another process may have its number by now
            return
        ends = select.poll()  # select takes no descriptor above 1,023
        ends.register(descriptor, select.POLLIN)
        ends.poll()


def _forget_watch() -> None:
    global _watching
    _watching = False  # a fork has no thread but the one that forks


os.register_at_fork(after_in_child=_forget_watch)
