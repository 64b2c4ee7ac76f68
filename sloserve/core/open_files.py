"""The limit of open files of this process; each connection takes one."""

import resource


def raise_open_files(needed: int) -> int | float:
    """Raise the soft limit, 1,024 by default on Linux, to ``needed`` files, or as far as the hard limit allows.

    Returns the limit in force. It is never lowered.

    Raises: OSError or ValueError where the system refuses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return float("inf")
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed <= soft:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
