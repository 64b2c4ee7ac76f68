"""Turns of LoRA adapters on an engine that runs fewer of them at once than its requests name.

The engine passes over a waiting request if its adapter does not run and all places of adapters are taken, and goes on
with the next request. An adapter with requests that keep coming would hold its place for ever. So an adapter gives up
its place where a waiting request has a right to it: its waiting requests are held back until its running requests have
ended.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.lso.plan import Plan, Snapshot

TURN_S: Final = 5.0
"""Seconds of service by which an adapter that runs must have had more than one that waits to give up its place.

While an adapter gives up its place, its requests wait and the engine computes less: a turn is longer than an output.
"""


def with_adapter_turn(plan: Plan, snapshot: Snapshot, lora_of: Callable[[int], int | None], max_loras: int) -> Plan:
    """Return ``plan``, with the requests of one adapter held back if another adapter is to get its place.

    A waiting request has a right to a place of adapters if it is aged and has the next turn, or if its level by its
    tenant's service is lower than the level of an adapter that runs, and its service less by :data:`TURN_S`. Of the
    adapters that run, the adapter with the highest level gives up its place, of several the adapter with most service.

    Args:
        plan: Plan after all other rules of the order of admission.
        snapshot: The engine's state.
        lora_of: Function that returns the adapter of the request in a slot; ``None`` for the model itself.
        max_loras: Number of adapters that may run at once.
    """
    order = _whole_order(plan, snapshot)
    running = Counter(lora for slot in snapshot.running.tolist() if (lora := lora_of(slot)) is not None)
    if not order.size or len(running) < max_loras:
        return plan
    adapters = [lora_of(slot) for slot in order.tolist()]
    passed_over = [i for i, lora in enumerate(adapters) if lora is not None and lora not in running]
    if not passed_over:
        return plan
    had = _service(snapshot, lora_of)
    given_up = max(running, key=lambda lora: (had.get(lora, (0, 0.0)), -running[lora], -lora))
    has_turn = passed_over[0] == 0 and bool(np.isin(order[0], snapshot.turns.aged))
    if not (has_turn or _is_owed(snapshot, order[passed_over], *had.get(given_up, (0, 0.0)))):
        return plan
    is_held = np.array([lora == given_up for lora in adapters])
    can_run = sum(lora is None or lora in running for lora in adapters) - int(is_held.sum())
    most = max(snapshot.running.size - plan.preempt.size + can_run, 1)
    limit = most if plan.max_running is None else min(plan.max_running, most)
    return replace(plan, waiting=np.concatenate((order[~is_held], order[is_held])), max_running=limit)


def _whole_order(plan: Plan, snapshot: Snapshot) -> IntArray:
    """Return the order of admission of all waiting requests; the plan need not name all of them."""
    waiting = snapshot.waiting[np.argsort(snapshot.rows.seq[snapshot.waiting])]
    if plan.waiting is None:
        return waiting
    return np.concatenate((plan.waiting, waiting[~np.isin(waiting, plan.waiting)]))


def _service(snapshot: Snapshot, lora_of: Callable[[int], int | None]) -> dict[int, tuple[int, float]]:
    """Return the highest level and service in seconds of each adapter's running requests, by adapter."""
    found: dict[int, tuple[int, float]] = {}
    if snapshot.standing is not None:
        accounts = snapshot.rows.account[snapshot.running]
        levels, service_s = snapshot.standing.level[accounts], snapshot.standing.service_s[accounts]
        for slot, *had in zip(snapshot.running.tolist(), levels.tolist(), service_s.tolist(), strict=True):
            lora = lora_of(slot)
            if lora is not None:
                found[lora] = max(found.get(lora, (0, 0.0)), (had[0], had[1]))
    return found


def _is_owed(snapshot: Snapshot, waiting: IntArray, level: int, service_s: float) -> bool:
    """Return whether one of these waiting requests is owed the place of an adapter with this level and service."""
    if snapshot.standing is None:
        return False
    accounts = snapshot.rows.account[waiting]
    less = snapshot.standing.service_s[accounts] < service_s - TURN_S
    return bool((less & (snapshot.standing.level[accounts] < level)).any())
