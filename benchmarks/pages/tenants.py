"""Table of tenants that share one engine, beside the rivals."""

import pandas as pd

from benchmarks.pages.results import rows
from sloserve.sim.report.statistics import jain_index

POLICIES = {
    ("stock", False): "stock",
    ("caps", False): "a cap for each tenant",
    ("deficit round robin", False): "gateway, deficit round robin",
    ("least attained", False): "gateway, least attained service",
    ("vtc", False): "virtual token counter",
    ("auto", False): "`auto`",
    ("auto", True): "`auto` with shares",
    ("alone", False): "alone on an engine of its share",
}
"""Names of the policies in tables, by policy and whether tenants have shares."""


def burst() -> pd.DataFrame:
    """Return what each policy gives three tenants of which one bursts, by load."""
    found = _runs("burst")
    found["bursts"] = 100.0 * found["attainment/t0"]
    equals = found[["slowdown/t1", "slowdown/t2"]]
    found["jain"] = [jain_index(list(pair)) for pair in equals.to_numpy()]
    figures = {
        "others": ("the two others, % in time", 1),
        "bursts": ("the one that bursts", 1),
        "jain": ("Jain's index of the others' slowdown", 3),
        "output_throughput": ("tokens/s", 0),
        "preemptions_per_request": ("preemptions a request", 2),
    }
    mean = found.groupby(["load", "policy"], sort=False)[list(figures)].mean()
    shown = pd.DataFrame(
        {
            head: [f"{value:,.{digits}f}" if value == value else "" for value in mean[figure]]
            for figure, (head, digits) in figures.items()
        }
    )
    index = [f"{policy}, load {load:g}" for load, policy in mean.index]
    shown.index = pd.Index(index, name="policy")
    return shown


def _runs(setting: str) -> pd.DataFrame:
    """Return the runs of a setting of three tenants, with names of policies and the mean attainment of the others."""
    runs = rows("tenants", "runs", setting=setting).copy()
    names = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    runs["policy"] = pd.Categorical(names, [name for name in POLICIES.values() if name in names], ordered=True)
    runs = runs.sort_values(["load", "policy"])
    runs["policy"] = runs.policy.astype(str)
    runs["others"] = 50.0 * (runs["attainment/t1"] + runs["attainment/t2"])
    return runs
