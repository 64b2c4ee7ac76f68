"""The limit of open files of a process of a fleet: each request that it passes on takes two, one for each side."""

import logging
from typing import Final

from sloserve.core.open_files import raise_open_files

logger = logging.getLogger(__name__)

_BESIDE: Final = 512
"""Number of files and connections that do not belong to requests."""


def files_for(requests: int) -> int:
    """Return how many open files ``requests`` concurrent requests need."""
    return 2 * requests + _BESIDE


def allow_open_files(requests: int) -> None:
    """Raise this process's limit of open files to what ``requests`` need, or as far as allowed.

    Linux sets 1,024 by default. Beyond the limit no client gets a response, and instances seem to be gone.
    """
    needed = files_for(requests)
    try:
        allowed = raise_open_files(needed)
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files cannot be raised to %d: %s", needed, error)
        return
    if allowed < needed:
        logger.warning(
            "%d requests at a time need %d open files, and %d are allowed; raise the hard limit (ulimit -Hn, "
            "LimitNOFILE=), or lower max_requests in the section gateway",
            requests,
            needed,
            allowed,
        )
