"""Code of ours may fail: vLLM sees a default, and the log has each kind of error once in full."""

import logging
from typing import Any

import pytest

from sloserve.engine.containment import MOST_KINDS, Containment


def divided(by: int, *, times: int = 1) -> int:
    return times * (12 // by)


def other_line(by: int) -> int:
    return 12 // by


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    """Return each message, with the type of the exception whose traceback it has."""
    return [(r.getMessage(), r.exc_info and r.exc_info[0] and r.exc_info[0].__name__) for r in caplog.records]  # type: ignore[misc]


def test_a_call_has_its_arguments_and_a_failed_one_is_counted_and_answered_with_the_default() -> None:
    counters: dict[str, Any] = {}
    contained = Containment(counters, "nothing else changes")
    assert contained(0, divided, 3, times=2) == 8
    assert contained(7, divided, 0) == contained(7, divided, 3, unknown=1) == 7
    assert counters == {"internal_errors": 2}


def test_each_kind_of_error_has_its_traceback_and_one_that_comes_back_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    contained = Containment({}, "vLLM goes on")
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            contained(0, divided, 0)
        contained(0, divided, "no number")
        contained(0, other_line, 0)
    (first, ten, other_type, other_place) = said(caplog)
    assert first == other_place == ("vLLM goes on", "ZeroDivisionError")
    assert other_type == ("vLLM goes on", "TypeError")
    assert ten[0].startswith("vLLM goes on: 10 times so far (ZeroDivisionError in ") and ten[1] is None


def test_an_error_with_many_faces_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    contained = Containment({}, "vLLM goes on")

    def fail(number: int) -> None:
        raise type(f"Error{number}", (Exception,), {})

    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            contained(None, fail, number)
    tracebacks = [kind for _, kind in said(caplog) if kind]
    assert tracebacks == [f"Error{number}" for number in range(MOST_KINDS + 1)]
    assert [text for text, kind in said(caplog) if not kind] == [
        f"vLLM goes on: {times} times so far (errors of further kinds)" for times in (10, 100)
    ]


def test_a_failing_reaction_to_an_error_is_contained_too() -> None:
    counters: dict[str, Any] = {}
    contained = Containment(counters, "nothing else changes", on_error=lambda: other_line(0) and None)
    assert contained("default", divided, 0) == "default"  # type: ignore[arg-type]
    assert counters == {"internal_errors": 2}
