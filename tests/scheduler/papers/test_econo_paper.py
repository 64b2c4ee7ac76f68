"""EconoServe as published: what is promised fits, nobody is lost, who outlives its grant, groups, and determinism."""

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.arrays import IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.rows import State
from sloserve.scheduler.papers.econo_paper import EconoPaper
from sloserve.scheduler.papers.grants import NO_GROUP
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.registry import make_policy
from tests.scheduler.papers.fake_engine import FakeEngine, Task
from tests.snapshots import make_snapshot

BLOCKS, BLOCK_SIZE = 24, 4
NOW_S = 1000.0
NAME = "econo-paper"
VARIANTS: tuple[dict[str, Any], ...] = (
    {"parts": "d"},
    {"parts": "sd", "sync_tokens": 8},
    {"parts": "sdo", "sync_tokens": 8},
    {"parts": "full", "sync_tokens": 8},
    {"parts": "full", "pipeline": "future", "sync_tokens": 8},
    {"parts": "d", "pipeline": "hosting", "reserve": 0.3},
    {"parts": "d", "order": "paper", "pipeline": "future"},
)


def made(seed: int = 0, **settings: Any) -> EconoPaper:
    return EconoPaper(EconoPaper.Settings(**({"length": "oracle"} | settings)), seed=seed)


tasks = st.lists(
    st.builds(
        Task,
        prompt_tokens=st.integers(1, 60),
        output_tokens=st.integers(1, 36),
        arrival_step=st.integers(0, 30),
        e2e_s=st.sampled_from([np.nan, 0.1, 1.0, 5.0]),
        max_tokens=st.sampled_from([None, 36]),
    ),
    min_size=1,
    max_size=14,
).map(lambda some: sorted(some, key=lambda one: one.arrival_step))


