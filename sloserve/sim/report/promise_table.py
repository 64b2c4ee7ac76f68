"""The table of promises: how many were given, kept and broken, and their cost, by load, class and policy."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from sloserve.sim.report.compare import load_of, loads_of, policies_of
from sloserve.sim.report.summary import Run
from sloserve.sim.report.tables import TableColumn, figure


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"


COLUMNS: Final = (
    TableColumn("given", "given", lambda count: f"{count:.0f}", marked=False),
    TableColumn("kept", "kept", lambda count: f"{count:.0f}", marked=False),
    TableColumn("broken", "broken", lambda count: f"{count:.0f}", marked=False),
    TableColumn("broken\n%", "broken_share", _percent, marked=False),
    TableColumn("allowed\n%", "allowed_share", _percent, marked=False),
    TableColumn("price\ns", "delayed_s", lambda delayed_s: f"{delayed_s:.1f}", marked=False),
    TableColumn("beyond\ns", "beyond_s", lambda beyond_s: f"{beyond_s:.1f}", marked=False),
)


def promise_table(runs: Sequence[Run]) -> Table | None:
    """Return the table, means over seeds; ``None`` where no run gave a promise."""
    classes = list(dict.fromkeys(name for run in runs for name in run.get("promises", {})))
    if not classes:
        return None
    table = Table(
        title="promises",
        title_justify="left",
        caption="allowed: broken promises that the levels allow; price: seconds by which promises delayed others; "
        "beyond: seconds by which broken ones exceeded their targets",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("load", justify="right", min_width=7)
    table.add_column("class", overflow="fold")
    table.add_column("policy", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True, min_width=8)
    for load in loads_of(runs):
        for name in classes:
            for policy in policies_of(runs):
                cell = [run for run in runs if run["policy"] == policy and load_of(run) == load]
                records = [run["promises"][name] for run in cell if name in run.get("promises", {})]
                if records:
                    figures = [figure(column, [one[column.key] for one in records], None) for column in COLUMNS]
                    table.add_row(f"{load:.3g}", Text(f" {name}"), policy, *figures)
        table.add_section()
    return table
