"""Whether a process has ended, also where nothing has asked for its exit status."""

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended.

    A process that has ended is a zombie until its parent asks for its exit status. One that lost its parent is a child
    of the first process of the machine or container, and some of these never ask.
    """
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
