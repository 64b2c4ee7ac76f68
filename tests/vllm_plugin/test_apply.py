"""Carrying a plan out: what becomes of vLLM's queues, and that its limits are its own again afterwards."""

from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm


class Scheduler(SimpleNamespace):
    """What a plan is carried out on, of vLLM's scheduler. a, b, c run, d, e, f wait; slots as letters."""

    def __init__(self, running: str = "abc", waiting: str = "def") -> None:
        self.made = {name: SimpleNamespace(request_id=name) for name in running + waiting}
        self.preempted: list[str] = []
        super().__init__(
            running=[self.made[n] for n in running],
            waiting=deque(self.made[n] for n in waiting),
            requires_kv_delivery=False,
            current_step=7,
            max_num_active_reqs=8,
            num_waiting_for_streaming_input=0,
            max_num_scheduled_tokens=100,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )

    def _preempt_request(self, request: Any, timestamp: None, drop_stale_output: bool) -> None:
        self.preempted.append(request.request_id)
        self.waiting.appendleft(request)

    def queues(self) -> tuple[str, str]:
        return "".join(r.request_id for r in self.running), "".join(r.request_id for r in self.waiting)

    def table(self, without: str = "") -> Any:
        named = {n: ord(n) - ord("a") for n in self.made if n not in without}
        at = {slot: self.made[n] for n, slot in named.items()}
        running = sum(r.request_id in named for r in self.running)
        return SimpleNamespace(slot_of=named, request_at=at, num_running=running)


def slots(names: str) -> Any:
    return np.array([ord(n) - ord("a") for n in names], np.int64)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(), ("abc", "def")),
        (Plan(running=slots("cab"), waiting=slots("fde")), ("cab", "fde")),
        (Plan(running=slots("c"), waiting=slots("e")), ("cab", "edf")),
        (Plan(running=slots("ab"), waiting=slots("")), ("abc", "def")),
        (Plan(evict=slots("b")), ("ac", "bdef")),
        (Plan(evict=slots("bc"), running=slots("a"), waiting=slots("dcbef")), ("a", "dcbef")),
        (Plan(evict=slots("b"), waiting=slots("fb")), ("ac", "fbde")),
        # Named as waiting, but not in the queue (vLLM keeps it elsewhere, holding KV): left out.
        (Plan(waiting=slots("af")), ("abc", "fde")),
    ],
)
def test_queues(plan: Plan, expected: tuple[str, str]) -> None:
    from sloserve.vllm_plugin.apply import carry_out

    scheduler, counters = Scheduler(), Counter[str]()
    carry_out(scheduler, plan, scheduler.table(), counters)
    assert scheduler.queues() == expected
    assert counters["evictions"] == len(scheduler.preempted) == plan.evict.size


def test_requests_without_a_row_stay_ahead() -> None:
    from sloserve.vllm_plugin.apply import carry_out

    scheduler = Scheduler()
    plan = Plan(running=slots("ca"), waiting=slots("fd"))
    carry_out(scheduler, plan, scheduler.table(without="be"), Counter())
    assert scheduler.queues() == ("bca", "efd")


def test_an_order_that_is_there_already_moves_nothing() -> None:
    from sloserve.vllm_plugin.apply import carry_out

    scheduler = Scheduler()
    before = scheduler.running
    carry_out(scheduler, Plan(running=slots("ab"), waiting=slots("d")), scheduler.table(), Counter())
    assert scheduler.running is before


def limits(scheduler: Any) -> tuple[int, int, int]:
    from sloserve.vllm_plugin.compat import admission_limit_name

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
    from sloserve.vllm_plugin.apply import narrowed

    scheduler = Scheduler()
    scheduler.scheduler_config.long_prefill_token_threshold = threshold
    before = limits(scheduler)
    with narrowed(scheduler, plan, scheduler.table(), Counter()):
        assert limits(scheduler) == within
        assert {type(limit) for limit in limits(scheduler)} == {int}
    assert limits(scheduler) == before


def test_a_pause_ends_by_itself_and_skips_who_has_gone() -> None:
    from sloserve.vllm_plugin.apply import narrowed

    scheduler, counters = Scheduler(), Counter[str]()
    with narrowed(scheduler, Plan(pause=np.array([1, 55])), scheduler.table(), counters):
        pass
    assert scheduler.made["b"].next_decode_eligible_step == 9  # schedule() counts to 8, the one after to 9
    assert counters == {"paused_steps": 1}


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
    engine._add(request_of("a"), 0.0)
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
