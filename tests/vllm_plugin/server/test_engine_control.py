"""A change of policy over several ranks: all follow it or none does, whichever fails, and no text names a file."""

from pathlib import Path
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError
from sloserve.engine.policy_change import PolicyChanged
from sloserve.scheduler.live_settings import check_live
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.vllm_plugin.server import engine_control
from tests import bounded


class Scheduler:
    """Stands for SLOScheduler: follows what it is told, unless it is to fail."""

    def __init__(self) -> None:
        self.policy, self.shadow_policy = "fcfs", None
        self.fails: Exception | None = None
        self.service_s: dict[str, float] | None = None
        self.policy_change: PolicyChanged | None = None
        self.elsewhere_s: dict[str, float] = {}
        self.settings = plugin_settings(None)

    def status(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "shadow_policy": self.shadow_policy,
            "tenant_service_s": self.service_s,
        }

    def note_change(self, change: PolicyChanged | None) -> None:
        self.policy_change = change

    def set_elsewhere(self, service_s: dict[str, float]) -> None:
        if self.fails is not None:
            raise self.fails
        self.elsewhere_s = dict(service_s)

    def set_settings(self, settings: PluginSettings) -> None:
        if self.fails is not None:
            raise self.fails
        check_live(self.settings, settings)
        self.settings = settings

    def set_policies(self, policy: str | None, shadow_policy: str | None, *, allow_files: bool = True) -> None:
        if self.fails is not None:
            raise self.fails
        self.policy = self.policy if policy is None else policy
        self.shadow_policy = self.shadow_policy if shadow_policy is None else shadow_policy or None


class Engine:
    def __init__(self, rank: int) -> None:
        self.engine_index, self.scheduler = rank, Scheduler()
        self.dead = False


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    ranks = [Engine(0), Engine(1), Engine(2)]
    methods = {
        "sloserve_status": engine_control._status,
        "sloserve_set_policies": engine_control._set_policies,
        "sloserve_set_settings": engine_control._set_settings,
        "sloserve_undo": engine_control._undo,
        "sloserve_set_elsewhere": engine_control._set_elsewhere,
    }

    def call(rank: Engine, method: str, *args: Any) -> Any:
        try:
            if rank.dead:
                raise RuntimeError("engine dead")
            return methods[method](rank, *args)
        except Exception as error:
            return error

    async def call_all(_: Any, method: str, *args: Any) -> list[Any]:
        return [call(rank, method, *args) for rank in ranks]

    monkeypatch.setattr(engine_control, "call_all", call_all)
    return ranks


def change(policy: str | None = None, shadow_policy: str | None = None) -> list[tuple[str, str | None]]:
    """What the ranks follow after the change."""
    bounded.run(engine_control.set_policies(None, policy, shadow_policy))
    return followed()


def followed() -> list[tuple[str, str | None]]:
    return [(rank["policy"], rank["shadow_policy"]) for rank in bounded.run(engine_control.status(None))]


def test_all_ranks_follow_both_policies(ranks: list[Engine]) -> None:
    assert change("edf", "sjf") == [("edf", "sjf")] * 3
    assert change(shadow_policy="") == [("edf", None)] * 3
    assert change("sa:profile=a100-opt-13b") == [("sa:profile=a100-opt-13b", None)] * 3


@pytest.mark.parametrize(("policy", "shadow"), [("edf", "nope"), ("nope", "edf"), ("", "edf"), ("edf", "edf:x=1")])
def test_one_bad_policy_changes_neither(ranks: list[Engine], policy: str, shadow: str) -> None:
    with pytest.raises(ConfigError):
        change(policy, shadow)
    assert followed() == [("fcfs", None)] * 3


@pytest.mark.parametrize("shadow", [False, True])
def test_no_text_names_a_file(ranks: list[Engine], tmp_path: Path, shadow: bool) -> None:
    file = tmp_path / "file"
    file.write_text("very-private")
    text = f"sa:profile={file}"
    with pytest.raises(ConfigError, match="would name a file") as refused:
        change(*(("edf", text) if shadow else (text, "edf")))
    assert "very-private" not in str(refused.value)
    assert followed() == [("fcfs", None)] * 3


def test_ranks_that_changed_go_back_when_another_fails(ranks: list[Engine]) -> None:
    change("sjf", "rr")
    ranks[1].scheduler.fails = RuntimeError("out of luck")
    with pytest.raises(
        EngineError, match="were not changed: rank 1: out of luck; all ranks follow their earlier policies"
    ):
        change("edf", "")
    ranks[1].scheduler.fails = None
    assert followed() == [("sjf", "rr")] * 3
    ranks[2].scheduler.fails = ConfigError("policy edf cannot")
    with pytest.raises(ConfigError, match="policy edf cannot"):
        change("edf")
    assert followed() == [("sjf", "rr")] * 3


def test_ranks_that_cannot_go_back_are_named(ranks: list[Engine]) -> None:
    ranks[2].dead = True
    with pytest.raises(EngineError, match="rank 2: engine dead; not every rank went back .*: rank 2: engine dead$"):
        change("edf")
    with pytest.raises(EngineError, match="no status from the engine: rank 2: engine dead"):
        followed()
    assert [rank.scheduler.policy for rank in ranks] == ["fcfs"] * 3


def test_a_change_is_undone_once_and_by_its_own_id_alone(ranks: list[Engine]) -> None:
    assert engine_control._set_policies(ranks[0], "a", "edf", None) is None
    engine_control._undo(ranks[0], "b")
    assert ranks[0].scheduler.policy == "edf"
    engine_control._undo(ranks[0], "a")
    engine_control._undo(ranks[0], "a")
    assert ranks[0].scheduler.policy == "fcfs"


