"""Service that each tenant gets from an engine, and which tenants have had more than their share of it.

Service is counted in seconds of the engine. Over any interval that begins with requests that wait, a tenant is charged
the largest of three shares, times the seconds of the interval: of the time that the tokens computed in it take, of the
KV cache, and of the slots. Where nothing waits, no tenant is kept from anything, and nothing is charged. What is
computed again or loaded after a preemption is charged again; prompt tokens found in the prefix cache are not charged.
Service halves with every half-life, so that a tenant that was idle for long is owed no more than one that was idle for
a few half-lives, and no tenant pays for ever for a burst of long ago.

A tenant is beyond its share if it has had more service per weight than the mean of the tenants with requests in the
engine. Plans serve its requests after the other requests (:meth:`sloserve.lso.plan.Snapshot.within_first`). With
requests of one tenant alone, shares decide nothing.

Sources: dominant resource fairness (Ghodsi et al., NSDI 2011) charges the largest of several shares. The virtual token
counter (Sheng et al., OSDI 2024) counts service as it is given, per weight; it counts tokens, and orders whole queues
by them. Here the policy orders the requests within their shares, and the requests beyond them.
"""

import math
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows, State
from sloserve.core.tenants import TenantTable
from sloserve.lso.engine_pace import EnginePace
from sloserve.lso.plan import Snapshot
from sloserve.scheduler.settings import PluginSettings

LEAST_S: Final = 5.0
"""Seconds of service per weight that every tenant counts as having had.

Among many tenants that each have little, one running request would else be far beyond its tenant's share. With 0.5 s
equal tenants still preempt each other under ``edf``; with 5 s they hardly do.
"""


