"""Tables of tenants that share one engine or a fleet, beside the rivals."""

import pandas as pd

from benchmarks.pages.results import rows
from benchmarks.policies.tenants import SETTINGS
from sloserve.sim.report.statistics import jain_index

ALONE = "alone on an engine of its share"
POLICIES = {
    ("stock", False): "stock",
    ("caps", False): "a cap for each tenant",
    ("deficit round robin", False): "gateway, deficit round robin",
    ("least attained", False): "gateway, least attained service",
    ("vtc", False): "virtual token counter",
    ("auto", False): "`auto`",
    ("auto", True): "`auto` with shares",
    ("alone", False): ALONE,
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


PROFILES = {"h100-llama3-8b": "", "h200x4-qwen3-235b": ", 235B"}
LOADS = (0.7, 1.2, 2.0)


def settings() -> pd.DataFrame:
    """Return what the tenants other than the first have in each setting; each cell has a figure for each load.

    ``alone`` are the others that were run alone, and their Jain's index is over those that send alike.
    """
    runs = rows("tenants", "runs").copy()
    runs["policy"] = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    others = [name for name in runs.columns if name.startswith("attainment/t") and name != "attainment/t0"]
    runs["others"], runs["first"] = 100.0 * runs[others].mean(axis=1), 100.0 * runs["attainment/t0"]
    runs["jain"] = [_jain_of_alike(row) for _, row in runs.iterrows()]
    by = ["setting", "profile", "load", "policy"]
    mean = runs.groupby(by, sort=False)[[*others, "others", "first", "output_throughput", "jain"]].mean()
    seeds = runs.groupby(by[:3], sort=False).seed.nunique()
    shown: dict[str, dict[str, str]] = {}
    for (setting, profile), each in mean.groupby(by[:2], sort=False):
        loads = [each.loc[setting, profile, load] if (setting, profile, load) in seeds else None for load in LOADS]
        cells = [{} if of is None else _figures(of, others) for of in loads]
        heads = dict.fromkeys(head for cell in cells for head in cell)
        row = {head: "/".join(cell.get(head, "-") for cell in cells) for head in heads}
        row["seeds"] = "/".join(f"{seeds.get((setting, profile, load), 0)}" for load in LOADS)
        shown[f"{setting}{PROFILES[profile]}"] = row
    return pd.DataFrame.from_dict(shown, orient="index").fillna("").rename_axis("setting")


FLEET = {
    "stock": "stock",
    "deficit round robin": "gateway, deficit round robin",
    "least attained": "gateway, least attained service",
    "auto": "`auto`",
    "each engine": "shares in each engine",
    "gateway": "and in the gateway",
    "fleet": "over the fleet",
}
"""Names of the rows of ``tenant_shares`` in its table."""


def fleet() -> pd.DataFrame:
    """Return what tenants of a fleet have by setting and instances; cells are of the others, and of the first."""
    runs = rows("fleet_tenant_shares", "runs").copy()
    runs["row"] = runs.row.map(FLEET)
    by = ["setting", "instances"]
    means, worst = runs.groupby([*by, "row"], sort=False).mean(numeric_only=True), runs.groupby(by, sort=False).max()
    shown: dict[str, dict[str, str]] = {}
    for (setting, instances), of in means.groupby(by, sort=False):
        each = of.droplevel(by)
        row = {name: f"{each.others[name]:.0f}, {each['first'][name]:.0f}" for name in FLEET.values()}
        shares = each.loc[FLEET["fleet"]]
        for other in ("stock", "auto"):
            row[f"tokens/s, of {FLEET[other]}'s"] = f"{shares.tokens_per_s / each.tokens_per_s[FLEET[other]]:.2f}"
        row["refused, %"] = f"{each.refused.max():.0f}"
        row["Jain's index"] = f"{shares.jain:.2f}" if shares.jain == shares.jain else ""
        most = worst.loc[(setting, instances)]
        row["error, bound, s"] = f"{most.error_s:.1f}, {most.bound_s:.0f}"
        shown[f"{setting}, {instances}"] = row
    return pd.DataFrame.from_dict(shown, orient="index").rename_axis("setting, instances")


def _figures(of: pd.DataFrame, others: list[str]) -> dict[str, str]:
    """Return the figures of a setting at one load, by their heads; ``of`` has a row for each policy."""
    shares, auto = of.loc["`auto` with shares"], of.loc["`auto`"]
    fair = ["gateway, deficit round robin", "gateway, least attained service", "virtual token counter"]
    found = {
        "others: stock": f"{of.others['stock']:.1f}",
        "caps": f"{of.others['a cap for each tenant']:.1f}",
        "best fair queue": f"{of.others[fair].max():.1f}",
        "`auto`": f"{auto.others:.1f}",
        "with shares": f"{shares.others:.1f}",
    }
    if ALONE in of.index:
        found["against alone, points"] = f"{100.0 * (shares[others] - of.loc[ALONE, others]).mean():+.1f}"
    found["tokens/s, of `auto`'s"] = f"{shares.output_throughput / auto.output_throughput:.2f}"
    if shares.jain == shares.jain:
        found["Jain's index"] = f"{shares.jain:.2f}"
    return found | {"first: `auto`": f"{auto['first']:.1f}", "first, with shares": f"{shares['first']:.1f}"}


def _jain_of_alike(run: pd.Series) -> float | None:
    """Return Jain's index of slowdown over the tenants after the first that send, and weigh, what the last does."""
    of = SETTINGS[run.setting]
    each = list(zip(of.demand, of.weights, strict=True))
    alike = [i for i in range(1, len(each)) if each[i] == each[-1]]
    return jain_index([run[f"slowdown/t{i}"] for i in alike]) if len(alike) > 1 else None


def _runs(setting: str) -> pd.DataFrame:
    """Return the H100's runs of a setting of three tenants, with names of policies and what the others have."""
    runs = rows("tenants", "runs", setting=setting, profile="h100-llama3-8b").copy()
    names = [POLICIES[key] for key in zip(runs.policy, runs.shares, strict=True)]
    runs["policy"] = pd.Categorical(names, [name for name in POLICIES.values() if name in names], ordered=True)
    runs = runs.sort_values(["load", "policy"])
    runs["policy"] = runs.policy.astype(str)
    runs["others"] = 50.0 * (runs["attainment/t1"] + runs["attainment/t2"])
    return runs
