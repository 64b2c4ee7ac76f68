"""Tables of ``auto_held_out``: `auto` before and after, and its rivals, on settings that were fixed before any run."""

from functools import cache
from io import StringIO

import pandas as pd
from scipy.stats import gmean

from benchmarks.pages.results import around
from benchmarks.policies.auto_held_out import AUTO, FIGURES, POLICIES, STOCK, settings
from benchmarks.policies.step_sizes import BUDGET
from benchmarks.publish import RESULTS, load_text

BEFORE = f"{AUTO}, before"
RIVALS = tuple(policy for policy in POLICIES if policy.endswith(BUDGET))
GROUPS = {
    "mixes": "mixes of traffic",
    "models": "models with several KV layouts",
    "seats": "short outputs on few slots",
}
"""Groups of settings whose requests have targets of several kinds, with their names in tables."""
SETTING, KEYS = ["group", "setting", "load"], ["group", "setting", "load", "seed"]


def name_of(policy: str) -> str:
    """Return what tables call a policy."""
    if policy == STOCK:
        return STOCK
    return f"`{policy.removesuffix(BUDGET)}`*" if policy.endswith(BUDGET) else f"`{AUTO}`" + policy[len(AUTO) :]


@cache
def runs() -> pd.DataFrame:
    """Return all runs, with stock's output throughput of the same requests as ``stock_throughput``.

    Of the runs with the earlier code, `auto` is kept under a name of its own.
    """
    found = pd.read_csv(StringIO(load_text(RESULTS / "auto_held_out.csv.gz")))
    earlier = found.label == "before"
    found.loc[earlier & (found.policy == AUTO), "policy"] = BEFORE
    found = found[~earlier | (found.policy == BEFORE)]
    stock = found[found.policy == STOCK].set_index(KEYS)[list(FIGURES)].add_prefix("stock_")
    return found.join(stock, on=KEYS)


def of_seeds(group: str, figure: str) -> pd.DataFrame:
    """Return a figure of a group with a row for each setting and seed, and a column for each policy."""
    found = runs()[runs().group == group].pivot(index=KEYS, columns="policy", values=figure)
    order = {(one.group, one.name, float(one.load)): place for place, one in enumerate(settings())}
    places = [(order[at[:3]], at[3]) for at in found.index]
    return found.iloc[sorted(range(len(places)), key=places.__getitem__)]


def of_settings(group: str, figure: str) -> pd.DataFrame:
    """Return the means over seeds, with a row for each setting."""
    found: pd.DataFrame = of_seeds(group, figure).groupby(SETTING, sort=False).mean()
    return found


def ratios(group: str, figure: str) -> pd.DataFrame:
    """Return a figure as a multiple of stock's with the same requests, the mean over seeds of each setting."""
    each = of_seeds(group, figure)
    found: pd.DataFrame = each.div(each[STOCK], axis=0).groupby(SETTING, sort=False).mean()
    return found


def by_policy(group: str) -> pd.DataFrame:
    """Return, for each policy, its share in time and its difference from `auto`, over the settings of a group."""
    met, tokens = of_settings(group, "slo_attainment"), ratios(group, "output_throughput")
    best = met.drop(columns=BEFORE).max(axis=1)
    rows = {}
    for policy in (AUTO, BEFORE, *sorted(RIVALS, key=lambda name: -met[name].mean()), STOCK):
        less = met[policy] - met[AUTO]
        rows[name_of(policy)] = {
            "in time, %": f"{100 * met[policy].mean():.1f}",
            "less `auto`, points": "" if policy == AUTO else around(less, "+.1f", ".1f", scale=100),
            "worst, best setting": "" if policy == AUTO else f"{100 * less.min():+.1f}, {100 * less.max():+.1f}",
            "first in": "" if policy == BEFORE else f"{int((met[policy] >= best - 1e-9).sum())} of {len(met)}",
            "tokens/s, x stock": f"{tokens[policy].mean():.3f}",
            "least": f"{tokens[policy].min():.2f}",
        }
    return pd.DataFrame(rows).T.rename_axis("policy").map(lambda text: text.replace("-", "−"))


