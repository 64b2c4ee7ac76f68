"""Another policy in the middle of a run: nobody is lost, rows are as if they had been kept all along, and a mistake
changes nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.rows import Rows, State
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from tests import bounded

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]
POLICIES = ("fcfs", "edf:preempt_margin_s=0.1", "sjf", "chaos", "priority")


def workload(request_of: RequestOf) -> list[Any]:
    return [
        request_of(
            f"r{i}", 0.02 * (i // 3), 10 + 7 * i, 12 + i, e2e_s=0.2 * (i % 5 + 1) if i % 4 else None, priority=i % 3
        )
        for i in range(18)
    ]


def changing(engine: Any, changes: dict[int, Callable[[Any], Any]]) -> None:
    """Has each change made behind the step of that number, while its result is still in flight."""
    step = 0

    def on_step(output: Any) -> None:
        nonlocal step
        step += 1
        if step in changes:
            changes[step](engine.scheduler)

    engine.on_step = on_step


@pytest.mark.parametrize("first", POLICIES)
def test_nobody_is_lost_whatever_follows_whatever(build: Build, request_of: RequestOf, first: str) -> None:
    engine = build(first, kv_blocks=24)
    followers = [name for name in POLICIES if name != first]
    seen = []

    def change(text: str) -> Callable[[Any], None]:
        def made(scheduler: Any) -> None:
            scheduler.set_policies(text)
            seen.append(scheduler.status()["policy"])

        return made

    order = [text for name in followers for text in (name, first)]
    changing(engine, {7 + 9 * i: change(text) for i, text in enumerate(order)})
    log = engine.run(workload(request_of))
    assert seen == order
    assert {r.outcome for r in log.requests} == {Outcome.COMPLETED}
    assert [r.token_times_s.size for r in log.requests] == [12 + i for i in range(18)]
    scheduler = engine.scheduler
    assert scheduler.status()["policy"] == first
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 24
    assert not scheduler._stats.slo_of
    if first != "fcfs":
        assert len(scheduler.planner.table.rows) == 0


def test_to_the_same_policy_and_to_fcfs_and_back_nothing_changes_for_stateless_ones(
    build: Build, request_of: RequestOf
) -> None:
    """edf keeps no state, so it must decide the same from rows made up in the middle as from rows kept."""
    engine, untouched = build("edf:preempt=false", kv_blocks=24), build("edf:preempt=false", kv_blocks=24)
    expected = untouched.run(workload(request_of))

    def there_and_back(scheduler: Any) -> None:
        before = scheduler.planner.table
        if scheduler.slo_counters["plans"] % 2:
            scheduler.set_policies("fcfs")
            assert scheduler.planner is None
        scheduler.set_policies("edf:preempt=false")
        rows, live = scheduler.planner.table.rows, scheduler.planner.table.slot_of
        assert live.keys() == before.slot_of.keys()
        for request_id, slot in live.items():
            was = before.slot_of[request_id]
            # Without TPOT and TDS it matters to edf only whether the first token has come.
            assert np.isnan(rows.first_token_s[slot]) == np.isnan(before.rows.first_token_s[was])
            assert rows.state[slot] == before.rows.state[was]
            assert rows.num_preemptions[slot] == before.rows.num_preemptions[was]

    changing(engine, dict.fromkeys(range(3, 60, 4), there_and_back))
    found = engine.run(workload(request_of))
    assert [r.token_times_s.tolist() for r in found.requests] == [r.token_times_s.tolist() for r in expected.requests]


def test_what_a_new_policy_is_told_and_what_its_rows_say(
    build: Build, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, State]] = []

    class Listening(Policy):
        needs = frozenset({"arrival_s", "first_token_s", "output_tokens"})

        def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
            told.append((int(rows.seq[slot]), State(rows.state[slot])))

        def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
            return Plan.IDENTITY

    engine = build("fcfs", kv_blocks=60)
    for name in "abcdef":
        engine._add([request_of(name, output_tokens=30)], 1_000_000.0)
    for _ in range(3):
        engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    monkeypatch.setattr("sloserve.engine.policy_maker.make_policy", lambda *args, **kwargs: Listening())
    engine.scheduler.set_policies("listening")
    rows = engine.scheduler.planner.table.rows
    assert told == [(i, State.RUNNING if i < 4 else State.WAITING) for i in range(6)]
    slots = [engine.scheduler.planner.table.slot_of[name] for name in "abcdef"]
    assert (~np.isnan(rows.first_token_s[slots])).tolist() == [True] * 4 + [False] * 2


def test_a_mistake_leaves_the_policy_as_it_was(build: Build, request_of: RequestOf) -> None:
    scheduler = build("sjf", section={"shadow_policy": "edf"}).scheduler
    planner = scheduler.planner
    for wrong in ("nonesuch", "edf:colour=red", "edf:preempt", "edf:preempt_margin_s=-1"):
        with pytest.raises(ConfigError):
            scheduler.set_policies("rr", wrong)
        with pytest.raises(ConfigError):
            scheduler.set_policies(wrong, "rr")
    assert scheduler.planner is planner
    assert (scheduler.status()["policy"], scheduler.status()["shadow_policy"]) == ("sjf", "edf")


def test_a_fault_while_rows_change_hands_is_told_and_the_old_policy_plans_again_later(
    build: Build, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are shared by the planner that goes and the one that comes: half changed, neither may use them."""
    from sloserve.engine.request_table import RequestTable

    engine = build("sjf", kv_blocks=24)
    scheduler = engine.scheduler

    def fail(*args: Any) -> None:
        raise RuntimeError("half way")

    def change(scheduler: Any) -> None:
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="half way"):
            patch.setattr(RequestTable, "_fill", fail)
            scheduler.set_policies("edf")
        assert scheduler.planner is None and scheduler.status()["policy"] == "sjf"

    changing(engine, {9: change})
    scheduler.policies._pause_s = 0.1
    log = engine.run(workload(request_of))
    assert [r.token_times_s.size for r in log.requests] == [12 + i for i in range(18)]
    assert scheduler.planner is not None and log.counters["plans"] > 9
    assert type(scheduler.planner.policy).__name__ == "SJF"


