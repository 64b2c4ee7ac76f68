"""The policies of an engine, and when it plans again after a fault; planners are fakes that note their calls."""

from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.engine.policies_in_force import MOST_PLAN_AGAIN_S, PLAN_AGAIN_S, PoliciesInForce
from sloserve.engine.policy_maker import PolicyMaker
from sloserve.engine.shadow import Shadow
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.settings import PluginSettings


class FakePlanner:
    """Notes its calls; ``fails`` has it raise as it takes over."""

    fails = False

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.calls: list[tuple[str, Any]] = []

    def learn_from(self, dropped: "FakePlanner") -> None:
        self.calls.append(("learn_from", dropped))

    def record(self, log: Any, text: str, now_s: float) -> None:
        self.calls.append(("record", text))

    def take_over(self, before: Any, live: Any, slo_of: Any, now_s: float) -> None:
        self.calls.append(("take_over", before))
        if FakePlanner.fails:
            raise RuntimeError("half way")


class FakeLog:
    """Notes nothing."""

    def learned(self, policy: Any) -> None:
        """Do nothing."""


class Flags:
    """Flags of an engine with its usual order, and with chunked prefill."""

    policy = "fcfs"
    enable_chunked_prefill = True


def made(policy: Policy, shadow: Shadow | None, text: str) -> Any:
    """Return a planner for a policy that reads rows."""
    return FakePlanner(text) if policy.reads else None


class World:
    """The policies of an engine with a clock that stands."""

    def __init__(self, policy: str = "edf") -> None:
        settings = PluginSettings(policy=policy)
        self.clock = ManualClock(100.0)
        self.policies: Any = PoliciesInForce(
            PolicyMaker(settings, Flags(), None),
            settings,
            made,
            list,
            {},
            self.clock,
        )

    def pause_s(self) -> float:
        """Return for how long no planner is made after a drop."""
        self.policies.drop()
        began_s = self.clock.monotonic_s()
        while not self.policies.begin_again(self.clock.monotonic_s()):
            self.clock.advance_to(self.clock.now_s() + 0.5)
        return self.clock.monotonic_s() - began_s


@pytest.fixture(autouse=True)
def _no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePlanner, "fails", False)


def test_the_pause_doubles_with_each_fault_up_to_a_limit_and_a_change_of_policy_ends_that() -> None:
    world = World()
    pauses_s = [world.pause_s() for _ in range(8)]
    assert pauses_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MOST_PLAN_AGAIN_S, MOST_PLAN_AGAIN_S]
    world.policies.set("sjf", None, allow_files=True)
    assert world.policies.texts == ("sjf", None) and world.pause_s() == PLAN_AGAIN_S


def test_what_was_learned_is_kept_after_the_first_fault_and_not_after_the_next() -> None:
    world = World()
    first = world.policies.planner
    world.pause_s()
    second = world.policies.planner
    assert ("learn_from", first) in second.calls and ("take_over", None) in second.calls
    world.pause_s()
    assert [name for name, _ in world.policies.planner.calls] == ["take_over"]


def test_an_engine_without_a_planner_of_its_own_does_not_begin_again() -> None:
    world = World("fcfs")
    assert world.policies.planner is None
    assert not world.policies.begin_again(1e9)


def test_a_planner_that_cannot_take_over_leaves_the_old_policies_and_no_planner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(FakePlanner, "fails", True)
    with pytest.raises(RuntimeError, match="half way"):
        world.policies.set("sjf", None, allow_files=True)
    assert world.policies.planner is None and world.policies.texts == ("edf", None)


def test_a_text_that_names_no_policy_changes_nothing() -> None:
    world = World()
    before = world.policies.planner
    with pytest.raises(ConfigError):
        world.policies.set("no-such-policy", None, allow_files=True)
    assert world.policies.planner is before and world.policies.texts == ("edf", None)


def test_each_new_planner_is_recorded_once_a_recording_has_begun() -> None:
    world = World()
    world.policies.record(FakeLog())
    assert world.policies.planner.calls == [("record", "edf")]
    world.policies.set("sjf", None, allow_files=True)
    assert ("record", "sjf") in world.policies.planner.calls
