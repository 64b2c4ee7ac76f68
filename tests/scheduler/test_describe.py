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
        """first: is explained beneath it."""

        first: str = "a"
        """``a`` or ``b``. More on it; second: is no label
        on the second line."""
        second: int | None = None
        """Set by default: never."""
        third: float = 1.5
        fourth: int = 0
        """How many."""

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan.IDENTITY


def test_an_option_means_what_stands_beneath_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.scheduler.describe.make_policy", lambda name: Example())
    found = describe_policy("example")
    assert found.summary == "Does one thing, and another on the second line."
    assert found.options == (
        Option("first", "str", "a", "a or b. More on it; second: is no label on the second line"),
        Option("second", "int | None", None, "Set by default: never"),
        Option("third", "float", 1.5, ""),
        Option("fourth", "int", 0, "How many"),
    )


def test_a_class_without_a_file_has_options_without_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dataclass(frozen=True)(type("Settings", (), {"__annotations__": {"most": int}, "most": 1}))
    policy = type("Made", (Example,), {"Settings": made})()
    monkeypatch.setattr("sloserve.scheduler.describe.make_policy", lambda name: policy)
    assert [(option.name, option.meaning) for option in describe_policy("made").options] == [("most", "")]
