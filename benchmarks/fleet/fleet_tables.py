"""Tables of ``fleet_qlm.py``, from the rows of its runs."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.fleet.cells import Row
from sloserve.fleet.simulated.simulate_fleet import IN_TIME
from sloserve.sim.report.load_capacity import Bound, load_capacity
from sloserve.sim.report.statistics import mean_interval

RATE = "req/s"
"""The axis of a ladder."""
WIDTH = 24
"""Of a column."""
SHARES = ("in_time", "interactive", "batch", "kv_used", "swapping", "draining", "serving")
"""In percent."""
NAMES = {
    "in_time": "all in time",
    "interactive": "latency-sensitive in time",
    "batch": "batch in time",
    "kv_used": "KV in use",
    "hol_s": "wait for a first token, s",
    "done_s": "done after, s",
    "served_per_s": "served/s",
    "cpu_s": "CPU s",
    "preemptions_per_request": "preemptions/request",
    "swaps_per_request": "KV swaps/request",
    "preempted_by_fleet_per_request": "preemptions by the fleet/request",
}
DECIMALS = dict.fromkeys(("preemptions_per_request", "swaps_per_request", "preempted_by_fleet_per_request"), 2)
"""Of what is seldom above 1; else 1."""


def table(question: str, axis: str, rows: Sequence[Row], shows: Sequence[str], carried: str | None) -> str:
    """A block for each figure in ``shows`` that rows have: policies by points of ``axis``, means over seeds, shares in
    percent.

    carried: of a ladder, the policy to which the rates that are carried are relative, which come in place of blocks.
    """
    blocks = _blocks(axis, rows, shows) if carried is None else _throughput(axis, rows, carried)
    return "\n".join([question, *_tuned(rows), *blocks]) + "\n"


def _tuned(rows: Sequence[Row]) -> list[str]:
    """Which value was chosen for those that have one chosen."""
    chosen = {row["policy"]: row["tuned"] for row in rows if row.get("tuned") is not None}
    return ["tuned: " + ", ".join(f"{policy} {value:g}" for policy, value in chosen.items())] if chosen else []


def _blocks(axis: str, rows: Sequence[Row], shows: Sequence[str]) -> list[str]:
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    lines = []
    for key in (key for key in shows if key in rows[0]):
        lines += ["", f"{NAMES.get(key, key) + (' (%)' if key in SHARES else ''):34}" + _heading(axis, points)]
        lines += [f"{policy:34}" + "".join(_cell(rows, policy, point, key) for point in points) for policy in policies]
    return lines


def _heading(axis: str, points: Sequence[float]) -> str:
    return "".join(f"{axis + ' ' + format(point, '.3g'):>{WIDTH}}" for point in points)


def _cell(rows: Sequence[Row], policy: str, point: float, key: str) -> str:
    scale = 100.0 if key in SHARES else 1.0
    found = mean_interval([scale * row[key] for row in rows if (row["policy"], row["value"]) == (policy, point)])
    if found is None:
        return f"{'':{WIDTH}}"
    form = f".{DECIMALS.get(key, 1)}f"
    spread = "" if found.low is None else f" +- {found.value - found.low:{form}}"
    return f"{format(found.value, form) + spread:>{WIDTH}}"


def _throughput(axis: str, rows: Sequence[Row], baseline: str) -> list[str]:
    """By policy and point, the rate at which so many are in time, and its multiple of the baseline's."""
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    found = {
        (capacity.policy, point): capacity
        for point in points
        for capacity in load_capacity(
            [row for row in rows if row["value"] == point], "in_time", IN_TIME, baseline=baseline
        )
    }
    lines = ["", f"{f'req/s with {IN_TIME:.0%} in time (x {baseline})':34}" + _heading(axis, points)]
    for policy in policies:
        cells = []
        for point in points:
            capacity = found.get((policy, point))
            rates = [row["rps"] for row in rows if (row["policy"], row["value"]) == (policy, point)]
            load = capacity.load if capacity else None
            if load is not None:
                shown = f"{'' if load.bound == 'exact' else load.bound + ' '}{load.value:.1f}"
            else:
                shown = f"below {min(rates):g}" if rates else ""
            ratio = capacity.ratio if capacity else None
            shown += "" if ratio is None else f" ({ratio.value:.2f})"
            cells.append(f"{shown:>{WIDTH}}")
        lines.append(f"{policy:34}" + "".join(cells))
    return lines


def gains(axis: str, rows: Sequence[Row], baseline: str) -> str:
    """By how much more each policy carries than the baseline, in percent, at points from one kind of device alone to
    the other alone; and how many times as much on the mixed ones between them as on these two, on average.
    """
    points, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("value", "policy"))
    lines = ["", f"{f'% more req/s than {baseline}':34}" + _heading(axis, points) + f"{'mixed / one kind':>{WIDTH}}"]
    for policy in policies:
        found = [_gain([row for row in rows if row["value"] == point], policy, baseline) for point in points]
        if policy == baseline:
            continue
        shown = "".join(f"{'open' if gain is None else format(gain, '.0f'):>{WIDTH}}" for gain in found)
        known = [gain for gain in found if gain is not None]
        times = "open"
        if len(known) == len(found) > 2 and min(known[0], known[-1]) > 0.0:
            times = f"{fmean(known[1:-1]) / fmean((known[0], known[-1])):.1f}"
        lines.append(f"{policy:34}{shown}{times:>{WIDTH}}")
    return "\n".join(lines) + "\n"


def _gain(rows: Sequence[Row], policy: str, baseline: str) -> float | None:
    """In percent; ``None`` where either carries more or less than was run."""
    found = {one.policy: one for one in load_capacity(rows, "in_time", IN_TIME, baseline=baseline)}
    ratio = found[policy].ratio if policy in found else None
    return 100.0 * (ratio.value - 1.0) if ratio is not None and ratio.bound is Bound.EXACT else None
