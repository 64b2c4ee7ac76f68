"""What is ours may fail, and vLLM sees a default."""

from typing import Any

from sloserve.engine.containment import Containment


def divided(by: int, *, times: int = 1) -> int:
    return times * (12 // by)


def test_a_call_has_its_arguments_and_a_failed_one_is_counted_and_answered_with_the_default() -> None:
    counters: dict[str, Any] = {}
    contained = Containment(counters, "nothing else changes")
    assert contained(0, divided, 3, times=2) == 8
    assert contained(7, divided, 0) == contained(7, divided, 3, unknown=1) == 7
    assert counters == {"internal_errors": 2}
