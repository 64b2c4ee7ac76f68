"""Planning by one key: admit and serve in ascending key, and preempt the last requests for ones that rank before them.

Most policies reduce to a number per request (a deadline, a priority, remaining work); this module turns such numbers
into a plan.

Requests of tenants that have had more than their share of the engine come after the requests of all other tenants.
Where they have had clearly more, no running request gives way to them, and they give way to the others' requests.

Class rank has one rule, for all policies that read it (:func:`by_class`, :func:`first_places`): *a request for
which targets do not decide is served before every request of a less urgent class.* Where they decide for both of two
requests the policy's key orders them, whatever their classes; equal keys are ordered by class, then by arrival.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.kernels import rank as compiled
from sloserve.core.kernels import requests
from sloserve.core.rows import Rows
from sloserve.lso.decode_first import PREFILL_COLUMNS, service_order
from sloserve.lso.plan import NO_SLOTS, Plan, Snapshot
from sloserve.lso.preemption import Head, PreemptionCandidate, select_victims
from sloserve.lso.standing import by_level
from sloserve.lso.swapping import cheaper_later, preemption_price


class ClassRank(Enum):
    """Place of the rank of a request's class in a policy's order."""

    UNREAD = "unread"
    UNDECIDED = "undecided"
    """The rank decides for requests with a key of inf: the policy's targets say nothing about them."""
    FIRST = "first"
    """The rank decides before the key: the policy reads no targets."""


PREEMPTION_COLUMNS = PREFILL_COLUMNS | {"kv_blocks", "num_preemptions", "preemptable"}
"""Columns that :func:`plan_by_key` reads when it may preempt; when it may not, PREFILL_COLUMNS."""


@dataclass(frozen=True, slots=True)
class PreemptionRule:
    """Conditions under which a key policy may preempt a running request for a waiting one.

    Args:
        margin: Amount by which a victim's key must exceed the waiting request's key, or less where the victim can be
            swapped (:func:`~sloserve.lso.swapping.cheaper_later`).
        in_seconds: Whether keys are times in seconds.
        max_preemptions: Number of preemptions after which a request is not a victim again, so that recomputation is
            bounded.
        keep_free: Share of KV blocks that stay free for the growth of decoding requests.
    """

    margin: float = 0.0
    in_seconds: bool = False
    max_preemptions: int = 3
    keep_free: float = 0.01


def preemption_in_seconds(preempt: bool, margin_s: float, max_preemptions: int) -> PreemptionRule | None:
    """Return the rule of a policy with keys that are times, or ``None`` if it may not preempt."""
    return PreemptionRule(margin_s, in_seconds=True, max_preemptions=max_preemptions) if preempt else None


TARGET_COLUMNS = frozenset({"ttft_s", "tpot_s", "e2e_s", "tds"})
"""Columns that hold what a request asks for, its class's targets included; nan where it asks for nothing."""


def without_targets(rows: Rows, slots: IntArray) -> BoolArray:
    """Return which requests have no target, ``[len(slots)]``."""
    return requests.without_targets(slots, ttft_s=rows.ttft_s, tpot_s=rows.tpot_s, e2e_s=rows.e2e_s, tds=rows.tds)


def by_class(key: FloatArray, rank: IntArray, undecided: BoolArray | None = None) -> FloatArray:
    """Return ``key``, lowered where no target decides it to the least key of any less urgent class; ``[n]`` each.

    With :func:`first_places`, which puts the more urgent class first among equals, this is the rule of the module.

    Args:
        key: Key of each request; the least is served first.
        rank: Rank of each request's class, 0 the most urgent.
        undecided: Whether no target decides a key; ``None`` for all keys, which then are served class after class.
    """
    return compiled.by_class(np.ascontiguousarray(key, np.float64), np.ascontiguousarray(rank, np.int64), undecided)


