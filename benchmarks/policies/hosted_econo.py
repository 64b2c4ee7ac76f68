"""``econo`` with KVC pipelining, in four forms: which waiting requests become guests in KV promised to running ones?

``econo`` admits in its order, up to the first request that does not fit its forecast. Requests behind it are guests if

- ``first-fit``: they fit the forecast themselves, at every later step;
- ``backfill``: they do so beside the request that does not fit, which is promised room from the first step on at which
  it fits, so that no guest delays it;
- ``mean``: requests in order fit by the mean of the forecast alone, without standard deviations to keep free; guests
  are served last, so that vLLM takes their KV back first;
- ``spans``: EconoServe's rule (:class:`~sloserve.core.kernels.kv_reservation.KvHosting`). A running request is promised
  its expected remaining length and ``sigmas`` standard deviations of it. It lends the second half of that span to a
  request whose own such length, and a buffer, ends before; the guest's prompt must fit the forecast. A guest that is
  still there when its host needs the span is preempted if blocks are short.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.kv_reservation import KvHosting
from sloserve.core.rows import Rows
from sloserve.lso.forecast import AHEAD, counted_once
from sloserve.scheduler.econo.policy import MOST_ADMITTED, Econo
from sloserve.scheduler.econo.victim import ServiceOrder
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot

FORMS: Final = ("first-fit", "backfill", "mean", "spans")
MOST_ASKED: Final = 64
"""Waiting requests that are looked at behind the one that does not fit."""
BUFFER: Final = 0.15
"""The paper's for ShareGPT."""
_SHORT: Final = 0.02
"""Share of free blocks below which a guest that outstays its span is preempted."""
_BOUNDLESS: Final = 2**31 - 1
Curves = tuple[FloatArray, FloatArray]
"""Mean and variance of blocks at the steps of ``AHEAD``."""


class HostedEcono(Econo):
    """Econo which admits guests.

    Args:
        settings: The settings of ``econo``.
        form: One of ``FORMS``.
        seed: Seed of the errors of an oracle.
    """

    def __init__(self, settings: Econo.Settings, form: str, *, seed: int) -> None:
        super().__init__(settings, seed=seed)
        self._form = form
        self._guests: IntArray = NO_SLOTS
        self._before = 0
        self._spans: Spans | None = None
        # By seq: requests that the last plan had as guests, and guests that run.
        self._expected: set[int] = set()
        self._hosted: set[int] = set()
        self.num_guests = self.num_overstayed = self.num_preempted = 0

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running = snapshot.rows, snapshot.running
        self._guests = NO_SLOTS
        if self._form == "spans":
            if self._spans is None:
                self._spans = Spans(snapshot.engine.layout.block_size)
            promise = _promised(self, rows, running)
            tokens = rows.prompt_tokens[running] + rows.output_tokens[running]
            self._spans.state(rows.seq[running], tokens, promise)
        live = set(rows.seq[running].tolist())
        entered = self._expected & live
        self.num_guests += len(entered)
        self._hosted, self._expected = (self._hosted & live) | entered, set()
        made = super().plan(snapshot, now_s)
        if made is Plan.IDENTITY:
            return made
        assert made.running is not None and made.waiting is not None
        if self._guests.size:
            self._expected = set(rows.seq[self._guests].tolist())
            others = made.waiting[~np.isin(made.waiting, self._guests)]
            order = np.concatenate((others[: self._before], self._guests, others[self._before :]))
            most = running.size - made.preempt.size + self._before + self._guests.size
            made = replace(made, waiting=order, max_running=max(most, 1))
        if self._form == "mean":
            served = made.running
            assert served is not None
            is_guest = np.isin(rows.seq[served], list(self._hosted))
            made = replace(made, running=np.concatenate((served[~is_guest], served[is_guest])))
        return self._without_overstaying(made, snapshot) if self._spans is not None else made

    def _without_overstaying(self, made: Plan, snapshot: Snapshot) -> Plan:
        """Return the plan with guests preempted whose hosts need their spans, if blocks are short."""
        rows, engine = snapshot.rows, snapshot.engine
        assert self._spans is not None and made.running is not None
        due = self._spans.due() & self._hosted
        self.num_overstayed += len(due)
        self._hosted -= due
        if not due or engine.free_blocks >= _SHORT * engine.capacity_blocks:
            return made
        given_up = made.running[np.isin(rows.seq[made.running], list(due)) & rows.preemptable[made.running]]
        self.num_preempted += given_up.size
        most = None if made.max_running is None else max(made.max_running - given_up.size, 1)
        stay = made.running[~np.isin(made.running, given_up)]
        return replace(made, running=stay, preempt=np.concatenate((made.preempt, given_up)), max_running=most)

    def _room(self, snapshot: Snapshot, waiting: ServiceOrder, running: ServiceOrder) -> tuple[int | None, int]:
        victim, fit = super()._room(snapshot, waiting, running)
        places = min(snapshot.engine.free_slots, MOST_ADMITTED) - fit
        # The port holds aged requests to their turns, whatever the plan has before them.
        if victim is not None or places < 1 or fit >= waiting.slots.size or snapshot.turns.aged.size:
            return victim, fit
        rows, engine = snapshot.rows, snapshot.engine
        context_tokens = rows.prompt_tokens[running.slots] + rows.output_tokens[running.slots]
        held = counted_once(snapshot, context_tokens, running.slots)
        asked = waiting.slots[: fit + MOST_ASKED]
        mean, variance = self._occupancy(rows, engine, asked)
        held_mean, held_variance = (one.sum(axis=0) for one in self._occupancy(rows, engine, running.slots, held))
        beside = held_mean + mean[:fit].sum(axis=0), held_variance + variance[:fit].sum(axis=0)
        behind = mean[fit:], variance[fit:]
        self._before = fit
        self._guests = asked[fit:][self._chosen(snapshot, beside, behind, asked[fit:], places)]
        return None, fit

    def _chosen(
        self, snapshot: Snapshot, beside: Curves, asked: Curves, slots: IntArray, places: int
    ) -> IntArray | list[int]:
        """Return the indices of the guests among ``slots``, the first of which does not fit."""
        capacity = snapshot.forecast_blocks(self.settings.reserve)
        sigmas = self.settings.sigmas
        if self._form == "mean":
            within = (beside[0] + asked[0].cumsum(axis=0) <= capacity).all(axis=1)
            fit = within.size if within.all() else int(np.argmin(within))
            return list(range(min(fit, places)))
        if self._form == "spans":
            return self._in_spans(snapshot, beside, slots, capacity)
        if self._form == "backfill":
            beside = _promised_room(beside, (asked[0][0], asked[1][0]), capacity, sigmas)
        mean, variance = beside
        chosen: list[int] = []
        for place in range(1, slots.size):
            more, spread = mean + asked[0][place], variance + asked[1][place]
            if len(chosen) < places and (more + sigmas * np.sqrt(spread) <= capacity).all():
                mean, variance = more, spread
                chosen.append(place)
        return chosen

    def _in_spans(self, snapshot: Snapshot, beside: Curves, slots: IntArray, capacity: float) -> list[int]:
        """Return the first guest for whose growth a running request has a span; others are asked at the next plan."""
        rows, engine = snapshot.rows, snapshot.engine
        assert self._spans is not None
        tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots]
        held = engine.layout.mean(tokens[:, None] + np.zeros(AHEAD.size))
        mean = held * self._lengths.survival(rows, slots, AHEAD)
        spread = self.settings.sigmas * np.sqrt(beside[1] + mean * (held - mean))
        able = (beside[0] + mean + spread <= capacity).all(axis=1) & (held[:, 0] + 1 <= engine.free_blocks)
        places = np.flatnonzero(able)
        promise = _promised(self, rows, slots)
        found = self._spans.host(rows.seq[slots[places]], tokens[places], promise[places])
        return [] if found is None else [int(places[found])]


