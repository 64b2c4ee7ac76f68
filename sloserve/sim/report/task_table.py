"""The table of tasks: a row per load, kind of task and policy, means over seeds, marked against the baseline."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table

from sloserve.sim.report.compare import Comparison, load_of, load_unit, loads_of, policies_of
from sloserve.sim.report.summary import Run
from sloserve.sim.report.tables import SHORT_UNITS, TableColumn, figure


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f}"


def _seconds(value_s: float) -> str:
    return f"{value_s:.1f}"


COLUMNS: Final = (
    TableColumn("in time\n%", "tasks_in_time", _percent),
    TableColumn("finished\n%", "tasks_finished", _percent),
    TableColumn("mean\ns", "mean_task_s", _seconds),
    TableColumn("p50\ns", "median_task_s", _seconds),
    TableColumn("p99\ns", "p99_task_s", _seconds),
    TableColumn("first token\nmax s", "max_task_first_token_s", _seconds),
    TableColumn("calls", "calls_per_task", lambda count: f"{count:.1f}", marked=False),
    TableColumn("tools\n%", "tool_time_share", _percent, marked=False),
    TableColumn("hits\n%", "prompt_hit_rate", _percent),
)


def task_table(runs: Sequence[Run], comparisons: Sequence[Comparison] = ()) -> Table | None:
    """Return the table; ``None`` where no run had tasks."""
    if not any("tasks" in run for run in runs):
        return None
    kinds = list(dict.fromkeys(kind for run in runs for kind in run.get("by_task_kind", {})))
    verdicts = {(c.policy, c.load, c.metric): c.verdict for c in comparisons}
    table = Table(title="tasks", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column(f"load\n{SHORT_UNITS[load_unit(runs)]}", justify="right", min_width=7)
    table.add_column("kind", overflow="fold")
    table.add_column("policy", overflow="fold", min_width=8)
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True, min_width=7)
    for load in loads_of(runs):
        for kind in (None, *kinds):
            for policy in policies_of(runs):
                cell = [run for run in runs if run["policy"] == policy and load_of(run) == load]
                found = cell if kind is None else [run["by_task_kind"][kind] for run in cell if "by_task_kind" in run]
                if found:
                    marks = [None if kind else verdicts.get((policy, load, column.key)) for column in COLUMNS]
                    figures = (
                        figure(column, [one.get(column.key) for one in found], mark)
                        for column, mark in zip(COLUMNS, marks, strict=True)
                    )
                    table.add_row(f"{load:.3g}", f" {'all' if kind is None else kind} ", policy, *figures)
        table.add_section()
    return table
