"""Carrying a plan out: what becomes of vLLM's queues, and that its limits are its own again afterwards."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.policy import Plan, Policy, Snapshot
from tests.seeds import seeds

pytestmark = pytest.mark.vllm


class Request(SimpleNamespace):
    """As vLLM's: equal to itself alone."""

    __eq__, __hash__ = object.__eq__, object.__hash__


class Scheduler(SimpleNamespace):
    """What a plan is carried out on, of vLLM's scheduler. a, b, c run, d, e, f wait; slots as letters."""

    def __init__(self, running: str = "abc", waiting: str = "def", prompts: str = "") -> None:
        from vllm.v1.request import RequestStatus

        self.made = {
            name: Request(
                request_id=name,
                status=RequestStatus.RUNNING if name in running else RequestStatus.WAITING,
                next_decode_eligible_step=0,
                is_prefill_chunk=name in prompts,
                arrival_time=0.0,
            )
            for name in running + waiting
        }
        self.preempted: list[str] = []
        super().__init__(
            requests=self.made,
            running=[self.made[n] for n in running],
            waiting=deque(self.made[n] for n in waiting),
            requires_kv_delivery=False,
            current_step=7,
            max_num_active_reqs=8,
            num_waiting_for_streaming_input=0,
            max_num_scheduled_tokens=100,
            num_prefill_lookahead=0,
            need_mamba_block_aligned_split=False,
            num_spec_tokens=0,
            prev_step_scheduled_req_ids={"a", "b"},
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )

    def _preempt_request(self, request: Any, timestamp: None, drop_stale_output: bool) -> None:
        self.preempted.append(request.request_id)
        self.waiting.appendleft(request)

    def queues(self) -> tuple[str, str]:
        return "".join(r.request_id for r in self.running), "".join(r.request_id for r in self.waiting)

    def table(self, without: str = "", protected: str = "") -> Any:
        named = {n: ord(n) - ord("a") for n in self.made if n not in without}
        running = sum(r.request_id in named for r in self.running)
        first = slots(protected)
        return SimpleNamespace(
            slot_of=named,
            request_at=[self.made.get(name) for name in "abcdefghijklmnopqrstuvwxyz"],
            requests_in=lambda slots: [self.made[chr(ord("a") + slot)] for slot in slots],
            has_all=lambda requests: len(requests) == len(named),
            num_running=running,
            marks=SimpleNamespace(protected_running=lambda: first),
        )


def slots(names: str) -> Any:
    return np.array([ord(n) - ord("a") for n in names], np.int64)


def apply_plan(scheduler: Scheduler, plan: Plan, table: Any) -> list[Any]:
    from sloserve.vllm_plugin.engine import apply

    apply.preempt(scheduler, apply.running_requests(scheduler, plan.preempt, table))
    return apply.apply_plan(scheduler, plan, table, apply.StockLimits(scheduler))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(), ("abc", "def")),
        (Plan(running=slots("cab"), waiting=slots("fde")), ("cab", "fde")),
        (Plan(running=slots("c"), waiting=slots("e")), ("cab", "edf")),
        (Plan(running=slots("ab"), waiting=slots("")), ("abc", "def")),
        (Plan(preempt=slots("b")), ("ac", "bdef")),
        (Plan(preempt=slots("bc"), running=slots("a"), waiting=slots("dcbef")), ("a", "dcbef")),
        (Plan(preempt=slots("b"), waiting=slots("fb")), ("ac", "fbde")),
        # Named as waiting, but not in the queue (vLLM keeps it elsewhere, holding KV): left out.
        (Plan(waiting=slots("af")), ("abc", "fde")),
    ],
)
def test_queues(plan: Plan, expected: tuple[str, str]) -> None:
    scheduler = Scheduler()
    apply_plan(scheduler, plan, scheduler.table())
    assert scheduler.queues() == expected
    assert len(scheduler.preempted) == plan.preempt.size


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_long_queues_keep_everyone_in_the_order_that_is_asked_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [chr(ord("a") + i) for i in range(26)]
    waiting = "".join(rng.permutation(names)[: rng.integers(1, 26)])
    hidden = "".join(rng.choice(names, rng.integers(0, 4)))
    named = "".join(n for n in rng.permutation(names)[: rng.integers(1, 26)] if n not in hidden)
    scheduler = Scheduler(running="", waiting=waiting)
    scheduler.made |= {
        n: Request(request_id=n, arrival_time=0.0) for n in named if n not in waiting
    }  # they wait elsewhere
    apply_plan(scheduler, Plan(waiting=slots(named)), scheduler.table(without=hidden))
    moved = [n for n in named if n in waiting]
    if not waiting.startswith(named):
        moved = [n for n in waiting if n in hidden] + moved
    expected = moved + [n for n in waiting if n not in moved]
    assert list(scheduler.queues()[1]) == expected