def test_all_ranks_follow_other_settings_or_none_does(ranks: list[Engine]) -> None:
    section = {"objectives": {"nightly": "batch"}}
    change = bounded.run(engine_control.set_settings(None, section))
    assert [rank.scheduler.settings.objectives for rank in ranks] == [section["objectives"]] * 3
    assert bounded.run(engine_control.undo(None, change)) == ""
    assert [rank.scheduler.settings.objectives for rank in ranks] == [{}] * 3
    ranks[2].scheduler.fails = RuntimeError("out of luck")
    with pytest.raises(EngineError, match=r"rank 2: out of luck; all ranks follow their earlier settings"):
        bounded.run(engine_control.set_settings(None, section))
    assert [rank.scheduler.settings.objectives for rank in ranks] == [{}] * 3
    ranks[2].scheduler.fails = None
    with pytest.raises(ConfigError, match="plan_share: 0.05 -> 0.5 needs a restart"):
        bounded.run(engine_control.set_settings(None, {"plan_share": 0.5}))


def test_the_last_change_of_the_policy_says_who_made_it_and_can_be_undone(ranks: list[Engine]) -> None:
    bounded.run(engine_control.set_policies(None, "edf", "sjf", by="anna from 10.0.0.7"))
    first = [rank.scheduler.policy_change for rank in ranks]
    assert first[0] is not None and first == [first[0]] * 3
    assert (first[0].by, first[0].before) == ("anna from 10.0.0.7", "fcfs") and first[0].at_s > 1.7e9
    change(shadow_policy="")
    assert [rank.scheduler.policy_change for rank in ranks] == first, "a shadow policy decides nothing"
    with pytest.raises(ConfigError, match="'nosuch' is not the last change of the policy"):
        bounded.run(engine_control.set_policies(None, undoes="nosuch"))
    bounded.run(engine_control.set_policies(None, undoes=first[0].id, by="ben"))
    assert followed() == [("fcfs", None)] * 3
    undone = ranks[0].scheduler.policy_change
    assert undone is not None and (undone.by, undone.before) == ("ben", "edf")
    bounded.run(engine_control.set_policies(None, undoes=undone.id))
    assert followed() == [("edf", None)] * 3, "an undone change can be made again"


def test_a_change_that_a_rank_refuses_leaves_the_record_of_the_last_one(ranks: list[Engine]) -> None:
    change("sjf")
    recorded = [rank.scheduler.policy_change for rank in ranks]
    ranks[2].scheduler.fails = ConfigError("policy edf cannot")
    with pytest.raises(ConfigError, match="policy edf cannot"):
        change("edf")
    assert [rank.scheduler.policy_change for rank in ranks] == recorded


def test_a_policy_of_the_operator_comes_back_although_it_names_a_file(ranks: list[Engine], tmp_path: Path) -> None:
    given: list[bool] = []
    for rank in ranks:
        rank.scheduler.policy = f"sa:profile={tmp_path}"
    change("edf")
    (last,) = {rank.scheduler.policy_change for rank in ranks}
    follow = ranks[0].scheduler.set_policies

    def set_policies(policy: str | None, shadow_policy: str | None, *, allow_files: bool = True) -> None:
        given.append(allow_files)
        follow(policy, shadow_policy)

    ranks[0].scheduler.set_policies = set_policies  # type: ignore[method-assign]
    assert last is not None
    bounded.run(engine_control.set_policies(None, undoes=last.id))
    assert followed()[0][0] == f"sa:profile={tmp_path}" and given == [True]


def test_a_rank_that_fails_half_way_goes_back_as_well(ranks: list[Engine]) -> None:
    scheduler = ranks[1].scheduler
    before, follow = scheduler.settings, scheduler.set_settings

    def set_settings(settings: PluginSettings) -> None:
        follow(settings)
        if settings is not before:
            raise RuntimeError("half way")

    scheduler.set_settings = set_settings  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="rank 1: half way; all ranks follow their earlier settings"):
        bounded.run(engine_control.set_settings(None, {"max_body_bytes": 7}))
    assert [rank.scheduler.settings for rank in ranks] == [before] * 3


def test_each_rank_counts_the_other_instances_and_the_other_ranks(ranks: list[Engine]) -> None:
    for rank, service_s in zip(ranks, ({"a": 1.0}, {"a": 2.0, "b": 5.0}, {}), strict=True):
        rank.scheduler.service_s = service_s
    found = bounded.run(engine_control.set_elsewhere(None, {"a": 10.0, "c": 3.0}))
    assert [rank["tenant_service_s"] for rank in found] == [{"a": 1.0}, {"a": 2.0, "b": 5.0}, {}]
    assert [rank.scheduler.elsewhere_s for rank in ranks] == [
        {"a": 12.0, "b": 5.0, "c": 3.0},
        {"a": 11.0, "c": 3.0},
        {"a": 13.0, "b": 5.0, "c": 3.0},
    ]
    ranks[1].scheduler.fails = RuntimeError("out of luck")
    with pytest.raises(EngineError, match="was not set everywhere: rank 1: out of luck"):
        bounded.run(engine_control.set_elsewhere(None, {}))


def test_an_engine_without_shares_counts_no_service_elsewhere(ranks: list[Engine]) -> None:
    with pytest.raises(ConfigError, match="no tenant_shares"):
        bounded.run(engine_control.set_elsewhere(None, {"a": 1.0}))
