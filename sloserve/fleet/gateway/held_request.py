"""A request that looks for an instance: what it needs, by when, and how long it may wait."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from sloserve.core.promises import Promised
from sloserve.core.slo import DUE_NOW_S, SLO
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import Beginning
from sloserve.fleet.gateway.sessions import Home


def held_due_after_s(slo: SLO) -> float:
    """Return the seconds from its arrival to the deadline by which a held request is ordered.

    A first token that is due now counts as no target, as everywhere: the request would be late from the start.
    """
    targets = slo.targets
    due_now = targets.ttft_s is not None and targets.ttft_s <= DUE_NOW_S
    target_s = targets.e2e_s if due_now else targets.next_s()
    return slo.slo_class.aged_after_s if target_s is None else target_s


def comes_first_after_s(promised: Promised | None, hold_max_s: float) -> float | None:
    """Return the seconds from its arrival after which a held request comes first; ``None`` without a promise.

    That is well before it has waited too long.

    Args:
        promised: The promise of the request.
        hold_max_s: Seconds for which it may wait.
    """
    return None if promised is None else min(promised.first_after_s, hold_max_s / 2.0)


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that looks for an instance.

    Args:
        model: Model that it asks for.
        slo_class: Name of its class.
        arrival_s: Monotonic time of its arrival in seconds.
        due_s: Deadline by the monotonic clock in seconds, inf for none.
        rank: Rank of its class; it and then the arrival decide between requests without a deadline.
        until_s: Monotonic time until which the gateway lets it wait; the time at instances that send it back is added.
        ends_s: Monotonic time at which the time to live that its client gave it is over.
        work: Size of the request.
        prompt: Beginnings of its prompt.
        tenant: Name of its tenant.
        home: Instance that served its session last; ``None`` for a request of no session that is known.
        among: Names of the instances that it may go to; ``None`` for all.
        first_from_s: Monotonic time from which on it comes first, as its targets were promised; ``None`` for none.
    """

    model: str
    slo_class: str
    arrival_s: float
    due_s: float = math.inf
    rank: int = 0
    until_s: float = math.inf
    ends_s: float = math.inf
    work: Work = Work()
    prompt: Sequence[Beginning] = ()
    tenant: str = ""
    home: Home | None = None
    among: Collection[str] | None = None
    first_from_s: float | None = None
    held_s: float = field(default=0.0, init=False)
    """Seconds for which it has waited here until now."""
    away_s: float = field(default=0.0, init=False)
    """Seconds that it spent at instances that sent it back."""

    @classmethod
    def of(
        cls,
        request: GatewayRequest,
        output_tokens: float,
        hold_max_s: float,
        *,
        affinity: bool = True,
        home: Home | None = None,
    ) -> Self:
        """Return the request as it looks for an instance of its model.

        Args:
            request: The request as it was read.
            output_tokens: Expected tokens of each of its outputs.
            hold_max_s: Seconds for which it may wait.
            affinity: Whether the beginnings of its prompt count.
            home: Instance that served its session last.
        """
        slo, first_after_s = request.slo, comes_first_after_s(request.promised, hold_max_s)
        return cls(
            model=request.model,
            slo_class=request.slo_class,
            arrival_s=request.arrival_s,
            due_s=request.arrival_s + held_due_after_s(slo),
            rank=slo.slo_class.rank,
            until_s=request.arrival_s + hold_max_s,
            ends_s=request.arrival_s + (math.inf if request.ttl_s is None else request.ttl_s),
            work=Work(1, request.prompt_tokens, output_tokens * request.num_outputs),
            prompt=request.beginnings(request.model) if affinity else (),
            tenant=request.tenant.name,
            home=home,
            first_from_s=None if first_after_s is None else request.arrival_s + first_after_s,
        )

    @property
    def wanted_first_s(self) -> float:
        """Time that orders it among the requests that wait."""
        return self.due_s if self.first_from_s is None else min(self.first_from_s, self.due_s)

    def comes_first(self, now_s: float) -> bool:
        """Return whether it comes before all requests without a promise by now."""
        return self.first_from_s is not None and self.first_from_s <= now_s

    @property
    def wanted_s(self) -> float:
        """Time at which an instance should have taken it: its deadline, or the end of the wait that the gateway grants.

        The time to live does not count: with it a client could make its model come sooner than its targets may.
        """
        return min(self.due_s, self.until_s)

    @property
    def refused_s(self) -> float:
        """Time at which it has waited too long."""
        return min(self.until_s, self.ends_s)

    def sent_back(self, after_s: float) -> None:
        """Let it look for an instance again; the ``after_s`` seconds at an instance do not count as waiting."""
        self.away_s += after_s
        self.until_s += after_s

    def after(self, other: "HeldRequest") -> Self:
        """Take over the waiting times of ``other``, in place of which this request looks for an instance; return it."""
        self.until_s, self.held_s, self.away_s = other.until_s, other.held_s, other.away_s
        return self
