"""Tables of tenants that share one engine: by policy in one setting, and all settings beside the rivals."""

import pandas as pd

from benchmarks.pages.results import rows
from benchmarks.policies.tenants import KV_BLOCKS, PROFILE, SETTINGS
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
OTHERS = {
    "burst": ["t1", "t2"],
    "heavy burst": [f"t{i}" for i in range(1, 22)],
    "heavy and light": [f"t{i}" for i in range(2, 22)],
    "weights 4:2:1": ["t0", "t1", "t2"],
    "long prompts": ["t1", "t2"],
    "reasoning": ["t1", "t2"],
    "adapters": [f"t{i}" for i in range(1, 10)],
    "adapters, four at a time": [f"t{i}" for i in range(1, 10)],
}
"""Tenants of each setting that the setting is about: all but those that ask for more than their share."""
NAMES = {
    "burst": "one of three bursts",
    "heavy burst": "one of two heavy among twenty light bursts",
    "heavy and light": "two heavy beside twenty light",
    "weights 4:2:1": "weights 4:2:1, equal demand",
    "long prompts": "one sends prompts of 30,000 tokens",
    "reasoning": "one has reasoning replies",
    "adapters": "one of ten LoRA adapters bursts",
    "adapters, four at a time": "the same where four adapters may run at once",
}


def burst() -> pd.DataFrame:
    """Return what each policy gives three tenants of which one bursts, by load, and on a mixture of experts."""
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
    mean = found.groupby(["engine", "load", "policy"], sort=False)[list(figures)].mean()
    shown = pd.DataFrame(
        {
            head: [f"{value:,.{digits}f}" if value == value else "" for value in mean[figure]]
            for figure, (head, digits) in figures.items()
        }
    )
    index = [f"{policy}, {engine}load {load:g}" for engine, load, policy in mean.index]
    shown.index = pd.Index(index, name="policy")
    return shown


def settings() -> pd.DataFrame:
    """Return the attainment of those that ask for no more than their share, by setting and policy, at load 1.2."""
    found = {}
    for setting in SETTINGS:
        runs = _runs(setting)
        runs = runs[(runs.load == 1.2) & (runs.profile == PROFILE)]
        mean = runs.groupby("policy")[["others", "output_throughput"]].mean()
        column = {name: f"{mean.others[name]:.1f}" for name in POLICIES.values() if name in mean.index}
        plain, shared = (mean.output_throughput[name] for name in ("`auto`", "`auto` with shares"))
        found[NAMES[setting]] = column | {"tokens/s of shares, by `auto`'s": f"{shared / plain:.2f}"}
    return pd.DataFrame(found).T.rename_axis("setting")


def engine() -> pd.DataFrame:
    """Return what each policy gives the tenants of a real CPU engine while one of three bursts."""
    runs = rows("tenants_engine", "runs")
    attained = {name: 100.0 * runs[f"by_tenant/{name}/slo_attainment"] for name in ("bursts", "b", "c")}
    runs["others"], runs["bursts"] = (attained["b"] + attained["c"]) / 2.0, attained["bursts"]
    mean = runs.groupby("policy", sort=False)[["others", "bursts", "output_throughput", "preemptions"]].mean()
    mean = mean.loc[[policy for policy in ("stock", "auto", "auto:shares") if policy in mean.index]]
    shown = pd.DataFrame(
        {
            "the two others, % in time": mean.others.map("{:.1f}".format),
            "the one that bursts": mean.bursts.map("{:.1f}".format),
            "tokens/s": mean.output_throughput.map("{:,.0f}".format),
            "preemptions a request": mean.preemptions.map("{:.2f}".format),
        }
    )
    shown.index = pd.Index([POLICIES[one.split(":")[0], ":" in one] for one in shown.index], name="policy")
    return shown


def _runs(setting: str) -> pd.DataFrame:
    """Return the runs of a setting with the names of policies and engines, and the mean attainment of the others."""
    runs = rows("tenants", "runs", setting=setting).copy()
    names = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    order = list(POLICIES.values())
    runs["policy"] = pd.Categorical(names, [name for name in order if name in names], ordered=True)
    runs = runs.sort_values(["load", "policy"])
    runs["policy"] = runs.policy.astype(str)
    first = list(KV_BLOCKS)[0]
    runs["profile"] = runs.profile.ffill()
    runs["engine"] = ["" if profile == first else f"{profile}, " for profile in runs.profile]
    known = [f"attainment/{name}" for name in OTHERS[setting] if f"attainment/{name}" in runs]
    runs["others"] = 100.0 * runs[known].mean(axis=1)
    return runs
