"""The table of what each tenant got, a row per load, tenant and policy, with Jain's index over the tenants below."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from sloserve.sim.report.compare import load_of, loads_of, policies_of
from sloserve.sim.report.summary import Run
from sloserve.sim.report.tables import ATTAINMENT, TableColumn, figure

MOST_ROWS: Final = 10
"""Tenants that the table shows, the ones with most requests; the records have more."""
COLUMNS: Final = (
    TableColumn("requests", "requests", lambda count: f"{count:.0f}", marked=False),
    ATTAINMENT,
    TableColumn("service\ns", "service_s", lambda service_s: f"{service_s:.1f}", marked=False),
    TableColumn("tokens\nk", "tokens", lambda tokens: f"{tokens / 1e3:.1f}", marked=False),
    TableColumn("slow-\ndown", "mean_slowdown", lambda slowdown: f"{slowdown:.2f}", marked=False),
)
JAIN: Final = {
    "slo_attainment": "jain_attainment",
    "service_s": "jain_service_per_weight",
    "mean_slowdown": "jain_slowdown",
}
"""The keys of Jain's index by the column below which it stands."""


def tenant_table(runs: Sequence[Run]) -> Table | None:
    """Return the table, means over seeds; ``None`` where no run had requests of two tenants."""
    tenants = _tenants(runs)
    if not tenants:
        return None
    table = Table(
        title="by tenant",
        title_justify="left",
        caption="Jain's index is over the tenants' attainment, service per weight, and mean slowdown",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("load", justify="right", min_width=7)
    table.add_column("tenant", overflow="fold")
    table.add_column("policy", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True, min_width=8)
    for load in loads_of(runs):
        for name in tenants[:MOST_ROWS]:
            for policy in policies_of(runs):
                of_tenant = [run["by_tenant"][name] for run in _cell(runs, policy, load) if name in run["by_tenant"]]
                if of_tenant:
                    table.add_row(f"{load:.3g}", Text(f" {name}"), policy, *_figures(of_tenant))
        if len(tenants) > MOST_ROWS:
            table.add_row(f"{load:.3g}", f" {len(tenants) - MOST_ROWS} more")
        for policy in policies_of(runs):
            if cell := _cell(runs, policy, load):
                table.add_row(f"{load:.3g}", " Jain's index", policy, *_indexes(cell))
        table.add_section()
    return table


def _tenants(runs: Sequence[Run]) -> list[str]:
    """Return the tenants of all runs, the tenant with most requests first."""
    requests: dict[str, int] = {}
    for run in runs:
        for name, record in run.get("by_tenant", {}).items():
            requests[name] = requests.get(name, 0) + record["requests"]
    return sorted(requests, key=lambda name: (-requests[name], name))


def _cell(runs: Sequence[Run], policy: str, load: float) -> list[Run]:
    return [run for run in runs if run["policy"] == policy and load_of(run) == load and "by_tenant" in run]


def _figures(records: Sequence[Mapping[str, Any]]) -> list[Text]:
    return [figure(column, [record[column.key] for record in records], None) for column in COLUMNS]


def _indexes(runs: Sequence[Run]) -> list[Text]:
    """Return Jain's index below the columns that it is of."""
    found = []
    for column in COLUMNS:
        key = JAIN.get(column.key)
        index = TableColumn(column.heading, str(key), lambda value: f"{value:.3f}", marked=False)
        found.append(Text() if key is None else figure(index, [run[key] for run in runs], None))
    return found
