"""Shares of tenants among the requests that a gateway holds: which tenant goes next, and which finds the hold full."""

from collections.abc import Collection, Mapping

import numpy as np

from sloserve.core.tenants import has_share_left
from sloserve.fleet.gateway.instances import Instances
from sloserve.lso.standing import LEAST_S, levels_of
from sloserve.scheduler.share_settings import ShareSettings


class HeldShares:
    """Compares tenants by their recent service in all instances, per weight, as the engines themselves do.

    Args:
        instances: Instances of the fleet, with the service that their agents report.
        settings: Weights of the tenants.
    """

    def __init__(self, instances: Instances, settings: ShareSettings) -> None:
        self._instances, self._weights = instances, settings.weights

    def levels(self, tenants: Collection[str], now_s: float) -> Mapping[str, int]:
        """Return the level of each of the tenants that wait; requests of lower levels go first.

        See :mod:`sloserve.lso.standing`: a tenant that has had no more than the mean of all is on level 0.
        """
        if len(tenants) < 2:
            return dict.fromkeys(tenants, 0)
        had = self._instances.service_s(now_s)
        weights = np.array([self._weight(name) for name in tenants])
        weights /= weights.mean()
        service_s = np.array([had.get(name, 0.0) for name in tenants]) + LEAST_S * weights
        found = levels_of(service_s, weights, np.ones(len(tenants), bool), np.zeros(len(tenants), np.int64))
        return dict(zip(tenants, found.tolist(), strict=True))

    def has_place(self, tenant: str, held: Mapping[str, int], most: int) -> bool:
        """Return whether a tenant's next request is within its share of the places.

        Args:
            tenant: Name of the tenant.
            held: Number of requests that wait, by tenant.
            most: Places of all tenants.
        """
        weight_of_all = sum(self._weight(name) for name in {tenant, *held})
        return has_share_left(held.get(tenant, 0) + 1, self._weight(tenant), weight_of_all, most)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
