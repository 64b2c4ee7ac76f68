"""What one check found."""

import enum
from dataclasses import dataclass


class FindingState(enum.StrEnum):
    """The result: fit for use; worth a look; a server cannot start; or missing, which matters for some uses only."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        check: What was looked at.
        state: How good or bad it is.
        found: What was found.
        remedy: What to do; empty if nothing needs to be done.
    """

    check: str
    state: FindingState
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, FindingState.OK, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, FindingState.WARNING, found, remedy)


def fault(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, FindingState.FAULT, found, remedy)


def absent(check: str, found: str, remedy: str = "") -> Finding:
    return Finding(check, FindingState.ABSENT, found, remedy)
