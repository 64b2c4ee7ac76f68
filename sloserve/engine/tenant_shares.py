"""Service that each tenant gets from an engine, and which tenants have had more than their share of it.

Service is counted in seconds of the engine. Over any interval that begins with requests that wait, a tenant is charged
the largest of three shares, times the seconds of the interval: of the time that the tokens computed in it take, of the
KV cache, and of the slots. KV and slots are charged for the time without the prompts of other tenants: while others'
prompts take the steps, requests hold both for longer than they would on an engine of their own. Where nothing waits, no
tenant is kept from anything, and nothing is charged. What is computed again or loaded after a preemption is charged
again; prompt tokens found in the prefix cache are not charged.
Service halves with every half-life, so that a tenant that was idle for long is owed no more than one that was idle for
a few half-lives, and no tenant pays for ever for a burst of long ago.

A tenant is beyond its share if it has had more service per weight than the mean of the tenants with requests in the
engine; :mod:`sloserve.lso.standing` says which of them comes first. The LoRA adapters of a tenant divide its share
among them likewise: within the level of their tenant, requests of an adapter that has had more than the mean of the
tenant's adapters come later. With requests of one tenant and one adapter alone, shares decide nothing.

In a fleet each engine also counts what its tenants have had in the others, see :meth:`TenantShares.set_elsewhere`. A
tenant without requests here is not present here, whatever it has had elsewhere.

Sources: dominant resource fairness (Ghodsi et al., NSDI 2011) charges the largest of several shares. The virtual token
counter (Sheng et al., OSDI 2024) counts service as it is given, per weight; it counts tokens, and orders whole queues
by them. Here the policy orders the requests within their shares, and the requests beyond them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows, State
from sloserve.core.tenants import LEAST_WEIGHT, MOST_REPORTED, MOST_TENANTS, TenantTable, with_most_service
from sloserve.lso.engine_pace import EnginePace
from sloserve.lso.plan import Snapshot
from sloserve.lso.standing import LEAST_S, Standing, levels_of
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.share_settings import ShareSettings

_LEAST_REPORTED_S: Final = 1e-3
"""Least service in seconds that is reported; an idle engine thus reports none some half-lives later."""


class Balances(NamedTuple):
    """What each tenant of an engine has had and is due, by number, ``[tenants]`` each.

    A tenant is present if it has requests in the engine. For the others the last three fields are 0.

    Args:
        running: Running requests.
        waiting: Waiting and preempted requests.
        service_s: Recent service, decayed, in seconds of the engine; with the service in the other engines of a fleet.
        share: Weight over the sum of the weights of the tenants present, from 0 to 1.
        debt_s: Recent service minus the share's part of the recent service of all tenants present, in seconds;
            negative for a tenant that is owed service. The debts of all tenants sum to 0.
    """

    running: IntArray
    waiting: IntArray
    service_s: FloatArray
    share: FloatArray
    debt_s: FloatArray


class _Meter:
    """Service of several members, which are tenants or accounts of tenants.

    Attributes:
        service_s: Service of each member in seconds of the engine, decayed, ``[members]``.
        total_s: Service of each member in seconds of the engine since the start, ``[members]``.
    """

    def __init__(self) -> None:
        self.service_s: FloatArray = np.zeros(0)
        self.total_s: FloatArray = np.zeros(0)

    def grow(self, size: int) -> None:
        """Make room for ``size`` members."""
        more = size - self.service_s.size
        if more > 0:
            self.service_s, self.total_s = (np.append(a, np.zeros(more)) for a in (self.service_s, self.total_s))

    def charge(self, largest: FloatArray, since_s: float, half_life_s: float) -> None:
        """Charge the members for an interval that has just ended.

        Args:
            largest: Largest share of the engine that each member had in the interval, ``[members]``.
            since_s: Length of the interval in seconds.
            half_life_s: Seconds in which service halves.
        """
        self.total_s += since_s * largest
        kept = 0.5 ** (since_s / half_life_s)
        # What was given early in a long interval has decayed by its end.
        self.service_s = self.service_s * kept + largest * (1.0 - kept) * half_life_s / math.log(2.0)


@dataclass(frozen=True, slots=True)
class _Shares:
    """What each of several members, which are tenants or accounts, had of the engine in an interval.

    Args:
        time: Share of the time of the tokens computed, ``[members]``.
        prompts: Share of that time for prompt tokens alone, ``[members]``.
        blocks: Share of the KV cache, ``[members]``.
        slots: Share of the slots, ``[members]``.
    """

    time: FloatArray
    prompts: FloatArray
    blocks: FloatArray
    slots: FloatArray

    def summed(self, tenant_of: IntArray, tenants: int) -> "_Shares":
        """Return the shares of tenants, from the shares of their accounts.

        Args:
            tenant_of: Tenant of each account, ``[members]``.
            tenants: Number of tenants.
        """
        time, prompts, blocks, slots = (
            _sums(tenant_of, share, tenants) for share in (self.time, self.prompts, self.blocks, self.slots)
        )
        return _Shares(time, prompts, blocks, slots)

    def largest(self) -> FloatArray:
        """Return the largest share of each member, at most 1, ``[members]``."""
        own = 1.0 - (self.prompts.sum() - self.prompts)
        found: FloatArray = np.minimum(np.maximum(self.time, own * np.maximum(self.blocks, self.slots)), 1.0)
        return found


class TenantShares:
    """Service by tenant. All times are of one clock, in seconds, and must not decrease.

    Args:
        tenants: Table of the tenants; it may grow.
        half_life_s: Seconds in which service halves.
    """

    NEEDS = frozenset(
        {
            "account",
            "prompt_tokens",
            "computed_tokens",
            "output_tokens",
            "cached_tokens",
            "kv_blocks",
            "num_preemptions",
        }
    )
    """Columns that it reads."""

    def __init__(self, tenants: TenantTable, half_life_s: float) -> None:
        self.tenants = tenants
        self._half_life_s = half_life_s
        self._of_tenants, self._of_accounts = _Meter(), _Meter()  # the latter from the first LoRA adapter on
        # By account: time of the tokens computed since the last charge, and of the prompt tokens among them.
        self._owed_s: FloatArray = np.zeros(0)
        self._owed_prompts_s: FloatArray = np.zeros(0)
        self._charged_at_s: float | None = None
        self._is_contended = False  # since the last charge
        self._prompt_token_s = self._token_s = 0.0  # of a prompt token and of an output token, at the last charge
        # By slot: which request was last seen there, how often it had been preempted, and its tokens then.
        self._seen_seq: IntArray = np.full(0, -1)
        self._seen_preemptions: IntArray = np.zeros(0, np.int64)
        self._seen_tokens: IntArray = np.zeros(0, np.int64)
        # Service in other engines: by name as it was set at a time, and by number for as many tenants as there were.
        self._named_elsewhere_s: dict[str, float] = {}
        self._elsewhere_s: FloatArray = np.zeros(0)
        self._elsewhere_at_s = 0.0
        self._grow(0)

    @classmethod
    def of(cls, settings: PluginSettings) -> "TenantShares | None":
        """Return the shares of an engine with ``settings`` before any service; ``None`` where they have none."""
        shares = settings.tenant_shares
        return None if shares is None else cls(TenantTable(shares.weights), shares.half_life_s)

    def follow(self, shares: ShareSettings) -> None:
        """Follow other weights and another half-life; what tenants have had so far stays."""
        self.tenants.set_weights(shares.weights)
        self._half_life_s = shares.half_life_s
        self._elsewhere_s = np.zeros(0)  # numbers may have been given to names

    @property
    def service_s(self) -> FloatArray:
        """Service of each tenant in seconds of the engine, decayed, ``[tenants]``."""
        return self._of_tenants.service_s.copy()

    @property
    def total_s(self) -> FloatArray:
        """Service of each tenant in seconds of the engine since the start, ``[tenants]``."""
        return self._of_tenants.total_s.copy()

    def set_elsewhere(self, service_s: Mapping[str, float], now_s: float) -> None:
        """Set what tenants have had in the other engines of a fleet, in place of what was set before.

        It decays as service does, so that a figure loses its effect if it is not renewed. It gives no tenant a place in
        the table: it counts once requests of the tenant come.

        Args:
            service_s: Service by name of the tenant in seconds, decayed until now; of more than ``MOST_TENANTS`` names
                the ones with most service count.
            now_s: The present time.
        """
        self._named_elsewhere_s, self._elsewhere_at_s = with_most_service(service_s, MOST_TENANTS), now_s
        self._elsewhere_s = np.zeros(0)

    def reported(self, now_s: float) -> dict[str, float]:
        """Return what tenants have had in this engine by name, decayed until now, in seconds to the millisecond.

        Tenants beyond the ``MOST_REPORTED`` with most service are left out.
        """
        service_s = self._decayed(self._of_tenants.service_s, self._charged_at_s, now_s)
        names = self.tenants.names
        had = {names[n]: round(float(service_s[n]), 3) for n in np.flatnonzero(service_s >= _LEAST_REPORTED_S)}
        return with_most_service(had, MOST_REPORTED)

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
        account, size = rows.account[running], self._owed_s.size
        held = _sums(account, rows.kv_blocks[running], size)
        all_blocks = max(float(held.sum()), 1.0)
        computed_s = max(float(self._owed_s.sum()), 1e-12)
        shares = _Shares(
            self._owed_s / computed_s,
            self._owed_prompts_s / computed_s,
            # A shared block counts once, for all who hold it.
            held * ((all_blocks - snapshot.shared_blocks) / all_blocks / engine.capacity_blocks),
            _sums(account, np.ones(account.size), size) / engine.max_num_seqs,
        )
        contended = float(self._is_contended)
        of_tenants = shares.summed(self.tenants.tenant_of, len(self.tenants)).largest()
        self._of_tenants.charge(contended * of_tenants, since_s, self._half_life_s)
        if self.tenants.has_adapters:
            self._of_accounts.charge(contended * shares.largest(), since_s, self._half_life_s)
        self._owed_s[:] = self._owed_prompts_s[:] = 0.0
        self._charged_at_s, self._is_contended = now_s, snapshot.waiting.size > 0

    def rest(self) -> None:
        """Note that nothing waits: the time until the next charge is free."""
        self._is_contended = False

    def forget_rows(self) -> None:
        """Note that the next table of requests is another one."""
        self._seen_seq[:] = -1
        self._is_contended = False

    def standing(self, rows: Rows) -> Standing | None:
        """Return where the tenants stand with requests in ``rows``.

        The result is ``None`` unless two tenants, or two LoRA adapters of one, have requests there.
        """
        self._grow(rows.capacity)
        accounts = self._owed_s.size
        here = rows.account[rows.slots_in(State.WAITING, State.PREEMPTED, State.RUNNING)]
        is_here = np.bincount(here, minlength=accounts) > 0
        if np.count_nonzero(is_here) < 2:
            return None
        tenant_of, weights = self.tenants.tenant_of, self.tenants.weights
        present = np.bincount(tenant_of, weights=is_here, minlength=len(weights)) > 0
        weights = weights / weights[present].mean()  # seconds per weight then mean the same on every scale
        service_s = self._of_tenants.service_s + LEAST_S * weights
        if self._named_elsewhere_s:
            service_s += self._elsewhere(self._charged_at_s)
        mean_s = float(service_s[present].sum() / weights[present].sum())
        level = levels_of(service_s, weights, present, np.zeros(len(weights), np.int64))[tenant_of]
        if self.tenants.has_adapters:
            within = levels_of(self._of_accounts.service_s + LEAST_S, np.ones(accounts), is_here, tenant_of)
            level = level * (1 + int(within.max())) + within
        over = np.where(present, service_s / (mean_s * weights) - 1.0, 0.0)
        of_accounts = self._of_accounts if self.tenants.has_adapters else self._of_tenants
        return Standing(level, over[tenant_of], of_accounts.service_s)

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
        of_prompt_s, account, size = of_prompt * self._prompt_token_s, rows.account[running], self._owed_s.size
        self._owed_prompts_s += _sums(account, of_prompt_s, size)
        self._owed_s += _sums(account, of_prompt_s + (new - of_prompt) * self._token_s, size)
        self._seen_seq[running] = rows.seq[running]
        self._seen_preemptions[running] = rows.num_preemptions[running]
        self._seen_tokens[running] = computed

    def _grow(self, capacity: int) -> None:
        """Make room for new tenants and accounts, and for as many slots as the table of requests has."""
        accounts = len(self.tenants.tenant_of)
        self._of_tenants.grow(len(self.tenants))
        if self.tenants.has_adapters:
            self._of_accounts.grow(accounts)
        if accounts > self._owed_s.size:
            more_accounts = np.zeros(accounts - self._owed_s.size)
            self._owed_s = np.append(self._owed_s, more_accounts)
            self._owed_prompts_s = np.append(self._owed_prompts_s, more_accounts)
        more = capacity - len(self._seen_seq)
        if more > 0:
            self._seen_seq = np.append(self._seen_seq, np.full(more, -1))
            self._seen_preemptions = np.append(self._seen_preemptions, np.zeros(more, np.int64))
            self._seen_tokens = np.append(self._seen_tokens, np.zeros(more, np.int64))

    def _elsewhere(self, now_s: float | None) -> FloatArray:
        """Return what the tenants have had in other engines, decayed until ``now_s``, ``[tenants]``."""
        if self._elsewhere_s.size != len(self.tenants):
            self._elsewhere_s = np.zeros(len(self.tenants))
            for name, had_s in self._named_elsewhere_s.items():
                number = self.tenants.known(name)
                if number is not None:
                    self._elsewhere_s[number] += had_s
        return self._decayed(self._elsewhere_s, self._elsewhere_at_s, now_s)

    def _decayed(self, service_s: FloatArray, at_s: float | None, now_s: float | None) -> FloatArray:
        """Return service of the time ``at_s`` as it is at ``now_s``; a time that is not known changes nothing."""
        since_s = 0.0 if at_s is None or now_s is None else max(now_s - at_s, 0.0)
        found: FloatArray = service_s * 0.5 ** (since_s / self._half_life_s)
        return found

    def balances(self, rows: Rows, now_s: float) -> Balances:
        """Return what the tenants have had and are due, for people to see; nothing is decided by it.

        Args:
            rows: The request table.
            now_s: The present time; service has decayed until then.
        """
        self._grow(rows.capacity)
        weights = self.tenants.weights
        tenant = self.tenants.tenant_of[rows.account]
        running = np.bincount(tenant[rows.slots_in(State.RUNNING)], minlength=weights.size)
        waiting = np.bincount(tenant[rows.slots_in(State.WAITING, State.PREEMPTED)], minlength=weights.size)
        is_present = running + waiting > 0
        service_s = self._decayed(self._of_tenants.service_s, self._charged_at_s, now_s) + self._elsewhere(now_s)
        service_s = np.where(is_present, service_s, 0.0)
        of_present = np.where(is_present, weights, 0.0)
        share = of_present / max(float(of_present.sum()), LEAST_WEIGHT)
        return Balances(running, waiting, service_s, share, service_s - share * service_s.sum())


def _sums(numbers: IntArray, values: NDArray[Any], size: int) -> FloatArray:
    """Return the sum of the ``values`` of each of the ``size`` first numbers, ``[size]``."""
    return np.bincount(numbers, weights=values, minlength=size).astype(np.float64, copy=False)