def test_requests_without_a_row_stay_ahead() -> None:
    scheduler = Scheduler()
    apply_plan(scheduler, Plan(running=slots("ca"), waiting=slots("fd")), scheduler.table(without="be"))
    assert scheduler.queues() == ("bca", "efd")


@pytest.mark.parametrize(
    ("came_s", "expected"),
    [(0.0, "eiadfgh"), (2.5, "aeidfgh"), (3.5, "adfeigh"), (9.0, "adfghei")],
)
def test_an_untracked_request_overtakes_none_that_came_before_it(came_s: float, expected: str) -> None:
    """Sessions that keep coming would be admitted before all others for ever, aged ones too."""
    scheduler = Scheduler(running="", waiting="aeidfgh")
    for name, arrival_time in zip("adfgh", (1.0, 3.0, 2.0, 4.0, 5.0), strict=True):
        scheduler.made[name].arrival_time = arrival_time
    for name in "ei":
        scheduler.made[name].arrival_time = came_s
    apply_plan(scheduler, Plan(waiting=slots("adfg")), scheduler.table(without="ei"))
    assert scheduler.queues()[1] == expected


@pytest.mark.parametrize(
    ("prompts", "protected", "expected"),
    [("b", "", "cadb"), ("bd", "", "cabd"), ("bd", "d", "dcab"), ("bad", "d", "dcba"), ("", "", "bcad")],
)
def test_unfinished_prompts_without_a_row_come_behind_the_decodes(prompts: str, protected: str, expected: str) -> None:
    """A session's prompt would take all of a step that was made short, and decodes nothing."""
    scheduler = Scheduler(running="abcd", waiting="e", prompts=prompts)
    apply_plan(scheduler, Plan(running=slots("cad")), scheduler.table(without="b", protected=protected))
    assert scheduler.queues()[0] == expected


@pytest.mark.parametrize("plan", [Plan(), Plan(running=slots("abc"))])
def test_protected_ones_stand_first_whatever_is_planned(plan: Plan) -> None:
    """vLLM takes from the end who makes room."""
    scheduler = Scheduler()
    apply_plan(scheduler, plan, scheduler.table(protected="cb"))
    assert scheduler.queues() == ("cba", "def")


def test_an_order_that_is_there_already_moves_nothing() -> None:
    scheduler = Scheduler()
    before = scheduler.running, scheduler.waiting
    apply_plan(scheduler, Plan(running=slots("ab"), waiting=slots("d")), scheduler.table())
    assert (scheduler.running, scheduler.waiting) == before
    assert scheduler.running is before[0] and scheduler.waiting is before[1]


def test_who_does_not_run_is_neither_preempted_nor_paused() -> None:
    from sloserve.vllm_plugin.engine.apply import WrongRows

    for plan in (Plan(preempt=slots("bd")), Plan(pause=slots("ad"))):
        scheduler = Scheduler()
        with pytest.raises(WrongRows, match="d is to be preempted or paused, but does not run"):
            apply_plan(scheduler, plan, scheduler.table())
        assert scheduler.queues() == ("abc", "def") and not scheduler.preempted


