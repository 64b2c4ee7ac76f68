"""An experiment as a table for the terminal: a row per load and policy, means over seeds, marked against the baseline.

A figure carries ``+`` where the policy wins on it, ``-`` where it loses, and nothing on a tie
(:mod:`~sloserve.sim.report.compare`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from sloserve.sim.report.compare import (
    CAPACITY,
    MIN_PAIRS,
    REQUESTS,
    TASKS,
    Comparison,
    Verdict,
    load_of,
    load_unit,
    loads_of,
    policies_of,
)
from sloserve.sim.report.load_capacity import Bound, LoadCapacity, SeedMean
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run

NO_VALUE = "-"
SHORT_UNITS: Mapping[str, str] = {CAPACITY: "x stock", REQUESTS: "req/s", TASKS: "tasks/s"}
MARKS: Mapping[Verdict, tuple[str, str]] = {Verdict.WIN: ("+", "green"), Verdict.LOSS: ("-", "red")}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table.

    Args:
        heading: Heading in two lines.
        key: Key of the figure in a run's record.
        form: Function that formats the figure.
        marked: Whether wins and losses are marked.
    """

    heading: str
    key: str
    form: Callable[[float], str]
    marked: bool = True


def _seconds(value_ms: float) -> str:
    """Return milliseconds as seconds, to about three significant digits."""
    value_s = value_ms / 1e3
    return f"{value_s:.3f}" if value_s < 1.0 else f"{value_s:.2f}" if value_s < 10.0 else f"{value_s:.1f}"


ATTAINMENT = TableColumn("SLO\n%", "slo_attainment", lambda share: f"{100.0 * share:.1f}")
COLUMNS = (
    TableColumn("goodput\nreq/s", "request_goodput", lambda rate: f"{rate:.2f}"),
    TableColumn("TTFT s\np50", "median_ttft_ms", _seconds),
    TableColumn("TTFT s\np99", "p99_ttft_ms", _seconds),
    TableColumn("e2e s\np99", "p99_e2el_ms", _seconds),
    TableColumn("QoE\nmean", "qoe_mean", lambda qoe: f"{qoe:.3f}"),
    TableColumn("QoE\np10", "qoe_p10", lambda qoe: f"{qoe:.3f}"),
    TableColumn("preempt\n/req", "preemptions_per_request", lambda count: f"{count:.2f}", marked=False),
    TableColumn("output\ntok/s", "output_throughput", lambda rate: f"{rate:.0f}"),
)

SWAP_COLUMNS = (
    TableColumn("swaps\np99", "swaps_per_request_p99", lambda count: f"{count:.0f}", marked=False),
    TableColumn("moved\nKB/tok", "swap_bytes_per_output_token", lambda size: f"{size / 1e3:.1f}", marked=False),
    TableColumn("again\ntok/req", "recomputed_tokens_per_request", lambda count: f"{count:.0f}", marked=False),
    TableColumn("pool\nGiB", "swap_pool_peak_gib", lambda size: f"{size:.1f}", marked=False),
)
"""The further columns of an experiment with an engine that has swap space."""


def summary_table(runs: Sequence[Run], comparisons: Sequence[Comparison] = (), *, title: str | None = None) -> Table:
    """Return the table of an experiment; times are in seconds, attainment in percent, overall and by class.

    ``comparisons`` come from :func:`~sloserve.sim.report.compare.compare`; without them nothing is marked. With two
    classes the table is some 95 columns wide.
    """
    classes = list(dict.fromkeys(name for run in runs for name in run["slo_attainment_by_class"]))
    shown_classes = classes if len(classes) > 1 else []
    verdicts = {(c.policy, c.load, c.metric): c.verdict for c in comparisons}
    table = Table(
        title=title,
        title_justify="left",
        caption=_caption(comparisons),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,  # the place of the mark keeps figures apart
    )
    unit = SHORT_UNITS[load_unit(runs)]
    table.add_column(f"load\n{unit}", justify="right", min_width=len(unit))
    table.add_column("policy", overflow="fold", min_width=8)
    table.add_column(ATTAINMENT.heading, justify="right", no_wrap=True)
    for name in shown_classes:
        table.add_column(f"{name}\n%", justify="right", no_wrap=True, max_width=11)
    columns = COLUMNS + (SWAP_COLUMNS if any("swaps_per_request" in run for run in runs) else ())
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for load in loads_of(runs):
        for policy in policies_of(runs):
            cell = [run for run in runs if run["policy"] == policy and load_of(run) == load]
            if not cell:
                continue
            overall, *figures = (
                figure(column, [run.get(column.key) for run in cell], verdicts.get((policy, load, column.key)))
                for column in (ATTAINMENT, *columns)
            )
            of_classes = (
                figure(ATTAINMENT, [run["slo_attainment_by_class"].get(name) for run in cell], None)
                for name in shown_classes
            )
            table.add_row(f"{load:.3g}", policy, overall, *of_classes, *figures)
        table.add_section()
    return table


