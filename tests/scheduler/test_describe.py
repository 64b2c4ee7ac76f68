"""What is said of policies is derived from their classes, and is there for every option."""

from dataclasses import dataclass

import pytest

from sloserve.scheduler import registry
from sloserve.scheduler.describe import Option, describe_policy
from sloserve.scheduler.policy import Plan, Policy, Snapshot


@pytest.mark.parametrize("name", registry.policy_names())
def test_every_option_of_an_installed_policy_has_a_meaning(name: str) -> None:
    found = describe_policy(name)
    assert found.summary.endswith(".") and len(found.summary.split()) > 3
    assert [option.name for option in found.options if len(option.meaning.split()) < 2] == []


class Example(Policy):
    """Does one thing, and another
    on the second line. More of it."""

    @dataclass(frozen=True)
    class Settings:
        """first, second: ``a`` or ``b``. More on it; third: whether at all.

        fourth: a number: of requests, each with first: no label.
        """

        first: str = "a"
        second: int | None = None
        third: bool = True
        fourth: float = 1.5
        fifth: int = 0

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan.IDENTITY


def test_a_docstring_is_read_label_by_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.scheduler.describe.make_policy", lambda name: Example())
    found = describe_policy("example")
    assert found.summary == "Does one thing, and another on the second line."
    assert found.options == (
        Option("first", "str", "a", "a or b. More on it"),
        Option("second", "int | None", None, "a or b. More on it"),
        Option("third", "bool", True, "whether at all"),
        Option("fourth", "float", 1.5, "a number: of requests, each with first: no label"),
        Option("fifth", "int", 0, ""),
    )
