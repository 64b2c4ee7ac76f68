"""How the tenants of an engine stand: rows of its page, and the metrics made of them.

None of it exists where tenants have no shares. The first row of a page is for requests without a tenant of their own.
The next rows are for the tenants that the operator named, and after these for the first tenants to come. The last row
sums the other tenants. A tenant keeps its row, so that counters only grow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sloserve.core.arrays import FloatArray
from sloserve.core.tenants import MOST_TENANTS, NONE, OTHER, TenantTable
from sloserve.engine.tenant_shares import Balances, TenantShares
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.headers import MAX_LABEL_CHARS

NAME_BYTES: Final = 4 * MAX_LABEL_CHARS
"""Most bytes of a tenant's name on a page; a longer name, which no request can state, is cut."""


class TenantFigures(NamedTuple):
    """How one tenant stands, or several that share a row.

    Args:
        tenant: Name of the tenant; ``None`` for requests without a tenant of their own, :data:`OTHER` for the last row.
        weight: Weight of its share.
        running: Running requests.
        waiting: Waiting and preempted requests.
        service_s: Recent service, decayed, in seconds of the engine; 0 without requests in the engine.
        total_s: Service since the engine's start, in seconds of the engine.
        share: Share of the engine that it is due now, from 0 to 1; 0 without requests in the engine.
        debt_s: Recent service beyond that share, in seconds of the engine; negative if it is owed service.
    """

    tenant: str | None
    weight: float
    running: float
    waiting: float
    service_s: float
    total_s: float
    share: float
    debt_s: float


FIGURES: Final = TenantFigures._fields[1:]
"""Columns of a row; the name is kept beside them."""


def named_tenants(settings: PluginSettings) -> list[str]:
    """Return the tenants that the operator named: they have labels of their own before any other tenant comes."""
    shares = settings.tenant_shares
    return list(dict.fromkeys([*settings.tenants, *(shares.weights if shares is not None else ())]))


class TenantRows:
    """The rows of one engine's tenants, as the engine fills them.

    Attributes:
        size: Number of rows, used or not.
        names: Name of each row that has one, in their order; they are only ever added to.
    """

    def __init__(self, most: int, named: Iterable[str]) -> None:
        """Give a row to each named tenant.

        Args:
            most: Most tenants with a row of their own.
            named: Tenants that the operator named.
        """
        own = min(most, MOST_TENANTS)
        self.size = own + 2
        self.names: list[str] = ["", *[name for name in named if name][:own]]
        self._row_of = {name: row for row, name in enumerate(self.names)}
        self._rows: list[int] = []  # by the tenant's number

    @classmethod
    def of(cls, settings: PluginSettings) -> "TenantRows | None":
        """Return the rows of an engine with ``settings``; ``None`` where tenants have no shares."""
        return None if settings.tenant_shares is None else cls(settings.max_tenant_labels, named_tenants(settings))

    def figures(self, shares: TenantShares, balances: Balances) -> FloatArray:
        """Return the figures of all rows, ``[size, len(FIGURES)]``; new tenants get their rows.

        Args:
            shares: Service of the tenants.
            balances: How they stand now.
        """
        rows = self._places(shares.tenants)
        by_name = {"weight": shares.tenants.weights, "total_s": shares.total_s, **balances._asdict()}
        found = np.zeros((self.size, len(FIGURES)))
        for column, name in enumerate(FIGURES):
            found[:, column] = np.bincount(rows, weights=by_name[name], minlength=self.size)
        return found

    def _places(self, tenants: TenantTable) -> Sequence[int]:
        for name in tenants.names[len(self._rows) :]:
            row = self._row_of.get(name)
            if row is None:
                row = min(len(self.names), self.size - 1)
                if row < self.size - 1:
                    self.names.append(name)
                    self._row_of[name] = row
            self._rows.append(row)
        return self._rows


class EngineTenants(Protocol):
    """The part of an engine's page that has figures of tenants."""

    @property
    def rank(self) -> int: ...
    @property
    def tenants(self) -> Sequence[TenantFigures]: ...


def to_bytes(name: str) -> bytes:
    """Return a tenant's name as it stands on a page, of :data:`NAME_BYTES` bytes."""
    return name.encode(errors="replace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")


def read_rows(names: bytes, count: int, values: FloatArray) -> tuple[TenantFigures, ...]:
    """Return the used rows of a page.

    Args:
        names: Names of the rows, of :data:`NAME_BYTES` bytes each.
        count: Number of rows with a name.
        values: Figures, ``[rows, len(FIGURES)]``.
    """
    table = values.tolist()
    found = []
    for row in range(count):
        name = names[row * NAME_BYTES : (row + 1) * NAME_BYTES].rstrip(b"\0").decode(errors="ignore")
        found.append(TenantFigures(name or None, *table[row]))
    if count and any(table[-1]):
        found.append(TenantFigures(OTHER, *table[-1]))
    return tuple(found)


def by_label(tenants: Iterable[TenantFigures], label_of: Callable[[str | None], str]) -> dict[str, TenantFigures]:
    """Return the sums of the figures by label.

    Args:
        tenants: How tenants stand, of one engine or several.
        label_of: Returns the label of a tenant.
    """
    sums: dict[str, TenantFigures] = {}
    for one in tenants:
        label = label_of(one.tenant)
        before = sums.get(label)
        figures = one[1:] if before is None else [a + b for a, b in zip(before[1:], one[1:], strict=True)]
        sums[label] = TenantFigures(label, *figures)
    return sums


def own_name(tenant: str | None) -> str:
    """Return the label of a tenant that no other process may lack: its name."""
    return NONE if tenant is None else tenant


def tenant_families(pages: Iterable[EngineTenants], prefix: str, label_of: Callable[[str | None], str]) -> list[Metric]:
    """Return the metrics, with samples of the engines on which tenants have shares.

    Args:
        pages: Pages of the engines.
        prefix: Prefix of the metrics' names.
        label_of: Returns the label of a tenant, one of a bounded number.
    """
    service = CounterMetricFamily(
        f"{prefix}tenant_service_seconds", "Service of the tenant in seconds of the engine", labels=["engine", "tenant"]
    )
    share = GaugeMetricFamily(
        f"{prefix}tenant_share",
        "Share of the engine that the tenant is due (fair) and that it had recently (served), 0 to 1, among the "
        "tenants with requests",
        labels=["engine", "tenant", "kind"],
    )
    debt = GaugeMetricFamily(
        f"{prefix}tenant_debt_seconds",
        "Recent service of the tenant beyond its share, in seconds of the engine; negative if it is owed service",
        labels=["engine", "tenant"],
    )
    for page in pages:
        engine = str(page.rank)
        all_s = sum(one.service_s for one in page.tenants)
        for label, one in by_label(page.tenants, label_of).items():
            service.add_metric([engine, label], one.total_s)
            share.add_metric([engine, label, "fair"], one.share)
            share.add_metric([engine, label, "served"], one.service_s / all_s if all_s else 0.0)
            debt.add_metric([engine, label], one.debt_s)
    return [service, share, debt]
