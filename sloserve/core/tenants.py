"""Tenants of a deployment: their numbers, which rows and metrics keep, and their weights."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray

MOST_TENANTS: Final = 1024
"""Tenants with a number of their own; the others share the number 0 with requests that name none."""
LEAST_WEIGHT: Final = 1e-6
MOST_WEIGHT: Final = 1e6


class TenantTable:
    """Numbers of tenants by name, in the order in which they came; number 0 is every request without one of its own.

    Attributes:
        weights: Weight of each tenant, ``[len(names)]``.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Give a number to each tenant with a weight.

        Args:
            weights: Weight by name; a tenant that is not named has 1.
        """
        given = dict(weights or {})
        self.names: list[str] = ["", *list(given)[: MOST_TENANTS - 1]]
        self.weights: FloatArray = np.array([1.0, *(given[name] for name in self.names[1:])])
        self._number_of = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

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
        return number
