"""The tenants of a server as watchers see them: shares of all its engines, and the share of requests in time."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sloserve.core.attainment_window import not_served, shown
from sloserve.core.tenants import OTHER
from sloserve.engine.metrics.engine_page import PageSnapshot
from sloserve.engine.metrics.live_state import burn_rates, state_of
from sloserve.engine.metrics.process_page import Board, tenant_windows
from sloserve.engine.metrics.tenant_figures import TenantFigures, by_label, own_name

MOST_SHOWN: Final = 20
"""Tenants that a view names; the others are counted."""
_MOST_CHARS: Final = 64
"""Most characters of a name in a view."""


def tenants_now(pages: Sequence[PageSnapshot], boards: Iterable[Board], now_s: float) -> dict[str, Any]:
    """Return how tenants stand and fare, the tenant with the smallest share of requests in time first.

    ``tenants`` holds a row for each of at most :data:`MOST_SHOWN` tenants, ``more_tenants`` the number of the others.
    There are none unless tenants have shares and two of them are known.

    Args:
        pages: Pages of the server's engines.
        boards: Boards of its API processes.
        now_s: The present time by the monotonic clock, in seconds.
    """
    processes = list(boards)
    known = [one for page in pages for one in page.tenants if _is_known(one)]
    name_of = {own_name(one.tenant): one.tenant for one in known}
    sums = by_label(known, own_name)
    if len(sums) < 2:
        return {"tenants": [], "more_tenants": 0}
    all_s = sum(one.service_s for one in known)
    engines = sum(any(one.share for one in page.tenants) for page in pages)
    rows = []
    for label, one in sums.items():
        windows = [] if label == OTHER else tenant_windows(processes, name_of[label])
        # On each engine a tenant's service minus its debt is its share's part of the service of all.
        fair = (one.service_s - one.debt_s) / all_s if all_s else one.share / max(engines, 1)
        weight = max(each.weight for each in known if own_name(each.tenant) == label)
        attained, lost = shown(windows, now_s), not_served(windows, now_s)
        rows.append(
            {
                "name": label[:_MOST_CHARS],
                "weight": weight,
                "running": int(one.running),
                "waiting": int(one.waiting),
                "served": round(one.service_s / all_s, 4) if all_s else 0.0,
                "fair": round(fair, 4),
                "debt_s": round(one.debt_s, 1) + 0.0,  # which is not -0.0
                "attained": attained,
                "not_served": lost,
                "state": state_of(0, burn_rates(attained), lost),
            }
        )
    rows.sort(key=_worst_first)
    return {"tenants": rows[:MOST_SHOWN], "more_tenants": max(len(rows) - MOST_SHOWN, 0)}


def _is_known(one: TenantFigures) -> bool:
    """Return whether a tenant was named, or ever had a request."""
    return one.tenant not in (None, OTHER) or one.running + one.waiting + one.total_s > 0.0


def _worst_first(row: dict[str, Any]) -> tuple[float, float, str]:
    """Return the key by which rows are sorted: the share in time in the last minute, then the size of the debt."""
    ratio = row["attained"][0][0]
    return 2.0 if ratio is None else ratio, -abs(row["debt_s"]), row["name"]