def test_shadow_mode_can_be_turned_on_and_off_without_disturbing_the_policy(
    build: Build, request_of: RequestOf
) -> None:
    engine, alone = build("chaos", kv_blocks=24), build("chaos", kv_blocks=24)
    scores: list[float] = []

    def note(scheduler: Any) -> None:
        scores.append(scheduler.status()["shadow_plans"])

    changing(
        engine,
        {
            4: lambda scheduler: scheduler.set_policies(shadow_policy="edf"),
            20: note,
            21: lambda scheduler: scheduler.set_policies(shadow_policy="sjf:preempt=true"),
            40: note,
            41: lambda scheduler: scheduler.set_policies(shadow_policy=""),
            60: note,
        },
    )
    found, expected = engine.run(workload(request_of)), alone.run(workload(request_of))
    assert [r.token_times_s.tolist() for r in found.requests] == [r.token_times_s.tolist() for r in expected.requests]
    assert found.counters == expected.counters
    assert scores[0] > 0 and scores[1] > 0 and scores[2] == 0


def test_vllm_s_own_priority_scheduling_leaves_only_fcfs(build: Build) -> None:
    scheduler = build("fcfs").scheduler
    scheduler.scheduler_config.policy = "priority"
    with pytest.raises(ConfigError, match="policy edf cannot"):
        scheduler.set_policies("edf", "sjf")
    assert (scheduler.status()["policy"], scheduler.status()["shadow_policy"]) == ("fcfs", None)
    scheduler.set_policies("fcfs")


def test_every_rank_answers_for_itself() -> None:
    from sloserve.vllm_plugin.engine import compat

    class Client:
        core_engines = ("well", "failing", "silent")

        async def _call_utility_async(self, method: str, *args: Any, engine: str) -> Any:
            if engine == "failing":
                raise RuntimeError("no")
            if engine == "silent":
                await asyncio.Event().wait()
            return method, args

    answers = bounded.run(compat.call_every_engine(Client(), "do", 1, limit_s=0.01))
    assert answers[0] == ("do", (1,)) and [type(x) for x in answers[1:]] == [RuntimeError, TimeoutError]