class Spans:
    """The spans of running requests that are lent, by seq; they are offered anew at each plan."""

    def __init__(self, block_size: int) -> None:
        self._kernel = KvHosting(_BOUNDLESS, block_size)
        self._host_of: dict[int, int] = {}
        self._known: set[int] = set()

    def state(self, running: IntArray, tokens: IntArray, promise: IntArray) -> None:
        """Set what each running request holds and is promised; hosts and guests keep the spans that they have."""
        kernel = self._kernel
        kernel.advance(kernel.now + 1)
        for ended in self._known - set(running.tolist()):
            kernel.remove(ended)
            self._host_of.pop(ended, None)
        self._known &= set(running.tolist())
        bound = self._host_of.keys() | set(self._host_of.values())
        free = ~np.isin(running, list(bound))
        if free.any():
            kernel.allocate(running[free], tokens[free], grow_steps=promise[free])
            self._known.update(running[free].tolist())

    def host(self, waiting: IntArray, tokens: IntArray, promise: IntArray) -> int | None:
        """Return the index of the first guest that finds a span; ``None`` if none does."""
        if not waiting.size:
            return None
        kernel = self._kernel
        places, hosts = kernel.host(waiting, tokens, grow_steps=promise, buffer_tokens=np.ceil(BUFFER * promise))
        for place in places[1:].tolist():
            kernel.remove(int(waiting[place]))
        if not places.size:
            return None
        guest = int(waiting[places[0]])
        self._host_of[guest] = int(hosts[0])
        self._known.add(guest)
        return int(places[0])

    def due(self) -> set[int]:
        """Return the guests whose hosts need their spans now, and end their stay there."""
        due, _ = self._kernel.overrunners()
        found = set(due.tolist()) & self._host_of.keys()
        for guest in found:
            del self._host_of[guest]
        return found


def _promised(policy: HostedEcono, rows: Rows, slots: IntArray) -> IntArray:
    """Return expected tokens to come and ``sigmas`` standard deviations of them, ``[n]``, rounded up."""
    left = policy._lengths.left(rows, slots)
    width = np.diff(np.append(AHEAD, 2 * AHEAD[-1])).astype(np.float64)
    chance = policy._lengths.survival(rows, slots, AHEAD)
    # The integrals of P(X > x) and 2 x P(X > x) over one grid, so that a known length has no variance.
    mean, square = ((weight * chance * width).sum(axis=1) for weight in (1.0, 2.0 * AHEAD + width))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    promise: IntArray = np.ceil(left + policy.settings.sigmas * spread).astype(np.int64)
    return promise


def _promised_room(beside: Curves, first: Curves, capacity: float, sigmas: float) -> Curves:
    """Return what ``beside`` is with the request ``first`` admitted at the first step from which on it fits."""
    mean, variance = beside
    for start in range(1, AHEAD.size):
        later = [np.interp(AHEAD[start:] - AHEAD[start], AHEAD, curve) for curve in first]
        more, spread = mean.copy(), variance.copy()
        more[start:] += later[0]
        spread[start:] += later[1]
        if (more + sigmas * np.sqrt(spread) <= capacity)[start:].all():
            return more, spread
    return mean, variance
