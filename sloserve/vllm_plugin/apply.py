"""Carries a plan out on vLLM's scheduler: reorders its own queues, evicts, pauses, and narrows its limits for one step.

No queue of ours: the plan's order is written into vLLM's ``running`` list and ``waiting`` deque. So everything vLLM
does with them afterwards (append what arrives, put a preempted request in front, re-prepend what it skipped) keeps its
meaning, a plan that is reused needs no further work, and the identity plan is to touch nothing.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from vllm.v1.request import Request

from sloserve.scheduler.policy import Plan
from sloserve.scheduler.rows import IntArray
from sloserve.vllm_plugin import compat
from sloserve.vllm_plugin.rows import RequestTable


def carry_out(scheduler: Any, plan: Plan, table: RequestTable, counters: Counter[str]) -> None:
    """Evicts, then orders both queues. Once per plan, before ``schedule()``."""
    if plan.evict.size:
        _evict(scheduler, [table.request_at[s] for s in plan.evict.tolist()])
        counters["evictions"] += int(plan.evict.size)
    if plan.running is not None:
        order = _in_front(scheduler.running, plan.running, table)
        if order is not None:
            scheduler.running = order
    if plan.waiting is not None:
        queue = scheduler.waiting
        order = _in_front(queue, plan.waiting, table)
        if order is not None:
            queue.clear()
            queue.extend(order)


def _in_front(present: Any, named: IntArray, table: RequestTable) -> list[Request] | None:
    """``present`` with the named requests in front, the others behind in their present order; ``None`` if it is so
    already.

    Requests without a row stay ahead of all: no policy may delay what it cannot see. A named request that is not in
    ``present`` (it waits elsewhere, holding KV) is left out.
    """
    request_at, slot_of = table.request_at, table.slot_of
    wanted = [request_at[s] for s in named.tolist()]
    if wanted == list(islice(present, len(wanted))):
        return None
    members = {id(r) for r in present}
    wanted = [r for r in wanted if id(r) in members]
    chosen = {id(r) for r in wanted}
    rest = [r for r in present if id(r) not in chosen]
    strangers = [r for r in rest if r.request_id not in slot_of]
    if strangers:
        rest = [r for r in rest if r.request_id in slot_of]
    return strangers + wanted + rest


def _evict(scheduler: Any, victims: list[Request]) -> None:
    gone = {id(r) for r in victims}
    scheduler.running = [r for r in scheduler.running if id(r) not in gone]
    for request in victims:
        # No timestamp: vLLM then takes its own monotonic time for the event, as it does for a preemption of its own.
        scheduler._preempt_request(request, None, drop_stale_output=scheduler.requires_kv_delivery)


@contextmanager
def narrowed(scheduler: Any, plan: Plan, table: RequestTable, counters: Counter[str]) -> Iterator[list[Request]]:
    """The plan's pauses and limits for one ``schedule()``; the limits are vLLM's own again afterwards, whatever
    happens. Yields whom it paused.
    """
    running = scheduler.running
    paused: list[Request] = []
    if plan.pause.size:
        paused = [r for s in plan.pause.tolist() if (r := table.request_at.get(s)) is not None]
        for request in paused:
            compat.pause_for_next_step(scheduler, request)
        counters["paused_steps"] += len(paused)
    config = scheduler.scheduler_config
    limit_name = compat.admission_limit_name(scheduler)
    saved = (getattr(scheduler, limit_name), scheduler.max_num_scheduled_tokens, config.long_prefill_token_threshold)
    try:
        if plan.max_running is not None:
            # vLLM counts who is not of the plan's snapshot too.
            others = compat.places_taken(scheduler) - table.num_running
            # Never below what runs already: the limit is on admission, and vLLM 0.30 asserts it on the running list.
            setattr(scheduler, limit_name, min(saved[0], max(int(plan.max_running) + others, len(running))))
        if plan.token_budget is not None:
            scheduler.max_num_scheduled_tokens = min(saved[1], int(plan.token_budget))
        if plan.prefill_chunk_tokens is not None:
            chunk = int(plan.prefill_chunk_tokens)
            config.long_prefill_token_threshold = min(saved[2], chunk) if saved[2] > 0 else chunk
        yield paused
    finally:
        setattr(scheduler, limit_name, saved[0])
        scheduler.max_num_scheduled_tokens = saved[1]
        config.long_prefill_token_threshold = saved[2]
