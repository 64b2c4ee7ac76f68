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


PROFILES = {"h100-llama3-8b": "", "h200x4-qwen3-235b": ", 235B on four H200"}


def settings() -> pd.DataFrame:
    """Return the mean attainment of all tenants but the first in each setting, and what shares change beside it."""
    runs = rows("tenants", "runs").copy()
    runs["policy"] = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    others = [name for name in runs.columns if name.startswith("attainment/t") and name != "attainment/t0"]
    runs["others"], runs["first"] = 100.0 * runs[others].mean(axis=1), 100.0 * runs["attainment/t0"]
    by = ["setting", "profile", "load", "policy"]
    mean = runs.groupby(by, sort=False)[["others", "first", "output_throughput", "jain_slowdown"]].mean()
    shown = []
    for (setting, profile, load), each in mean.groupby(by[:3], sort=False):
        of = each.droplevel(by[:3])
        shares, auto = of.loc["`auto` with shares"], of.loc["`auto`"]
        fair = ("gateway, deficit round robin", "gateway, least attained service", "virtual token counter")
        shown.append(
            {
                "setting": f"{setting}{PROFILES[profile]}, load {load:g}",
                "others: stock": f"{of.others['stock']:.1f}",
                "best of three fair queues": f"{of.others.loc[list(fair)].max():.1f}",
                "`auto`": f"{auto.others:.1f}",
                "with shares": f"{shares.others:.1f}",
                "first: `auto`": f"{auto['first']:.1f}",
                "first, with shares": f"{shares['first']:.1f}",
                "tokens/s, of `auto`'s": f"{shares.output_throughput / auto.output_throughput:.2f}",
                "Jain's index of slowdown": f"{auto.jain_slowdown:.2f} -> {shares.jain_slowdown:.2f}",
            }
        )
    return pd.DataFrame(shown).set_index("setting")


def _runs(setting: str) -> pd.DataFrame:
    """Return the H100's runs of a setting of three tenants, with names of policies and what the others have."""
    runs = rows("tenants", "runs", setting=setting, profile="h100-llama3-8b").copy()
    names = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    runs["policy"] = pd.Categorical(names, [name for name in POLICIES.values() if name in names], ordered=True)
    runs = runs.sort_values(["load", "policy"])
    runs["policy"] = runs.policy.astype(str)
    runs["others"] = 50.0 * (runs["attainment/t1"] + runs["attainment/t2"])
    return runs
