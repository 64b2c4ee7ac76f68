"""Use by tenant that gateways share through the store: rows for the operator, and limits per minute that hold for all.

Each gateway adds what it has counted every second, and charges its own buckets with what the others have added. So a
tenant may exceed a limit by what the other gateways let pass in two seconds. While the store is away every gateway goes
by its own counts, refuses no request for that, and adds what is due once the store is back.
"""

from collections.abc import Callable, Iterable
from typing import Final

from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.store.store import Store
from sloserve.fleet.store.usage import OF_GATEWAYS, UsedInHour
from sloserve.wire.rate_limits import TenantRates

_HOURS: Final = 2
"""Hours of which rows are compared: the others may still add to the hour before."""

Counts = tuple[int, ...]
"""Counts in the order of :data:`~sloserve.fleet.store.usage.OF_GATEWAYS`: requests, tokens, and promises."""
_NONE: Final = (0,) * len(OF_GATEWAYS)


class SharedUse:
    """Keeps what one gateway and the others have used apart.

    Args:
        rates: Limits and use in this gateway.
        tenants: Returns the tenants of the file of keys.
    """

    def __init__(self, rates: TenantRates, tenants: Callable[[], Iterable[Tenant]]) -> None:
        self._rates, self._tenants = rates, tenants
        self._added: dict[str, Counts] = {}
        """What this gateway has added to the store since its start."""
        self._seen: dict[tuple[str, int], tuple[int, int]] | None = None
        """Requests and tokens in the store at the last exchange, by tenant and hour; ``None`` before the first."""

    def follow(self, tenants: Callable[[], Iterable[Tenant]]) -> None:
        """Go on with the tenants of another file of keys."""
        self._tenants = tenants

    def due(self) -> dict[str, Counts]:
        """Return what is to be added to the store, by tenant."""
        found = {}
        for name, use in self._rates.used().items():
            before, now = self._added.get(name, _NONE), tuple(getattr(use, key) for key in OF_GATEWAYS)
            if now != before:
                found[name] = tuple(after - earlier for after, earlier in zip(now, before, strict=True))
        return found

    @staticmethod
    def exchange(store: Store, due: dict[str, Counts]) -> list[UsedInHour]:
        """Add to the store what is due; return its rows. Any thread may call it. Raises: StoreError."""
        if due:
            store.usage.add(due)
        return store.usage.since(_HOURS)

    def exchanged(self, due: dict[str, Counts], rows: Iterable[UsedInHour]) -> None:
        """Charge the limits with what the other gateways have added.

        Args:
            due: What this gateway added in the exchange.
            rows: Rows of the store after that.
        """
        for name, added in due.items():
            before = self._added.get(name, _NONE)
            self._added[name] = tuple(earlier + more for earlier, more in zip(before, added, strict=True))
        seen = {(row.tenant, row.hour_s): (row.requests, row.prompt_tokens + row.output_tokens) for row in rows}
        others: dict[str, tuple[int, int]] = {}
        if self._seen is not None:  # what was there before this gateway is not charged
            for key, now in seen.items():
                before_it, sum_of = self._seen.get(key, (0, 0)), others.get(key[0], (0, 0))
                others[key[0]] = (sum_of[0] + now[0] - before_it[0], sum_of[1] + now[1] - before_it[1])
        else:
            others = {name: (added[0], added[1] + added[2]) for name, added in due.items()}
        self._seen = seen
        for tenant in self._tenants():
            requests, tokens = others.get(tenant.name, (0, 0))
            own = due.get(tenant.name, _NONE)
            self._rates.others_used(tenant.name, tenant.quota, requests - own[0], tokens - own[1] - own[2])
