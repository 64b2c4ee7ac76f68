"""Processes that die with the process that started them, however that one ends. Linux alone has this.

An engine is several processes: an API server, its core, workers. Each is told by its parent, in the environment, whose
child it is to be; a parent that has died before the child could ask is found out by that.
"""

import ctypes
import os
import signal
import sys
from typing import Final

from sloserve.core import numbers

PARENT: Final = "SLOSERVE_DIES_WITH"
"""In the environment: the process id of the parent that a process dies with. Unset: it dies with none."""

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """From now on the process is killed when ``parent``, its parent, ends; at once where that has ended already.

    Its own children find its id in the environment, and call :func:`die_with_named_parent`.
    """
    os.environ[PARENT] = str(os.getpid())
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_named_parent() -> None:
    """As the environment says, if it says so. A second call in the same process changes nothing."""
    named = os.environ.get(PARENT, "")
    if numbers.is_whole(named) and int(named) != os.getpid():
        die_with(int(named))
