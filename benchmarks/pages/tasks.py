"""Tables of tasks of many calls: how many end in time under each policy, and what that costs."""

import pandas as pd

from benchmarks.pages.results import rows

FIGURES = {
    "mean_s": ("mean s", "{:,.0f}"),
    "p99_s": ("p99 s", "{:,.0f}"),
    "tokens_per_s": ("tokens/s, of stock's", "{:.2f}"),
    "hit_rate": ("found, %", "{:.0f}"),
    "preemptions_per_call": ("preemptions a call", "{:.2f}"),
}
"""Figures at the highest load, with their heads and formats."""


def in_time(workload: str) -> pd.DataFrame:
    """Return the tasks in time at each load, and further figures at the highest load, by policy; means over seeds."""
    runs = rows("tasks", "runs", workload=workload).copy()
    runs["in_time"], runs["hit_rate"] = 100.0 * runs.in_time, 100.0 * runs.hit_rate
    stock = runs[runs.policy == "stock"].set_index(["load", "seed"]).tokens_per_s
    runs["tokens_per_s"] /= stock.loc[list(zip(runs.load, runs.seed, strict=True))].to_numpy()
    mean = runs.groupby(["policy", "load"], sort=False)[["in_time", *FIGURES]].mean()
    loads = sorted(runs.load.unique())
    shown = {}
    for policy in runs.policy.unique():
        of = mean.loc[policy]
        head = "in time %" if len(loads) == 1 else "load {:g}"
        cells = {head.format(load): f"{of.in_time[load]:.1f}" if load in of.index else "" for load in loads}
        last = of.loc[loads[-1]] if loads[-1] in of.index else None
        for figure, (name, form) in FIGURES.items():
            cells[name] = "" if last is None else form.format(last[figure])
        shown[_name(policy)] = cells
    table = pd.DataFrame.from_dict(shown, orient="index")
    table.index.name = "policy"
    return table


def burst() -> pd.DataFrame:
    """Return a burst of small tasks beside a large one: tasks in time, waits and latencies; means over seeds."""
    runs = rows("tasks", "runs", workload="small-beside-large")
    mean = runs.groupby("policy", sort=False)[["in_time", "longest_ttft_s", "mean_s", "large_s", "tokens_per_s"]].mean()
    shown = pd.DataFrame(
        {
            "in time %": [f"{100.0 * value:.1f}" for value in mean.in_time],
            "longest wait for a first token, s": [f"{value:.1f}" for value in mean.longest_ttft_s],
            "mean s": [f"{value:.1f}" for value in mean.mean_s],
            "the large task, s": [f"{value:.1f}" for value in mean.large_s],
            "tokens/s": [f"{value:.0f}" for value in mean.tokens_per_s],
        },
        index=pd.Index(map(_name, mean.index), name="policy"),
    )
    return shown


def _name(policy: str) -> str:
    """Return the name of a setting in tables: the policy as code, then what goes with it."""
    name, _, rest = policy.partition(",")
    plain, star = name.rstrip("*"), "*" if name.endswith("*") else ""
    shown = plain if plain == "stock" else f"`{plain}`{star}"
    return f"{shown},{rest}" if rest else shown
