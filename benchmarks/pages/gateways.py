"""Tables of a gateway in fleets of several sizes, before and after its choices became independent of the size."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchmarks.pages.results import saved

CHOICES = {
    "choice_1_model_us": "a choice, one model",
    "choice_1_model_plan_us": "a choice, one model, with a plan",
    "choice_40_models_us": "a choice, 40 models",
    "choice_40_models_plan_us": "a choice, 40 models, with a plan",
    "full_us": "a host's report while a request waits and all is full",
    "report_us": "a host's report",
    "plan_us": "another plan",
    "view_us": "a view for watchers, 40 models",
}
POLLS = {"rest": "at rest", "busy": "requests everywhere", "held": "as well, while a request waits and all is full"}


def _both(before: float, now: float, spec: str = "{:,.0f}") -> str:
    return f"{spec.format(before)} → {spec.format(now)}"


def _by_size(section: str, size: str) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    found = saved("fleet_gateway_scale")[section]
    before, now = ({row[size]: row for row in found[label]["rows"]} for label in ("before", "now"))
    return before, now


def choices() -> pd.DataFrame:
    """Return microseconds of processor time by size of the fleet, before and now."""
    before, now = _by_size("choices", "instances")
    texts = {
        f"{size:,} instances": {name: _both(before[size][key], now[size][key]) for key, name in CHOICES.items()}
        for size in now
    }
    return pd.DataFrame(texts).rename_axis("µs of processor time")


def polls() -> pd.DataFrame:
    """Return questions to agents a second, and microseconds of the gateway's process for each, before and now."""
    before, now = _by_size("polls", "agents")
    texts = {}
    for size in now:
        for key, head, spec in (("per_s", "questions/s", "{:,.0f}"), ("core", "of a core", "{:.1%}")):
            texts[f"{size:,} agents: {head}"] = {
                name: _both(before[size][f"{way}_{key}"], now[size][f"{way}_{key}"], spec)
                for way, name in POLLS.items()
            }
    return pd.DataFrame(texts).rename_axis("agents are")


def quality() -> pd.DataFrame:
    """Return what the choice among drawn instances is worth beside the choice among all; means over seeds."""
    rows = pd.DataFrame(saved("fleet_gateway_scale")["quality"]["now"]["rows"])
    wide = rows.set_index(["seed", "way"])
    less = (wide.in_time.unstack().drawn - wide.in_time.unstack()["all"]) * 100
    half = 1.96 * less.std() / len(less) ** 0.5
    mean = rows.groupby("way").mean()
    texts = {
        "in time": mean.in_time.map("{:.1%}".format),
        "less all, points": pd.Series({"all": "", "drawn": f"{less.mean():+.1f} ± {half:.1f}"}),
        "cache hits": mean.hits.map("{:.1%}".format),
        "TTFT mean, p99, ms": mean[["ttft_mean_ms", "ttft_p99_ms"]].map("{:.0f}".format).agg(", ".join, axis="columns"),
        "request, s": mean.e2e_mean_s.map("{:.3f}".format),
    }
    names = {"all": "all 24 instances", "drawn": "eight drawn, and holders of the prefix"}
    return pd.DataFrame(texts).loc[list(names)].rename(index=names).rename_axis("compared are")