def first_places(key: FloatArray, lowered: FloatArray, rank: IntArray, seq: IntArray, most: int) -> IntArray:
    """Return the places of the first ``most`` requests.

    They are ordered by what :func:`by_class` made of the key, then class, key, and arrival; by key and arrival where
    all are of one class.
    """
    return compiled.first_places(
        key=np.ascontiguousarray(key, np.float64),
        lowered=np.ascontiguousarray(lowered, np.float64),
        rank=np.ascontiguousarray(rank, np.int64),
        seq=np.ascontiguousarray(seq, np.int64),
        k=most,
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """Waiting and running requests in the order of the rule.

    Args:
        lowered: What :func:`by_class` made of the key, ``[n]``.
        waiting: Places of the waiting requests in order, counted from the first waiting one.
        running: Places of the running requests in order, counted from the first running one.
    """

    lowered: FloatArray
    waiting: IntArray
    running: IntArray


def ranked(
    snapshot: Snapshot,
    slots: IntArray,
    key: FloatArray,
    undecided: BoolArray | None = None,
    class_rank: ClassRank = ClassRank.UNDECIDED,
) -> Ranked:
    """Apply the rule of the module to all requests of a snapshot.

    Of the waiting requests, only as many are ordered as there are slots: no step can admit more.

    Args:
        snapshot: The engine's state.
        slots: Slots of ``snapshot.waiting``, then of ``snapshot.running``, ``[n]``.
        key: Key of each slot, ``[n]``; the least is served first.
        undecided: Whether no target decides a key, see :func:`by_class`.
        class_rank: Place of the class's rank in the order; ``UNREAD`` to take all requests for one class.
    """
    rows, queued = snapshot.rows, snapshot.waiting.size
    rank = None if class_rank is ClassRank.UNREAD else rows.class_rank
    most = min(queued, snapshot.engine.max_num_seqs)
    levels = snapshot.levels(slots)
    found = Ranked(
        *compiled.ranked(
            np.ascontiguousarray(key, np.float64),
            slots,
            queued=queued,
            class_rank=rank,
            seq=rows.seq,
            undecided=undecided,
            most=most if levels is None else queued,
        )
    )
    if levels is None:
        return found
    return Ranked(
        _given_way(snapshot, slots, found.lowered),
        by_level(found.waiting, levels[:queued])[:most],
        by_level(found.running, levels[queued:]),
    )


def _given_way(snapshot: Snapshot, slots: IntArray, lowered: FloatArray) -> FloatArray:
    """Return ``lowered``, inf for requests of tenants that are far enough beyond their shares to give way."""
    far = snapshot.gives_way(slots)
    return lowered if far is None else np.where(far, np.inf, lowered)


def ranks(*keys: IntArray) -> FloatArray:
    """Return one key for several, the first the most significant: 0, 1, 2, ... in ascending order, equals alike.

    All keys are ``[n]``. The result is exact for every 64-bit integer, which no sum of scaled keys is.
    """
    order = np.lexsort(keys[::-1])
    steps = np.zeros(order.size, np.bool_)
    for key in keys:
        steps[1:] |= np.diff(key[order]) != 0
    found = np.empty(order.size)
    found[order] = np.cumsum(steps)
    return found


def woven_places(snapshot: Snapshot, order: IntArray) -> IntArray:
    """Return :meth:`Snapshot.woven` for an order given as indices into ``snapshot.waiting``.

    An aged request in its turn takes over the key of the request that ``order`` has at this rank: the choice of victims
    compares with that key.
    """
    if not snapshot.turns.aged.size:
        return order
    places: IntArray = np.searchsorted(snapshot.waiting, snapshot.woven(snapshot.waiting[order]))
    return places


def plan_by_key(
    snapshot: Snapshot,
    waiting_key: FloatArray,
    running_key: FloatArray,
    *,
    preempt: PreemptionRule | None = None,
    may_preempt_for: FloatArray | None = None,
    class_rank: ClassRank = ClassRank.UNREAD,
    undecided: BoolArray | None = None,
) -> Plan:
    """Return a plan that serves and admits in ascending key where class rank does not decide; ties by ``seq``.

    Decodes are served before unfinished prompts, whatever the key: see :func:`service_order`.

    Args:
        snapshot: The engine's state.
        waiting_key: Key of each waiting request, ``[len(snapshot.waiting)]``; inf ranks last.
        running_key: Key of each running request, ``[len(snapshot.running)]``; inf ranks last.
        preempt: Rule that says when to preempt; ``None`` for never.
        may_preempt_for: Whether others may be preempted for the request, zero or not, ``[len(snapshot.waiting)]``. Its
            rank stays the same. ``None`` for all.
        class_rank: Place of the class's rank in the order.
        undecided: Whether a request's key orders it within its class alone, with ``ClassRank.UNDECIDED``,
            ``[len(snapshot.waiting)]``. ``None`` for requests with a key of inf, which always belong to them.
    """
    rows, engine = snapshot.rows, snapshot.engine
    queued = snapshot.waiting.size
    slots, key = np.concatenate((snapshot.waiting, snapshot.running)), np.concatenate((waiting_key, running_key))
    no_target = np.isinf(key)
    if undecided is not None:
        no_target[:queued] |= undecided
    found = ranked(snapshot, slots, key, no_target if class_rank is ClassRank.UNDECIDED else None, class_rank)
    lowered, head, order = found.lowered, found.waiting, found.running
    waiting, running = snapshot.waiting[woven_places(snapshot, head)], snapshot.running[order]
    waiting_key, running_key = lowered[:queued], lowered[queued:]
    victims = NO_SLOTS
    if preempt is not None and waiting.size and running.size:
        wanted = waiting.size if may_preempt_for is None else _leading(may_preempt_for[head])
        if wanted:
            victims = _victims(
                snapshot, preempt, waiting[:wanted], waiting_key[head][:wanted], running, running_key[order]
            )
    stay = running[~np.isin(running, victims)] if victims.size else running
    return Plan(running=service_order(rows, stay, engine), waiting=waiting, preempt=victims)


def _leading(flags: FloatArray) -> int:
    """Return how many leading entries are true."""
    false = np.flatnonzero(~flags.astype(bool))
    return int(false[0]) if false.size else flags.size


def _victims(
    snapshot: Snapshot,
    rule: PreemptionRule,
    waiting: IntArray,
    waiting_key: FloatArray,
    running: IntArray,
    running_key: FloatArray,
) -> IntArray:
    rows, engine = snapshot.rows, snapshot.engine
    free_blocks = engine.admission_blocks - math.ceil(rule.keep_free * engine.total_blocks)
    tokens = rows.prompt_tokens[waiting] + rows.output_tokens[waiting]
    needed = engine.layout.to_admit(tokens + 1)  # + 1: the slot of the next token
    if waiting.size <= engine.free_slots and int(needed.sum()) <= free_blocks:
        return NO_SLOTS
    allowed = rows.preemptable[running] & (rows.num_preemptions[running] < rule.max_preemptions)
    expendable, key = running[allowed][::-1], running_key[allowed][::-1]
    if not expendable.size:
        return NO_SLOTS
    wait_s = engine.swap.wait_s if engine.swap is not None and rule.in_seconds else 0.0
    key = cheaper_later(key, rule.margin, preemption_price(rows, expendable, engine), wait_s)
    order = np.argsort(-key, kind="stable")
    expendable, key = expendable[order], key[order]
    if not (key[0] > waiting_key[0] and key[0] - waiting_key[0] > rule.margin):
        return NO_SLOTS
    victims = select_victims(
        map(Head, waiting_key.tolist(), needed.tolist()),
        map(PreemptionCandidate, expendable.tolist(), key.tolist()),
        snapshot.holding,
        free_slots=engine.free_slots,
        free_blocks=free_blocks,
        margin=rule.margin,
    )
    return np.array(victims, np.int64) if victims else NO_SLOTS