CLASS_COLUMNS = (
    TableColumn("TTFT s\np50", "median_ttft_ms", _seconds),
    TableColumn("p99", "p99_ttft_ms", _seconds),
    TableColumn("e2e s\np50", "median_e2el_ms", _seconds),
    TableColumn("p99", "p99_e2el_ms", _seconds),
)


def class_latency_table(runs: Sequence[Run]) -> Table | None:
    """Return the latency of each class by itself, a row per load, class and policy; ``None`` for one class.

    One class's latency is bought with another's, which a column of all requests does not show.
    """
    classes = list(dict.fromkeys(name for run in runs for name in run["by_class"]))
    if len(classes) < 2:
        return None
    table = Table(title="latency by class", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("load", justify="right", min_width=7)
    table.add_column("class", overflow="fold")
    table.add_column("policy", overflow="fold")
    for column in CLASS_COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True, min_width=7)
    for load in loads_of(runs):
        for name in classes:
            for policy in policies_of(runs):
                cell = [
                    run["by_class"][name]
                    for run in runs
                    if run["policy"] == policy and load_of(run) == load and name in run["by_class"]
                ]
                figures = [figure(column, [of.get(column.key) for of in cell], None) for column in CLASS_COLUMNS]
                table.add_row(f"{load:.3g}", f" {name}", policy, *figures)
        table.add_section()
    return table


def capacity_table(capacities: Sequence[LoadCapacity], condition: str, unit: str) -> Table:
    """Return a table of the load that each policy carries under ``condition``, and its ratio to the baseline's load.

    The figures are means over seeds. ``unit`` is what :func:`~sloserve.sim.report.compare.load_unit` returns.
    """
    table = Table(
        title=f"load at {condition}, {unit}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy", overflow="fold")
    for heading in ("load", "95 % interval", "ratio", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in capacities:
        table.add_row(found.policy, *_estimate(found.load), *_estimate(found.ratio))
    return table


BOUND_SIGNS: Mapping[Bound, str] = {Bound.EXACT: "", Bound.AT_LEAST: ">= ", Bound.AT_MOST: "<= "}


def _estimate(found: SeedMean | None) -> tuple[str, str]:
    if found is None:
        return NO_VALUE, ""
    interval = "" if found.low is None or found.high is None else f"{found.low:.2f} .. {found.high:.2f}"
    return f"{BOUND_SIGNS[found.bound]}{found.value:.2f}", interval


def figure(column: TableColumn, values: Sequence[float | None], verdict: Verdict | None) -> Text:
    """Return the mean of ``values``, with a place behind it for the mark so that figures stay aligned."""
    mean = mean_interval([value for value in values if value is not None])
    if mean is None:
        return Text(f"{NO_VALUE} ")
    mark, style = MARKS.get(verdict, (" ", "")) if verdict is not None and column.marked else (" ", "")
    return Text(f"{column.form(mean.value)}{mark}", style)


def _caption(comparisons: Sequence[Comparison]) -> str | None:
    judged = [c for c in comparisons if c.pairs]
    if not judged:
        return None
    if all(c.verdict is Verdict.INSUFFICIENT for c in judged):
        return f"No verdicts against {judged[0].baseline}: they take at least {MIN_PAIRS} seeds."
    return f"+ better, - worse than {judged[0].baseline} by more than the threshold (95 % confidence, paired seeds)"