@pytest.mark.parametrize("at", range(3))
def test_a_fault_between_the_changes_takes_all_of_them_back(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the third pause, at the first, and in the limits: queues, pauses and limits are as they were."""
    from sloserve.vllm_plugin.engine import compat

    left, stock = [2 - at], compat.pause_for_next_step

    def pause(scheduler: Any, request: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("in between")
        stock(scheduler, request)

    monkeypatch.setattr(compat, "pause_for_next_step", pause)
    scheduler = Scheduler()
    before = limits(scheduler), scheduler.running, scheduler.waiting
    budget: Any = 9 if at else 9j
    plan = Plan(running=slots("cb"), waiting=slots("f"), pause=slots("abc"), max_running=4, token_budget=budget)
    with pytest.raises((RuntimeError, TypeError)):
        apply_plan(scheduler, plan, scheduler.table())
    assert limits(scheduler) == before[0]
    assert scheduler.running is before[1] and scheduler.waiting is before[2]
    assert scheduler.queues() == ("abc", "def")
    assert not any(request.next_decode_eligible_step for request in scheduler.made.values())


def limits(scheduler: Any) -> tuple[int, int, int]:
    from sloserve.vllm_plugin.engine.compat import admission_limit_name

    config = scheduler.scheduler_config
    admissions = getattr(scheduler, admission_limit_name(scheduler))
    return admissions, scheduler.max_num_scheduled_tokens, config.long_prefill_token_threshold


@pytest.mark.parametrize(
    ("plan", "threshold", "within"),
    [
        (Plan(), 0, (8, 100, 0)),
        (Plan(max_running=5, token_budget=30, prefill_chunk_tokens=16), 0, (5, 30, 16)),
        (Plan(max_running=1), 0, (3, 100, 0)),  # three run
        (Plan(max_running=99, token_budget=999, prefill_chunk_tokens=99), 24, (8, 100, 24)),
        (Plan(prefill_chunk_tokens=16), 24, (8, 100, 16)),
        (Plan(token_budget=np.int64(7)), 0, (8, 7, 0)),  # type: ignore[arg-type]
    ],
)
def test_limits_hold_within_and_only_within(plan: Plan, threshold: int, within: tuple[int, int, int]) -> None:
    from sloserve.vllm_plugin.engine.apply import StockLimits

    scheduler = Scheduler()
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    before, own = limits(scheduler), StockLimits(scheduler)
    own.narrow(plan, scheduler.table().num_running)
    assert limits(scheduler) == within
    assert {type(limit) for limit in limits(scheduler)} == {int}
    own.restore()
    assert limits(scheduler) == before


@pytest.mark.parametrize(("planned", "within"), [(16, (16, False)), (40, (40, False)), (60, (32, True))])
def test_vllm_does_not_raise_the_chunk_of_a_plan(planned: int, within: tuple[int, bool]) -> None:
    """Its adaptive threshold is at least an equal share of a full step: 300 tokens for six requests."""
    from sloserve.vllm_plugin.engine.apply import StockLimits

    scheduler = Scheduler()
    scheduler.adaptive_long_prefill_threshold = True
    scheduler.get_request_counts = lambda: (3, 3)
    config = scheduler.scheduler_config
    config.long_prefill_token_threshold, config.max_num_batched_tokens = 32, 300

    def chunk() -> tuple[int, bool]:
        return config.long_prefill_token_threshold, scheduler.adaptive_long_prefill_threshold

    own = StockLimits(scheduler)
    own.narrow(Plan(prefill_chunk_tokens=planned), 3)
    assert chunk() == within
    own.restore()
    assert chunk() == (32, True)


def test_a_pause_ends_by_itself() -> None:
    scheduler = Scheduler()
    assert apply_plan(scheduler, Plan(pause=slots("b")), scheduler.table()) == [scheduler.made["b"]]
    assert scheduler.made["b"].next_decode_eligible_step == 9  # schedule() counts to 8, the one after to 9


class Narrow(Policy):
    needs = frozenset({"prompt_tokens"})

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan(max_running=2, token_budget=9, prefill_chunk_tokens=3)


def test_limits_are_restored_when_vllm_raises(
    build: Callable[..., Any], request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    engine = build(Narrow())
    scheduler = engine.scheduler
    engine._add([request_of("a")], 0.0)
    before = limits(scheduler)
    seen = []

    def fail(self: Any, *args: Any) -> None:
        seen.append(limits(self))
        raise MemoryError("no more")

    monkeypatch.setattr(AsyncScheduler, "schedule", fail)
    with pytest.raises(MemoryError):
        scheduler.schedule()
    assert seen == [(2, 9, 3)]
    assert limits(scheduler) == before


def test_a_pause_leaves_a_longer_wait_of_vllm_s_own() -> None:
    """Its pipelines let as many steps pass between two of a request as they have stages."""
    from types import SimpleNamespace

    from sloserve.vllm_plugin.engine import compat

    scheduler = SimpleNamespace(current_step=5)
    for waits_until, after in ((0, 7), (7, 7), (9, 9)):
        request: Any = SimpleNamespace(next_decode_eligible_step=waits_until)
        compat.pause_for_next_step(scheduler, request)
        assert request.next_decode_eligible_step == after
