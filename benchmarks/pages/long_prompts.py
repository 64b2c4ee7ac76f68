"""Table of chats beside long prompts: how many of both are in time under each policy."""

import pandas as pd

from benchmarks.pages.results import rows

PROFILES = {"h100-llama3-8b": "8B", "a100-llama3-70b-tp4": "70B"}
NAMES = {
    "edf": "`edf`",
    "niyama:step_budget=true": "`niyama`*, step budget",
    "edf:step_budget=true": "`edf`, step budget",
}
NAMES |= {"auto, in order": "`auto`, prompts in order", "auto": "`auto`"}


def in_time() -> pd.DataFrame:
    """Return the chats and the long prompts in time by policy; each cell has a figure for each load."""
    runs = rows("long_prompts", "runs").copy()
    stock = runs[runs.policy == "stock"].set_index(["profile", "load", "seed"]).output_throughput
    runs["tokens"] = (
        runs.output_throughput / stock.loc[list(zip(runs.profile, runs.load, runs.seed, strict=True))].to_numpy()
    )
    figures = {
        "chats_in_time": ("chats, %", 100.0, 0),
        "long_in_time": ("long, %", 100.0, 0),
        "tokens": ("tokens/s", 1.0, 2),
    }
    mean = runs.groupby(["profile", "policy", "load"], sort=False)[list(figures)].mean()
    shown: dict[str, dict[str, str]] = {}
    for (profile, policy), of in mean.groupby(level=[0, 1], sort=False):
        row = shown.setdefault(NAMES.get(policy, policy), {})
        for figure, (head, factor, digits) in figures.items():
            row[f"{PROFILES[profile]}: {head}"] = "/".join(f"{factor * value:.{digits}f}" for value in of[figure])
    table = pd.DataFrame.from_dict(shown, orient="index")
    table.index.name = "policy"
    return table