def by_setting(groups: list[str]) -> pd.DataFrame:
    """Return a row for each setting: `auto` before and after beside stock, `niyama` and the best of the others."""
    rows = {}
    for group in groups:
        met, tokens = of_settings(group, "slo_attainment"), ratios(group, "output_throughput")
        preempted, seeds = of_settings(group, "preemptions_per_request"), of_seeds(group, "slo_attainment").sort_index()
        for at, share in met.iterrows():
            best = max(RIVALS, key=lambda name: share[name])
            less = seeds.loc[at][AUTO] - seeds.loc[at][best]
            rows[f"{at[1]}, load {at[2]:g}"] = {
                "stock": f"{100 * share[STOCK]:.1f}",
                "`auto`, before": f"{100 * share[BEFORE]:.1f}",
                "`auto`": f"{100 * share[AUTO]:.1f}",
                "`niyama`*": f"{100 * share['niyama' + BUDGET]:.1f}",
                "best of the others": f"{100 * share[best]:.1f} {name_of(best)}",
                "`auto` less it": around(less, "+.1f", ".1f", scale=100).replace("-", "−"),
                "tokens/s, x stock, before": f"{tokens.loc[at][BEFORE]:.3f}",
                "now": f"{tokens.loc[at][AUTO]:.3f}",
                "preemptions a request": f"{preempted.loc[at][AUTO]:.2f}",
            }
    return pd.DataFrame(rows).T.rename_axis("setting")


def by_group() -> pd.DataFrame:
    """Return a row for each group: means over its settings, and the settings in which `auto` is worst."""
    rows = {}
    for group, name in GROUPS.items():
        met, tokens = of_settings(group, "slo_attainment"), ratios(group, "output_throughput")
        best = met[list(RIVALS)].max(axis=1)
        less = 100 * (met[AUTO] - best)
        rows[f"{name} ({len(met)})"] = {
            "stock": f"{100 * met[STOCK].mean():.1f}",
            "`auto`": f"{100 * met[AUTO].mean():.1f}",
            "best other, chosen for each setting": f"{100 * best.mean():.1f}",
            "`auto` less it: worst, best setting": f"{less.min():+.1f}, {less.max():+.1f}".replace("-", "−"),
            "tokens/s, x stock": f"{tokens[AUTO].mean():.3f}",
            "least": f"{tokens[AUTO].min():.3f}",
            "most preemptions a request": f"{of_settings(group, 'preemptions_per_request')[AUTO].max():.2f}",
        }
    return pd.DataFrame(rows).T.rename_axis("in time, % (settings)")


def untargeted() -> pd.DataFrame:
    """Return, for each load, latencies without targets as multiples of stock's: geometric means over the workloads."""
    figures = {
        "TTFT, mean": "mean_ttft_ms",
        "p99": "p99_ttft_ms",
        "longest wait": "max_wait_s",
        "ms a token": "normalized_latency_ms",
    }
    rows: dict[str, dict[str, str]] = {}
    for policy in (AUTO, BEFORE, *(name + BUDGET for name in ("sjf", "edf"))):
        for head, figure in figures.items():
            each = ratios("untargeted", figure)[policy].groupby("load")
            for load, ratio in each.agg(gmean).items():
                row = rows.setdefault(f"{name_of(policy)}, load {load:g}", {})
                row[head] = f"{ratio:.2f}"
                if head == "p99":
                    row["worst p99"] = f"{each.max()[load]:.2f}"
        tokens = ratios("untargeted", "output_throughput")[policy].groupby("load").mean()
        for load, ratio in tokens.items():
            rows[f"{name_of(policy)}, load {load:g}"]["tokens/s"] = f"{ratio:.3f}"
    return pd.DataFrame(rows).T.rename_axis("policy, latencies and tokens/s x stock")
