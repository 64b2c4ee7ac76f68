"""Every error has its status, and a full queue says when to come again and why."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

import sloserve
from sloserve.core.errors import QueueFull, ShuttingDown, SloServeError, SLOUnattainable
from sloserve.wire import errors
from sloserve.wire.headers import EXPOSED


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
    assert errors.headers(error) == [
        ("retry-after", "7"),
        ("x-slo-dropped-reason", "rejected-saturated"),
        ("x-llm-d-request-dropped-reason", "rejected-saturated"),
    ]
    assert errors.body(HTTPStatus.TOO_MANY_REQUESTS, str(error)) == {
        "error": {"message": "queue full", "type": "Too Many Requests", "param": None, "code": 429}
    }


@pytest.mark.parametrize(("retry_after_s", "told"), [(4, [("retry-after", "4")]), (None, [])])
def test_unattainable_targets(retry_after_s: int | None, told: list[tuple[str, str]]) -> None:
    error = SLOUnattainable("too slow", retry_after_s, "batch")
    assert errors.status(error) is HTTPStatus.TOO_MANY_REQUESTS
    assert errors.headers(error) == [
        *told,
        ("x-slo-dropped-reason", "rejected-slo-unattainable"),
        ("x-llm-d-request-dropped-reason", "rejected-saturated"),
    ]


OF_LLM_D = {
    "rejected-saturated", "rejected-ttl-expired", "rejected-context-cancelled", "rejected-shutting-down", "evicted",
    "evicted-queue-pressure", "evicted-priority",
}  # fmt: skip
"""Source: llm-d-router, pkg/common/error/error.go."""


def test_clients_of_llm_d_find_its_header_with_a_value_of_its_list_wherever_ours_is() -> None:
    assert set(errors.REASON) <= set(errors.LLM_D_REASON) and set(errors.LLM_D_REASON.values()) <= OF_LLM_D
    assert "x-llm-d-request-dropped-reason" in EXPOSED
    error = ShuttingDown("the server is stopping", 3)
    assert dict(errors.headers(error)).get("x-llm-d-request-dropped-reason") == "rejected-shutting-down"
    assert "x-slo-dropped-reason" not in dict(errors.headers(error))
