"""Standing of tenants within their shares, and the order of service that follows from it.

Tenants with no more service per weight than the mean of all tenants are on level 0. Among the remaining tenants, each
tenant with no more than their mean is on level 1, and so on. Requests of lower levels come first; within a level the
policy decides. So a tenant within its share competes with no tenant that is beyond its own, and of two tenants beyond
their shares, the one that has had less comes first, even while others that ask for little pull the mean down. Weights
are relative to the mean weight of the tenants with requests, so that only their ratios count.

docs/tenants.md states the bound that follows: of two tenants that always have requests waiting, the one with more
service per weight ``x`` exceeds the other, B, by at most ``n (1 + T / w)`` seconds, where ``n`` is the sum of the
weights of all tenants with requests over B's weight, ``w`` the least weight, and ``T`` the longest time that a request
runs from its admission on, plus the time between two plans. Since no mean is less than the least weight, that is at
most ``n (1 + T) / w`` in weights as they are stated.

Proof. Let ``M`` be the greatest ``x`` of all tenants, and A a tenant with a request that is admitted before B's. Then A
is on no higher level than B. So there is a set of tenants, A and B among them, with a mean that A exceeds by at most
``SAME_LEVEL_S`` (one second; nothing on level 0), and leaving tenants below B out of the set only raises the mean. B's
part of the weights of that set is at least ``1 / n``, so that ``x(A) <= (1 - 1 / n) M + x(B) / n + 1``. Afterwards
``x(A)`` grows by at most ``T / w`` before A's request ends, since a tenant is charged at most one second a second. A
tenant that passes this limit is admitted no more requests before B. Therefore ``M`` is at most ``(1 - 1 / n) M + x(B) /
n + 1 + T / w``, which means that ``M - x(B)`` is at most ``n (1 + T / w)``. Decay only brings tenants closer together.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray

LEAST_S: Final = 5.0
"""Seconds of service per weight that every tenant counts as having had.

Among many tenants that each have little, one running request would else be far beyond its tenant's share. With 0.5 s
equal tenants still preempt each other under ``edf``; with 5 s they hardly do.
"""

SAME_LEVEL_S: Final = 1.0
"""Seconds of service per weight by which a tenant beyond its share must exceed the mean to be on a higher level.

If two tenants have had nearly the same service, they stay on one level, and the policy chooses who gains most.
"""

GIVES_WAY: Final = 0.25
"""Part of its share by which a tenant must be beyond it for its running requests to give way.

Without it, two tenants near their shares would take turns in preempting each other.
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the accounts of tenants stand, see :class:`~sloserve.core.tenants.TenantTable`.

    Args:
        level: Level of each account, ``[accounts]``; requests of lower levels are served first.
        over: Part of its share that the tenant of each account has had beyond the share, ``[accounts]``.
        service_s: Recent service of each account in seconds of the engine, ``[accounts]``.
    """

    level: IntArray
    over: FloatArray
    service_s: FloatArray

    def levels(self, accounts: IntArray) -> IntArray | None:
        """Return the levels of requests by their accounts, ``[n]``; ``None`` if all are on level 0."""
        found: IntArray = self.level[accounts]
        return found if found.any() else None

    def gives_way(self, accounts: IntArray) -> BoolArray | None:
        """Return which requests, by their accounts, give way to the other tenants' even while they run, ``[n]``.

        The result is ``None`` if none does.
        """
        found: BoolArray = self.over[accounts] > GIVES_WAY
        return found if found.any() else None


def by_level(order: IntArray, levels: IntArray) -> IntArray:
    """Return ``order`` by ascending level, each level in the order that it has.

    Args:
        order: Indices into ``levels``, ``[m]``.
        levels: Level of each request, ``[n]``.
    """
    found: IntArray = order[np.argsort(levels[order], kind="stable")]
    return found


def levels_of(service_s: FloatArray, weights: FloatArray, present: BoolArray, group: IntArray) -> IntArray:
    """Return the level of each member within its group, ``[n]``; members that are not present are on level 0.

    Args:
        service_s: Service of each member in seconds, ``[n]``.
        weights: Weight of each member, relative to the mean, ``[n]``.
        present: Whether the member counts, ``[n]``.
        group: Group of each member, ``[n]``; groups do not affect each other.
    """
    level = np.zeros(service_s.size, np.int64)
    of, more_s = present, 0.0
    while of.any():
        service, weight = (np.bincount(group, weights=values * of) for values in (service_s, weights))
        mean_s = service / np.where(weight > 0.0, weight, 1.0)
        # Of rounding no level is made: the mean of equal numbers may be less than they are.
        of = of & (service_s > (mean_s[group] * (1.0 + 1e-9) + more_s) * weights)
        level[of] += 1
        more_s = SAME_LEVEL_S
    return level
