"""Every error has its status, and a full queue says when to come again and why."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

import sloserve
from sloserve.core.errors import QueueFull, SloServeError, SLOUnattainable
from sloserve.wire import errors


def subclasses(cls: type[SloServeError]) -> Iterator[type[SloServeError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


ERRORS = [e for e in subclasses(SloServeError) if e.__module__ == SloServeError.__module__]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_mapped(error: type[SloServeError]) -> None:
    assert errors.STATUS[error] >= 400


@pytest.mark.slow
def test_every_error_is_raised_somewhere() -> None:
    """But for those that only stand for their kinds."""
    package = Path(sloserve.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py") if path != package / "core" / "errors.py")
    assert [e.__name__ for e in ERRORS if not e.__subclasses__() and f"{e.__name__}(" not in code] == []


def test_full_queue() -> None:
    error = QueueFull("queue full", 7, "batch")
    assert errors.status(error) is HTTPStatus.TOO_MANY_REQUESTS
    assert errors.headers(error) == [("retry-after", "7"), ("x-slo-dropped-reason", "rejected-saturated")]
    assert errors.body(HTTPStatus.TOO_MANY_REQUESTS, str(error)) == {
        "error": {"message": "queue full", "type": "Too Many Requests", "param": None, "code": 429}
    }


@pytest.mark.parametrize(("retry_after_s", "told"), [(4, [("retry-after", "4")]), (None, [])])
def test_unattainable_targets(retry_after_s: int | None, told: list[tuple[str, str]]) -> None:
    error = SLOUnattainable("too slow", retry_after_s, "batch")
    assert errors.status(error) is HTTPStatus.TOO_MANY_REQUESTS
    assert errors.headers(error) == [*told, ("x-slo-dropped-reason", "rejected-slo-unattainable")]