def promised(policy: EconoPaper, snapshot: Snapshot, plan: Plan) -> int:
    """Blocks of all goals granted, and of all that the others hold, prompts whole and those of this plan included."""
    rows, grants = snapshot.rows, policy._grants
    stays = snapshot.running[~np.isin(snapshot.running, plan.preempt)]
    assert plan.waiting is not None and plan.max_running is not None
    coming = plan.waiting[: plan.max_running - stays.size]
    granted = grants.group[stays] != NO_GROUP
    paused = np.isin(stays, plan.pause)
    whole = np.concatenate((stays[~granted & ~paused], coming))

    def blocks(tokens: IntArray) -> int:
        return int((-(-tokens // BLOCK_SIZE)).sum())

    assert not (granted & paused).any()
    return (
        blocks(grants.goal[stays[granted]])
        + blocks(rows.computed_tokens[stays[paused]])
        + blocks(rows.prompt_tokens[whole] + rows.output_tokens[whole])
    )


@pytest.mark.slow
@given(tasks=tasks, variant=st.sampled_from(VARIANTS), slots=st.integers(1, 12), budget=st.sampled_from([8, 40]))
def test_nothing_fails_for_want_of_kv_where_lengths_are_known(
    variant: dict[str, Any], tasks: list[Task], slots: int, budget: int
) -> None:
    engine = FakeEngine(made(**variant), tasks, blocks=BLOCKS, slots=slots, budget=budget).run()
    assert sorted(engine.ended) == list(range(len(tasks)))
    assert not engine.failures and engine.free_blocks == BLOCKS


@pytest.mark.slow
@given(
    tasks=tasks,
    parts=st.sampled_from(["d", "sd", "sdo"]),
    remedy=st.sampled_from(["reserve", "pause", "preempt"]),
    error=st.sampled_from([0.3, 1.0]),
    slots=st.integers(2, 12),
)
def test_promises_never_exceed_the_kv_cache_however_wrong_they_are(
    parts: str, remedy: str, tasks: list[Task], error: float, slots: int
) -> None:
    policy = made(parts=parts, remedy=remedy, length_error=error, sync_tokens=None if parts == "d" else 8)

    def on_plan(snapshot: Snapshot, plan: Plan) -> None:
        assert promised(policy, snapshot, plan) <= BLOCKS

    engine = FakeEngine(policy, tasks, blocks=BLOCKS, slots=slots, on_plan=on_plan).run()
    assert sorted(engine.ended) == list(range(len(tasks)))
    assert not engine.failures


@given(
    tasks=tasks,
    variant=st.sampled_from(VARIANTS),
    remedy=st.sampled_from(["reserve", "pause", "preempt"]),
    error=st.sampled_from([None, 1.0]),
    fixed=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=14, max_size=14),
)
def test_all_end_whatever_is_predicted_and_whoever_must_not_be_touched(
    tasks: list[Task], variant: dict[str, Any], remedy: str, error: float | None, fixed: list[tuple[bool, bool]]
) -> None:
    some = [
        replace(one, pausable=may_pause, preemptable=may_preempt)
        for one, (may_pause, may_preempt) in zip(tasks, fixed, strict=False)
    ]
    known = {"length": "predicted"} if error is None else {"length_error": error}

    def on_plan(snapshot: Snapshot, plan: Plan) -> None:
        assert snapshot.rows.pausable[plan.pause].all() and snapshot.rows.preemptable[plan.preempt].all()
        assert not set(plan.pause.tolist()) & set(plan.preempt.tolist())

    engine = FakeEngine(made(**variant, remedy=remedy, **known), some, blocks=BLOCKS, on_plan=on_plan).run()
    assert sorted(engine.ended) == list(range(len(some)))


# A decision at a time. Blocks of 16 tokens, 4 slots of KV for one prompt each.


def gt(rest: int, prompt: int = 16, **more: Any) -> dict[str, Any]:
    """Runs, its prompt is computed, the first token is in flight; ``rest`` tokens are to come."""
    return {"prompt_tokens": prompt, "computed_tokens": prompt, "oracle_output_tokens": rest} | more


def plan(policy: EconoPaper, at: Snapshot) -> Plan:
    found = policy.plan(at, NOW_S)
    check_plan(found, at)
    return found


def told(at: Snapshot, **settings: Any) -> EconoPaper:
    policy = made(**settings)
    for slot in np.concatenate((at.running, at.waiting)).tolist():
        policy.arrived(at.rows, slot, NOW_S)
    return policy


def served(at: Snapshot, found: Plan) -> list[int]:
    return sorted(set(at.running.tolist()) - set(found.pause.tolist()) - set(found.preempt.tolist()))


def test_a_gt_runs_once_its_whole_length_is_promised_and_the_next_waits_with_its_kv() -> None:
    # 16 + 64 tokens are 5 blocks; two such and one held fill 11 of 12.
    at = make_snapshot(running=[gt(64), gt(64), gt(64)], total_blocks=13, free_blocks=9)
    policy = told(at, parts="d", reserve=0.0)
    found = plan(policy, at)
    assert served(at, found) == [0, 1] and found.pause.tolist() == [2]
    assert found.max_running == 3

    policy.finished(at.rows, 0, NOW_S)
    at.rows.free(0)
    at = replace(at, running=at.running[1:], engine=replace(at.engine, free_blocks=10))
    assert served(at, plan(policy, at)) == [1, 2]


def test_grants_leave_the_reserve_and_prompts_may_have_it_but_no_more_while_a_gt_waits() -> None:
    waiting = [{"prompt_tokens": 32}, {"prompt_tokens": 16}]
    at = make_snapshot(waiting, [gt(64), gt(64)], total_blocks=13, free_blocks=10)
    # 12 blocks, 3 of them reserved: 5 + 1 held leave 6, the second GT takes 4 of 3.
    found = plan(told(at, parts="d", reserve=0.25), at)
    assert found.pause.tolist() == [1]
    # Of the reserve 1 block is taken by the GT that waits: the first prompt takes the other 2.
    assert found.waiting is not None and found.waiting.tolist() == [2, 3] and found.max_running == 3
    # Nobody waits: all that is free is for prompts.
    found = plan(told(at, parts="d", reserve=0.0), at)
    assert not found.pause.size and found.max_running == 3


def test_prompts_fill_the_step_beside_those_who_run_and_the_last_is_cut() -> None:
    waiting = [{"prompt_tokens": 100}, {"prompt_tokens": 100}, {"prompt_tokens": 100}]
    at = make_snapshot(waiting, [gt(10), {"prompt_tokens": 90, "computed_tokens": 40}])
    found = plan(told(at, parts="d", tfs_tokens=152), at)
    assert found.max_running == 2 + 2 and found.token_budget == 152
    assert plan(told(at, parts="d", tfs_tokens=151), at).max_running == 2 + 1
    assert plan(told(at, parts="d"), at).max_running == 2 + 3


def reached(*, reserve_is_taken: bool, **settings: Any) -> tuple[EconoPaper, Snapshot]:
    """Of 8 blocks 2 are the reserve, 4 are promised to another, and 2 were to the one whose reply now goes on.

    The reserve may have been taken by a prompt that has come in.
    """
    at = make_snapshot([{"prompt_tokens": 32}], [gt(16), gt(48)], total_blocks=9, free_blocks=6)
    policy = told(at, parts="d", reserve=0.25, **settings)
    found = plan(policy, at)
    assert not found.pause.size and found.max_running == 3
    rows = at.rows
    rows.output_tokens[0], rows.computed_tokens[0] = 16, 32
    if reserve_is_taken:
        rows.state[2], rows.computed_tokens[2] = State.RUNNING, 8
    running, waiting = rows.slots_in(State.RUNNING), rows.slots_in(State.WAITING)
    free_blocks = 5 - reserve_is_taken
    return policy, replace(at, running=running, waiting=waiting, engine=replace(at.engine, free_blocks=free_blocks))


@pytest.mark.parametrize(
    ("remedy", "reserve_is_taken", "fate"),
    [
        ("reserve", False, "runs"),
        ("reserve", True, "paused"),
        ("pause", False, "paused"),
        ("preempt", False, "preempted"),
    ],
)
def test_who_outlives_its_grant(remedy: str, reserve_is_taken: bool, fate: str) -> None:
    policy, at = reached(reserve_is_taken=reserve_is_taken, remedy=remedy)
    found = plan(policy, at)
    assert (fate == "runs") == (0 in served(at, found))
    assert found.pause.tolist() == ([0] if fate == "paused" else [])
    assert found.preempt.tolist() == ([0] if fate == "preempted" else [])


def test_what_outlived_its_grant_is_predicted_anew_and_granted_when_there_is_room() -> None:
    policy, at = reached(reserve_is_taken=True)
    assert plan(policy, at).pause.tolist() == [0]
    policy.finished(at.rows, 1, NOW_S)
    at.rows.free(1)
    at = replace(at, running=np.array([0, 2]))
    assert served(at, plan(policy, at)) == [0, 2]


def test_while_nothing_runs_the_last_of_the_queue_give_way_to_the_first() -> None:
    """Three outlive their grants with all 8 blocks in their hands."""
    at = make_snapshot(running=[gt(0, 48), gt(0, 48), gt(0, 32)], total_blocks=9, free_blocks=0)
    at.rows.oracle_output_tokens[:] = 20
    found = plan(told(at, parts="d", reserve=0.0), at)
    assert served(at, found) == [0] and found.preempt.tolist() == [2] and found.pause.tolist() == [1]
    # Who must not be preempted is passed over.
    at.rows.preemptable[2] = False
    found = plan(told(at, parts="d", reserve=0.0), at)
    assert served(at, found) == [0] and found.preempt.tolist() == [1] and found.pause.tolist() == [2]
    # Nobody else holds enough: what is promised is what there is.
    at.rows.preemptable[1] = False
    assert served(at, plan(told(at, parts="d", reserve=0.0), at)) == [0]


def test_one_prompt_at_least_while_nothing_else_can_be_served() -> None:
    at = make_snapshot([{"prompt_tokens": 5000}], total_blocks=1000)
    assert plan(told(at), at).max_running == 1
    assert plan(told(at, order="fcfs"), at).max_running == 1
    assert plan(EconoPaper(), replace(at, waiting=at.waiting[:0])) is Plan.IDENTITY


# Time-synced groups.


def spans(tasks: list[Task], policy: EconoPaper, **engine: Any) -> dict[int, tuple[int, int]]:
    """First and last step of each task in which it was granted."""
    found: dict[int, list[int]] = defaultdict(list)

    def on_plan(snapshot: Snapshot, made: Plan) -> None:
        for slot in snapshot.running[policy._grants.group[snapshot.running] != NO_GROUP].tolist():
            found[fake.place_of(slot)].append(fake.step_number)

    fake = FakeEngine(policy, tasks, on_plan=on_plan, **engine)
    fake.run()
    return {place: (steps[0], steps[-1]) for place, steps in found.items()}


def test_a_group_starts_and_ends_together_and_the_next_begins_when_it_has_ended() -> None:
    # Two lengths, mixed: 16 tokens are promised to the shorter ones, 24 to the others. KV for four, or for three.
    some = [Task(8, 24 if place % 2 else 9) for place in range(6)]
    found = spans(some, made(parts="sd", sync_tokens=8, reserve=0.0), blocks=31)
    first, second = [found[place] for place in (0, 2, 4)], [found[place] for place in (1, 3, 5)]
    assert len(set(first)) == 1
    assert first[0][1] - first[0][0] == 8  # its 9 tokens; 16 were promised
    starts = sorted({start for start, _ in second})
    # The group of the longer ones is split where KV does not suffice; the rest follows when a group has ended.
    assert [sum(start == one for start, _ in second) for one in starts] == [1, 2]
    assert starts[0] == first[0][0] and starts[1] == first[0][1] + 1


@pytest.mark.slow
def test_without_groups_each_is_granted_as_soon_as_it_fits() -> None:
    some = [Task(8, 12), Task(8, 20), Task(8, 24), Task(8, 24)]
    unsynced = spans(some, made(parts="d", reserve=0.0), blocks=20)
    synced = spans(some, made(parts="sd", sync_tokens=24, reserve=0.0), blocks=20)
    # Synced, all four are one group of 24 tokens; two have room, and the others wait for the end of both.
    assert unsynced[2][0] <= unsynced[0][1] + 1 < unsynced[1][1]
    assert synced[0][0] == synced[1][0] and synced[2][0] == synced[3][0] == synced[1][1] + 1 > synced[0][1] + 1


# Variants.


def test_variants_by_one_word_and_by_their_parts() -> None:
    def parts(**settings: Any) -> tuple[int, str, str]:
        chosen = EconoPaper.Settings(**settings).chosen
        return chosen.sync_tokens, chosen.order, chosen.pipeline

    assert parts(parts="d") == (0, "fcfs", "none")
    assert parts(parts="sd") == (32, "fcfs", "none")
    assert parts(parts="sdo") == (32, "paper", "none")
    assert parts() == parts(parts="full") == (32, "paper", "hosting")
    assert parts(parts="full", sync_tokens=0, pipeline="future") == (0, "paper", "future")
    policy = make_policy("econo-paper", {"parts": "d", "sync_tokens": "64", "padding": "0.2"})
    assert policy.settings == EconoPaper.Settings(parts="d", sync_tokens=64, padding=0.2)


def test_shares_are_the_papers_at_first_and_tuned_unless_given() -> None:
    def padding(**settings: Any) -> tuple[float, bool]:
        tuning = EconoPaper.Settings(**settings).tuning()
        return tuning.shares.padding, "padding" in tuning.tuned

    assert padding() == padding(length="oracle", length_error=0.1) == (0.15, True)
    assert padding(length="oracle") == (0.0, True)
    assert padding(length="oracle", padding=0.2) == (0.2, False)
    for options in ({"padding": "0.2", "buffer": "auto"}, {"padding": 0.2, "buffer": "auto"}):
        settings = make_policy("econo-paper", options).settings
        assert (settings.padding, settings.buffer) == (0.2, "auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": "all"}, "parts: 'all' is not one of d, sd, sdo, full"),
        ({"order": "edf"}, "order: 'edf' is not one of fcfs, paper"),
        ({"pipeline": "nested"}, "pipeline: 'nested' is not one of none, hosting, future"),
        ({"remedy": "swap"}, "remedy: 'swap' is not one of reserve, pause, preempt"),
        (
            {"length": "guess"},
            "length: 'guess' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle",
        ),
        ({"padding": -1}, "padding: -1.0 is not within -0.9..4"),
        ({"padding": "tuned"}, "padding: 'tuned' is not a number or auto"),
        ({"reserve": "nan"}, "reserve: 'nan' is not a number or auto"),
        ({"reserve": 0.6}, "reserve: 0.6 is not within 0..0.5"),
        ({"buffer": 5}, "buffer: 5.0 is not within 0..4"),
        ({"sync_tokens": 5000}, "sync_tokens: 5000 is not within 0..4096"),
        ({"tfs_tokens": -1}, "tfs_tokens: -1 is not within 0..1048576"),
    ],
)
def test_an_impossible_setting_is_named_with_its_value_and_limit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'policy {NAME!r}: {message}')}$"):
        make_policy(NAME, options)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_same_events_make_the_same_plans(variant: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    some = [Task(int(rng.integers(1, 60)), int(rng.integers(1, 36)), i // 2, e2e_s=1.0) for i in range(5)]

    def plans() -> list[list[list[int] | int | None]]:
        noted = []

        def on_plan(_: Snapshot, made: Plan) -> None:
            assert made.running is not None and made.waiting is not None
            slots = (made.running, made.waiting, made.preempt, made.pause)
            noted.append([*(one.tolist() for one in slots), made.max_running])

        FakeEngine(made(3, length_error=0.5, **variant), some, blocks=BLOCKS, on_plan=on_plan).run()
        return noted

    assert plans() == plans()
