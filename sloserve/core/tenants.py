"""Tenants of a deployment, their weights, and the accounts that rows of requests name.

A tenant has an account of its own, and one for each LoRA adapter that its requests name.
"""

import heapq
from collections.abc import Mapping
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray

MOST_TENANTS: Final = 1024
"""Tenants with a number of their own; the others share the number 0 with requests that name none."""
MOST_ACCOUNTS: Final = 2 * MOST_TENANTS
"""Accounts of tenants and of their adapters; an adapter beyond them shares its tenant's own account."""
OTHER: Final = "other"
"""Name under which figures count the tenants without figures of their own."""
NONE: Final = "none"
"""Name under which figures count requests that name no tenant."""
MOST_REPORTED: Final = 64
"""Tenants in a report of what tenants have had: the ones with most service."""
LEAST_WEIGHT: Final = 1e-6
MOST_WEIGHT: Final = 1e6


def with_most_service(service_s: Mapping[str, float], most: int) -> dict[str, float]:
    """Return the entries of the ``most`` tenants with most service, the most first."""
    return dict(heapq.nlargest(most, service_s.items(), key=lambda item: item[1]))


def has_share_left(waiting: int, weight: float, weight_of_all: float, places: float) -> bool:
    """Return whether a tenant has no more waiting requests than its share of the places of a queue, or one.

    A queue that is full only for tenants beyond their share refuses no tenant because of another's requests. With n
    equal tenants, no more than places x (1 + 1/2 + ... + 1/n) requests wait, since the k-th tenant to come finds room
    for places / k.

    Args:
        waiting: Waiting requests of the tenant, with the one that asks for a place.
        weight: Weight of the tenant.
        weight_of_all: Sum of the weights of all tenants that wait, this one among them.
        places: Places of the queue.
    """
    return waiting <= max(places * (weight / weight_of_all), 1.0)


class TenantTable:
    """Numbers of tenants by name, in the order in which they came; number 0 is every request without one of its own.

    Attributes:
        weights: Weight of each tenant, ``[len(names)]``.
        tenant_of: Number of the tenant of each account, ``[accounts]``.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Give a number and an account to each tenant with a weight.

        Args:
            weights: Weight by name; a tenant that is not named has 1.
        """
        given = dict(weights or {})
        self.names: list[str] = ["", *list(given)[: MOST_TENANTS - 1]]
        self.weights: FloatArray = np.array([1.0, *(given[name] for name in self.names[1:])])
        self.tenant_of: IntArray = np.arange(len(self.names))
        self._number_of = {name: number for number, name in enumerate(self.names)}
        self._account_of: dict[tuple[int, str], int] = {(number, ""): number for number in range(len(self.names))}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_adapters(self) -> bool:
        """Whether any tenant has more than its own account."""
        return len(self.tenant_of) > len(self.names)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of tenants; a tenant that is not named gets 1, and numbers stay.

        A named tenant that finds the table full keeps sharing the number 0.

        Args:
            weights: Weight by name.
        """
        numbers = {self.number_of(name): weight for name, weight in weights.items()}
        self.weights = np.array([1.0, *(numbers.get(number, 1.0) for number in range(1, len(self.names)))])

    def number_of(self, name: str | None) -> int:
        """Return the number of a tenant, a new one for a new name as long as the table has room."""
        if not name:
            return 0
        number = self._number_of.get(name)
        if number is None:
            if len(self.names) == MOST_TENANTS:
                return 0
            number = self._number_of[name] = len(self.names)
            self.names.append(name)
            self.weights = np.append(self.weights, 1.0)
            self._open_account(number, "")
        return number

    def known(self, name: str) -> int | None:
        """Return the number of a tenant without giving it one; ``None`` if it has none and there is room for it."""
        beyond = 0 if not name or len(self.names) == MOST_TENANTS else None
        return self._number_of.get(name, beyond)

    def account_of(self, name: str | None, adapter: str | None = None) -> int:
        """Return the account of a tenant's requests that name ``adapter``; ``None`` for the model itself."""
        number = self.number_of(name)
        account = self._account_of.get((number, adapter or ""))
        if account is None:
            # Accounts of tenants that may still come are kept for them.
            if len(self.tenant_of) - len(self.names) == MOST_ACCOUNTS - MOST_TENANTS:
                return self._account_of[number, ""]
            account = self._open_account(number, adapter or "")
        return account

    def _open_account(self, number: int, adapter: str) -> int:
        account = self._account_of[number, adapter] = len(self.tenant_of)
        self.tenant_of = np.append(self.tenant_of, number)
        return account