class TenantShares:
    """Service by tenant. All times are of one clock, in seconds, and must not decrease.

    Args:
        tenants: Table of the tenants; it may grow.
        half_life_s: Seconds in which service halves.
    """

    NEEDS = frozenset(
        {"tenant", "prompt_tokens", "computed_tokens", "output_tokens", "cached_tokens", "kv_blocks", "num_preemptions"}
    )
    """Columns that it reads."""

    def __init__(self, tenants: TenantTable, half_life_s: float) -> None:
        self.tenants = tenants
        self._half_life_s = half_life_s
        self._service_s: FloatArray = np.zeros(len(tenants))
        self._total_s: FloatArray = np.zeros(len(tenants))
        self._owed_s: FloatArray = np.zeros(len(tenants))  # time of the tokens computed since the last charge
        self._charged_at_s: float | None = None
        self._is_contended = False  # since the last charge
        self._prompt_token_s = self._token_s = 0.0  # of a prompt token and of an output token, at the last charge
        # By slot: which request was last seen there, how often it had been preempted, and its tokens then.
        self._seen_seq: IntArray = np.full(0, -1)
        self._seen_preemptions: IntArray = np.zeros(0, np.int64)
        self._seen_tokens: IntArray = np.zeros(0, np.int64)

    @classmethod
    def of(cls, settings: PluginSettings) -> "TenantShares | None":
        """Return the shares of an engine with ``settings`` before any service; ``None`` where they have none."""
        shares = settings.tenant_shares
        return None if shares is None else cls(TenantTable(shares.weights), shares.half_life_s)

    @property
    def service_s(self) -> FloatArray:
        """Service of each tenant in seconds of the engine, decayed, ``[tenants]``."""
        return self._service_s.copy()

    @property
    def total_s(self) -> FloatArray:
        """Service of each tenant in seconds of the engine since the start, ``[tenants]``."""
        return self._total_s.copy()

    def charge(self, snapshot: Snapshot, pace: EnginePace, now_s: float) -> None:
        """Charge the tenants for the time since the last call, if requests waited when it began.

        Args:
            snapshot: The engine's state.
            pace: Speed of the engine.
            now_s: The present time.
        """
        rows, running, engine = snapshot.rows, snapshot.running, snapshot.engine
        self._grow(rows.capacity)
        self._prompt_token_s, self._token_s = pace.prompt_token_s, pace.step_s / max(running.size, 1)
        self._count_tokens(rows, running, rows.computed_tokens[running])
        since_s = 0.0 if self._charged_at_s is None else max(now_s - self._charged_at_s, 0.0)
        kept = 0.5 ** (since_s / self._half_life_s)
        self._service_s *= kept
        if self._is_contended:
            size, tenant = len(self._service_s), rows.tenant[running]
            computed_s = float(self._owed_s.sum())
            share = self._owed_s / computed_s if computed_s > 0.0 else np.zeros(size)
            held = np.bincount(tenant, weights=rows.kv_blocks[running], minlength=size)
            all_blocks = max(float(held.sum()), 1.0)
            # A shared block counts once, for all who hold it.
            blocks = held * ((all_blocks - snapshot.shared_blocks) / all_blocks / engine.capacity_blocks)
            slots = np.bincount(tenant, minlength=size) / engine.max_num_seqs
            largest = np.minimum(np.maximum(np.maximum(share, blocks), slots), 1.0)
            self._total_s += since_s * largest
            # What was given early in a long interval has decayed by its end.
            self._service_s += largest * (1.0 - kept) * self._half_life_s / math.log(2.0)
        self._owed_s[:] = 0.0
        self._charged_at_s, self._is_contended = now_s, snapshot.waiting.size > 0

    def rest(self) -> None:
        """Note that nothing waits: the time until the next charge is free."""
        self._is_contended = False

    def forget_rows(self) -> None:
        """Note that the next table of requests is another one."""
        self._seen_seq[:] = -1
        self._is_contended = False

    def over_share(self, rows: Rows) -> FloatArray | None:
        """Return by how much each tenant is beyond its share, see :class:`~sloserve.lso.plan.Snapshot`.

        Tenants without a request have 0. The result is ``None`` unless two tenants have requests here.
        """
        self._grow(rows.capacity)
        size = len(self._service_s)
        present = np.bincount(rows.tenant[rows.slots_in(State.WAITING, State.PREEMPTED, State.RUNNING)], minlength=size)
        is_present = present > 0
        if np.count_nonzero(is_present) < 2:
            return None
        weights = self.tenants.weights
        service_s = self._service_s + LEAST_S * weights
        mean_s = float(service_s[is_present].sum() / weights[is_present].sum())
        found: FloatArray = np.where(is_present, service_s / (mean_s * weights) - 1.0, 0.0)
        return found

    def finished(self, rows: Rows, slot: int, computed: int) -> None:
        """Count the last tokens of a request that ends; its row still exists.

        Args:
            rows: The request table.
            slot: Slot of the request.
            computed: Tokens of it that have been computed.
        """
        self._grow(rows.capacity)
        if rows.state[slot] == State.RUNNING:
            self._count_tokens(rows, np.array([slot]), np.array([computed]))

    def _count_tokens(self, rows: Rows, running: IntArray, computed: IntArray) -> None:
        """Add the time of the tokens that were computed since the last look at these requests.

        Args:
            rows: The request table.
            running: Slots of running requests, ``[n]``.
            computed: Tokens of each that are computed now, ``[n]``.
        """
        known = (self._seen_seq[running] == rows.seq[running]) & (
            self._seen_preemptions[running] == rows.num_preemptions[running]
        )
        before = np.where(known, self._seen_tokens[running], np.minimum(rows.cached_tokens[running], computed))
        new = np.maximum(computed - before, 0)
        # After a preemption, output tokens are computed again as the tokens of a prompt are.
        at_once = rows.prompt_tokens[running] + np.where(known, 0, np.maximum(rows.output_tokens[running] - 1, 0))
        of_prompt = np.minimum(new, np.maximum(at_once - before, 0))
        seconds = of_prompt * self._prompt_token_s + (new - of_prompt) * self._token_s
        self._owed_s += np.bincount(rows.tenant[running], weights=seconds, minlength=len(self._owed_s))
        self._seen_seq[running] = rows.seq[running]
        self._seen_preemptions[running] = rows.num_preemptions[running]
        self._seen_tokens[running] = computed

    def _grow(self, capacity: int) -> None:
        """Make room for new tenants, and for as many slots as the table of requests has."""
        more = len(self.tenants) - len(self._service_s)
        if more > 0:
            for name in ("_service_s", "_total_s", "_owed_s"):
                setattr(self, name, np.append(getattr(self, name), np.zeros(more)))
        more = capacity - len(self._seen_seq)
        if more > 0:
            self._seen_seq = np.append(self._seen_seq, np.full(more, -1))
            self._seen_preemptions = np.append(self._seen_preemptions, np.zeros(more, np.int64))
            self._seen_tokens = np.append(self._seen_tokens, np.zeros(more, np.int64))
