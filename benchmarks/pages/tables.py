"""Every table of measurements on the pages of docs/benchmarks: a function makes each as a frame of texts.

A table named ``PAGE.NAME`` stands on ``docs/benchmarks/PAGE.md`` between ``<!-- table: PAGE.NAME -->`` and
``<!-- end -->``, where ``pytest tests/docs --update-docs`` writes it. A page may show some rows and columns;
``benchmarks.whole_tables`` prints all, and the tables that no page shows. An asterisk behind a policy says that it runs
with the step budget.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from scipy.stats import gmean

from benchmarks.pages import gateways, held_out, hosting, long_prompts, promises, tasks, tenants
from benchmarks.pages.results import (
    around,
    at_latency,
    by_seed,
    compared,
    markdown_table,
    means,
    of_stock,
    printed,
    rows,
    saved,
    span,
)
from benchmarks.policies import auto_tail

Table = Callable[[], pd.DataFrame]
TABLES: dict[str, Table] = {}
"""Each table as pages show it, by its name."""
WHOLE: dict[str, Table] = {}
"""Each table with all of its rows and columns, by its name."""
BUDGET = ":step_budget=true"
FLEET = {
    "fifo": "`fifo`",
    "on-demand": "`on-demand`",
    "collate/stock": "`collate`",
    "edf/stock": "`edf`",
    "qlm/stock": "`qlm`",
    "qlm-paper/stock": "`qlm-paper`",
    "shepherd/stock": "SHEPHERD",
}
"""The planners of QLM's fleet that its tables show."""


def table(
    name: str, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> Callable[[Table], Table]:
    """Register a function as the table of this name.

    Args:
        name: Name of the table.
        rows: Heads of the rows that the page shows; ``benchmarks.whole_tables`` prints all. Default: all.
        columns: Heads of the columns that the page shows. Default: all.
    """

    def register(made: Table) -> Table:
        def on_page() -> pd.DataFrame:
            whole = made()
            return whole.loc[list(rows or whole.index), list(columns or whole.columns)]

        TABLES[name], WHOLE[name] = on_page, made
        return made

    return register


def whole_only(name: str) -> Callable[[Table], Table]:
    """Register a function as a table that no page shows; ``benchmarks.whole_tables`` prints it."""

    def register(made: Table) -> Table:
        WHOLE[name] = made
        return made

    return register


def shown(policies: list[str], bold: tuple[str, ...] = ()) -> dict[str, str]:
    """Return what tables call these policies: ``edf:step_budget=true`` is ```edf`*``."""
    names = {policy: f"`{policy.removesuffix(BUDGET)}`" + "*" * policy.endswith(BUDGET) for policy in policies}
    names |= {policy: f"**{names[policy]}**" for policy in bold}
    return names | ({"stock": "stock"} if "stock" in policies else {})


def chosen(frame: pd.DataFrame | pd.Series, names: Mapping[str, str], head: str) -> pd.DataFrame | pd.Series:
    """Return the rows that ``names`` has, in its order and under its names, below this head."""
    return frame.loc[list(names)].rename(index=names).rename_axis(head)


def attainment(name: str, loads: list[float], policies: dict[str, str], head: str) -> pd.DataFrame:
    """Return the share of requests in time of an experiment, by load and policy."""
    met = means(name, by=["load", "policy"]).slo_attainment.unstack()
    return (
        met.loc[loads, list(policies)]
        .rename(index="{:g}".format, columns=policies)
        .map("{:.1%}".format)
        .rename_axis(head)
    )


@whole_only("andes.urgency")
def andes_urgency() -> pd.DataFrame:
    """Mean QoE and attainment of `andes` and its rivals, with the differences of `andes` from its former urgency."""
    before, profiles = "andes-parts:urgent_s=0.5", {"a40x4-opt-66b": "OPT-66B, A40", "a100-llama3-70b-tp4": "70B, A100"}
    profiles |= {"h100-llama3-8b": "8B, H100"}
    policies = shown(
        ["stock", "edf" + BUDGET, "sjf" + BUDGET, "econo" + BUDGET, "niyama" + BUDGET, "andes-paper", "auto"]
    )
    lines = {}
    for profile, text in profiles.items():
        qoe, met = (by_seed("andes_urgency", figure, profile=profile) for figure in ("qoe_mean", "slo_attainment"))
        line = {
            "`andes`": f"{qoe['andes'].mean():.3f}, {met['andes'].mean():.0%}",
            "to 0.5 s": f"{around(qoe['andes'] - qoe[before], '+.3f', '.3f')}, "
            f"{around(met['andes'] - met[before], '+.0f', '.0f', scale=100)} points",
        }
        for policy, name in policies.items():
            line[name] = f"{qoe[policy].mean():.3f}, {met[policy].mean():.0%}"
        lines[text] = line
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("mean QoE, in time")


@table("andes.qoe", columns=["stock", "`edf`*", "`andes`", "`auto`", "`andes`: preemptions, tokens/s"])
def andes_qoe() -> pd.DataFrame:
    """Mean QoE by workload and load, with what the two policies that plan for QoE pay for it."""
    workloads = {
        ("reading", "qoe-reading"): [1.5, 2.5],
        ("several rounds", "qoe-multiround"): [1.5, 2.5],
        ("voice", "qoe-voice"): [2.5],
        ("Azure conv.", "qoe-azure-conv"): [1.5, 2.5],
        ("Azure code", "qoe-azure-code"): [1.5],
        ("ServeGen", "qoe-servegen"): [1.5, 2.5],
    }
    policies = shown(["stock", "edf" + BUDGET, "andes", "auto"])
    found = {}
    for (workload, name), loads in workloads.items():
        for load in loads:
            mean = means(name, load=load)
            row = mean.qoe_mean[list(policies)].rename(policies).map("{:.3f}".format)
            costs = mean.preemptions_per_request.map("{:.2f}, ".format) + of_stock(mean.output_throughput)
            for policy in ("andes", "auto"):
                row[f"`{policy}`: preemptions, tokens/s"] = costs[policy]
            found[f"{workload}, {load}"] = row
    return pd.DataFrame(found).T.rename_axis("workload, load")


@table(
    "econo.loads",
    rows=["ShareGPT", "Alpaca", "BookCorpus", "Azure conv.", "Azure code", "ServeGen", "OPT-175B, ShareGPT"],
    columns=["stock", "`edf`*", "`sjf`*", "`econo` / stock", "`auto` / stock"],
)
def econo_loads() -> pd.DataFrame:
    """The load that each policy carries at twice stock's unloaded latency per token."""
    workloads = {
        "ShareGPT": "econo-sharegpt",
        "Alpaca": "econo-alpaca",
        "BookCorpus": "econo-bookcorpus",
        "Azure conv.": "econo-azure-conv",
        "Azure code": "econo-azure-code",
        "ServeGen": "econo-servegen",
        "Llama-33B, ShareGPT": "econo-llama-33b",
        "OPT-175B, ShareGPT": "econo-opt-175b",
    }
    policies = shown(["stock", "edf" + BUDGET, "sjf" + BUDGET, "econo", "auto"], bold=("econo",))
    found = {}
    for workload, name in workloads.items():
        carried = at_latency(name)
        ratios = carried.ratio[["econo", "auto"]].rename("`{}` / stock".format)
        found[workload] = pd.concat([carried.load[list(policies)].rename(policies), ratios])
    return pd.DataFrame(found).T.rename_axis("workload")


@table("econo.fixed")
def econo_fixed() -> pd.DataFrame:
    """One deadline for all requests: share in time, ms per token, and tokens per second relative to stock."""
    mean = means("econo-fixed-deadline", load=1.5)
    texts = pd.DataFrame(
        {
            "load 1.5": mean.slo_attainment.map("{:.0%}, ".format)
            + mean.normalized_latency_ms.map("{:.0f}, ".format)
            + of_stock(mean.output_throughput),
            "preemptions a request at 1.5": mean.preemptions_per_request.map("{:.2f}".format),
        }
    )
    policies = shown(
        ["stock", "edf" + BUDGET, "sjf" + BUDGET, "andes" + BUDGET, "econo", "auto"], bold=("econo", "auto")
    )
    return chosen(texts, policies | {"econo:length=oracle": "`econo`, lengths known"}, "policy")


@whole_only("econo.hosting")
def econo_hosting() -> pd.DataFrame:
    """Why EconoServe as published loses: guests, reserved KV, and prompts that wait."""
    return hosting.hosting()


@whole_only("econo.guests")
def econo_guests() -> pd.DataFrame:
    """What guests in promised KV gain in `econo`."""
    return hosting.guests()


@table("deadlines.conversations")
def deadlines_conversations() -> pd.DataFrame:
    """Azure's conversations with 2,048 tokens a step."""
    budgets = [policy + BUDGET for policy in ("edf", "sjf", "andes", "econo")]
    policies = shown(["stock", "edf", *budgets, "auto"], bold=("auto",))
    return attainment("azure-conv", [0.7, 1, 1.5, 2], policies, "load, 2,048 tokens")


@table("deadlines.short_steps")
def deadlines_short_steps() -> pd.DataFrame:
    """Azure's conversations with 512 tokens a step."""
    policies = shown(["stock", "priority", "edf", "sjf", "auto"], bold=("auto",))
    return attainment("azure-conv-short-steps", [1, 1.5], policies, "load, 512 tokens")


@table("sa.online")
def sa_online() -> pd.DataFrame:
    """Requests that arrive over time, on two traces."""
    policies = shown(
        ["stock", "edf" + BUDGET, "sjf" + BUDGET, "sa", "sa" + BUDGET, "sa-batches", "auto"], bold=("auto",)
    )
    azure = attainment("sa-azure-conv", [0.7, 1, 1.5], policies, "trace, load").rename("Azure, 512 tokens, {}".format)
    servegen = attainment("sa-servegen", [1, 1.5], policies, "trace, load").rename("ServeGen, {}".format)
    return pd.concat([azure, servegen])


@table("sa.burst")
def sa_burst() -> pd.DataFrame:
    """Requests that are there at once: G as a multiple of stock's, and the share in time."""
    policies = {"edf": "`edf`", "sjf:length=oracle": "`sjf`", "sa:length=oracle": "`sa`", "sa": "`sa`, predicted"}
    found = {}
    for requests, limit in ((10, 1), (20, 2), (40, 4)):
        cell = {"profile": "v100x2-qwen2.5-7b", "requests": requests, "max_batch": limit, "length_error": 0}
        met = means("sa-paper", **cell).attainment.map("{:.0%}".format)
        goodput = by_seed("sa-paper", "goodput", **cell)
        ratios = goodput.div(goodput.stock, axis="index")
        times = ratios.mean().map("{:.1f}".format)
        times["sa:length=oracle"] += f" ({span(ratios['sa:length=oracle'], '.1f')})"
        texts = (times + ", " + met)[list(policies)].rename(policies)
        found[f"{requests}, {limit}"] = pd.concat([pd.Series({"stock": met["stock"]}), texts])
    return pd.DataFrame(found).T.rename_axis("requests, batch limit")


@table("admission.requests")
def admission_requests() -> pd.DataFrame:
    """Azure's conversations at twice stock's capacity, by policy and admission."""
    mean = means("admission-azure-conv-10s")
    classes = mean[["slo_attainment_by_class/interactive", "slo_attainment_by_class/batch"]].map("{:.0%}".format)
    texts = pd.DataFrame(
        {
            "goodput": mean.request_goodput.map("{:.1f}".format),
            "of all": mean.slo_attainment.map("{:.1%}".format),
            "interactive, batch": classes.agg(", ".join, axis="columns"),
            "rejected": mean.rejected.map("{:.0f}".format),
            "false": mean.false_rejects.map("{:.0f}".format),
        }
    )
    names = {
        "stock": "stock",
        "stock+vllm:max_num_queued_tokens=4000": "stock, tokens 4,000",
        "stock+predict:min_chance=0.5": "stock, predict 0.5",
        "edf:step_budget=true+vllm:max_num_queued_tokens=16000": "`edf`*, tokens 16,000",
        "edf:step_budget=true+predict:min_chance=0.5": "`edf`*, predict 0.5",
        "sjf:step_budget=true": "`sjf`*",
        "sjf:step_budget=true+predict:min_chance=0.5": "`sjf`*, predict 0.5",
        "auto": "`auto`",
        "auto+vllm:max_num_queued_tokens=16000": "`auto`, tokens 16,000",
        "auto+predict:min_chance=0.5": "`auto`, predict 0.5",
    }
    return chosen(texts, names, "policy and admission")


@table(
    "estimators.encoders",
    rows=[
        "the class's distribution",
        "counts over the text",
        "counts, ridge regression on words and pairs (`train-length`)",
        "counts, averaged token vectors of an LLM",
        "counts, words and pairs, the transformer",
    ],
)
def estimators_encoders() -> pd.DataFrame:
    """How well encoders of a prompt tell the output's length."""
    names = {
        "class": "the class's distribution",
        "counts": "counts over the text",
        "hashed": "counts, 256 columns of hashed words",
        "words": "counts, ridge regression on words and pairs (`train-length`)",
        "static": "counts, averaged token vectors of an LLM",
        "transformer": "counts, a small transformer",
        "words, transformer": "counts, words and pairs, the transformer",
    }
    found = pd.DataFrame(saved("length_encoders")["encoders"]).T
    formats = {
        "within 25 %": ("within_25", "{:.1%}"),
        "MAE, tokens": ("mae_tokens", "{:.1f}"),
        "within the p50, p90": (None, ""),
        "pinball loss": ("relative_loss", "{:.2f}"),
    }
    texts = {head: found[name].map(form.format) for head, (name, form) in formats.items() if name is not None}
    texts["within the p50, p90"] = found.cover_50.map("{:.0%}, ".format) + found.cover_90.map("{:.0%}".format)
    return chosen(pd.DataFrame(texts)[list(formats)], names, "predicted from")


def _length_worth(traffic: str, targets: str, policies: list[str], column: str, form: str) -> pd.DataFrame:
    """Return a figure of runs by policy and by what the policy knows of lengths."""
    found = rows("length_worth", traffic=traffic, targets=targets)
    texts = found.assign(text=found[column].map(form.format)).pivot(index="policy", columns="lengths", values="text")
    heads = {"class": "distribution of the class", "predicted": "predicted", "known": "known"}
    return chosen(texts[list(heads)].rename(columns=heads), shown(policies), "policy")


@table("estimators.text_deadline")
def estimators_text_deadline() -> pd.DataFrame:
    """What lengths predicted from text are worth with one deadline."""
    return _length_worth("text", "deadline", ["sjf", "econo", "auto", "sa"], "in_time", "{:.1%}")


@whole_only("estimators.text_latency")
def estimators_text_latency() -> pd.DataFrame:
    """What lengths predicted from text are worth without targets."""
    return _length_worth("text", "none", ["sjf", "econo", "auto", "sa"], "latency_s", "{:.2f} s")


@whole_only("estimators.known_chats")
def estimators_known_chats() -> pd.DataFrame:
    """Where auto and econo lose with better known lengths."""
    figures = {
        "in_time": ("in time", "{:.1%}"),
        "latency_s": ("mean latency", "{:.2f} s"),
        "tokens_per_s": ("tokens/s", "{:,.0f}"),
        "requests_per_s_until_last_arrival": ("requests/s while they arrive", "{:.1f}"),
        "first_token_late_long": ("first token late: longest quarter", "{:.0%}"),
        "first_token_late_short": ("shortest quarter", "{:.0%}"),
    }
    found = rows("length_worth", traffic="chat", targets="default")
    found = found[found.policy.isin(["econo", "auto"])].set_index(["policy", "lengths"])
    order = [(policy, known) for policy in ("econo", "auto") for known in ("class", "predicted", "known")]
    found = found.loc[order]
    found.index = pd.Index([f"`{policy}`, {known}" for policy, known in found.index], name="policy, lengths")
    return pd.DataFrame({head: found[name].map(form.format) for name, (head, form) in figures.items()})


@table("gpu.live")
def gpu_live() -> pd.DataFrame:
    """Runs on an H100 beside their simulation."""
    figures = {
        "slo_attainment": ("in time: live, simulated", "{:.1%}"),
        "qoe_mean": ("QoE", "{:.3f}"),
        "output_throughput": ("tokens/s", "{:,.0f}"),
    }
    runs = rows("live_policies", "runs").set_index(["policy", "seed", "by"])
    texts = {}
    for figure, (head, spec) in figures.items():
        both = runs[figure].map(spec.format).unstack("by")
        texts[head] = both["live"] + ", " + both["h100-llama3-8b"]
    policies = shown(["stock", "auto", "edf" + BUDGET, "andes", "econo", "qlm", "sjf" + BUDGET])
    found = pd.DataFrame(texts).loc[list(policies)]
    return found.set_axis([f"{policies[policy]}, seed {seed}" for policy, seed in found.index]).rename_axis("run")


@table("auto.verdict")
def auto_verdict() -> pd.DataFrame:
    """One policy left on in all cells of the comparison."""
    heads = {
        "attainment, %": "requests in time, %",
        "behind the cell's best rival, points": "points behind the best other setting of each cell, chosen afterwards",
        "QoE": "QoE",
        "latency, x auto": "latency, x `auto`",
        "tokens/s, x stock": "tokens/s, x stock",
    }
    names = {"auto": "`auto`"}
    names["niyama+budget"] = "`niyama`*"
    for name in ("andes", "econo", "edf", "sjf"):
        names[f"{name}, its best size"] = f"`{name}`, each cell at its best step size"
    found = markdown_table("auto", "policy in all cells")[list(heads)].rename(columns=heads)
    return chosen(found, names | {"stock": "stock"}, "left on in all cells")


@table("auto.losses")
def auto_losses() -> pd.DataFrame:
    """The cells in which `auto` is furthest behind the best policy for the cell."""
    return markdown_table("auto", "cell", 2)


@table(
    "auto.judged",
    rows=["`auto`", "`niyama`*", "`andes`*", "`econo`*", "`sjf`*", "stock, 1,024 tokens", "stock"],
    columns=["one deadline", "all 24", "tokens/s, x stock"],
)
def auto_judged() -> pd.DataFrame:
    """Cells with new seeds: share in time, and QoE in brackets."""
    targets = {"readers": "readers", "mixed": "mixed", "default": "default classes", "deadline": "one deadline"}
    each, every = means("auto_judged", by=["targets", "policy"]), means("auto_judged")

    def texts(mean: pd.DataFrame) -> pd.Series:
        return mean.slo_attainment.map("{:.1%}".format) + mean.qoe_mean.map(" ({:.3f})".format)

    found = {head: texts(each.loc[name]) for name, head in targets.items()}
    found["one deadline"] = each.loc["deadline"].slo_attainment.map("{:.1%}".format)
    found |= {"all 24": texts(every), "tokens/s, x stock": every.tokens_over_stock.map("{:.3f}".format)}
    budgets = [policy + BUDGET for policy in ("niyama", "andes", "econo", "edf", "sjf")]
    names = shown(["auto", *budgets]) | {"stock@max_num_batched_tokens=1024": "stock, 1,024 tokens", "stock": "stock"}
    return chosen(pd.DataFrame(found), names, "policy")


def tail_ratios() -> pd.DataFrame:
    """Return the runs without targets as ratios of stock's."""
    return auto_tail.of_stock(saved("auto_tail")["rows"])


@table(
    "auto.tail",
    rows=["`auto`", "`auto:tail=0`", "`auto:tail=3`", "`sjf`*", "`econo`*", "`edf`*", "stock"],
    columns=["TTFT, mean", "p99", "longest", "ms a token", "quick"],
)
def auto_tail_policies() -> pd.DataFrame:
    """Requests without targets, by policy: geometric means over the cells in which all ran."""
    ratios = auto_tail.with_all_orders(tail_ratios())
    heads = auto_tail.FIGURES
    found = ratios.groupby("policy")[list(heads)].agg(gmean).rename(columns=heads).map("{:.2f}".format)
    found["quick"] = ratios.groupby("policy").quick.mean().map("{:.0%}".format)
    names = shown(["auto", "auto:tail=0", "auto:tail=0.75", "auto:tail=3", *auto_tail.RIVALS, "stock"])
    return chosen(found, names, "load 1.3")


@whole_only("auto.tail_loads")
def auto_tail_loads() -> pd.DataFrame:
    """Requests without targets, by load: the mean and the tail under `auto`, and the worst cell of each."""
    cell = ["load", "workload", "profile", "policy"]
    each = (
        tail_ratios()
        .query("queues")
        .groupby(cell, sort=False)[["ttft_mean_s", "ttft_p99_s", "normalized_ms"]]
        .mean()
        .unstack()
    )

    def kept(figure: str) -> pd.Series:
        return (1 - each[figure]["auto"]) / (1 - each[figure]["auto:tail=0"])

    columns = {
        "cells": each.ttft_mean_s.auto.groupby("load").size().map(str),
        "TTFT, mean": each.ttft_mean_s.auto.groupby("load").agg(gmean),
        "with `tail=0`": each.ttft_mean_s["auto:tail=0"].groupby("load").agg(gmean),
        "TTFT, p99": each.ttft_p99_s.auto.groupby("load").agg(gmean),
        "p99 with `tail=0`": each.ttft_p99_s["auto:tail=0"].groupby("load").agg(gmean),
        "worst p99": each.ttft_p99_s.auto.groupby("load").max(),
        "worst p99 with `tail=0`": each.ttft_p99_s["auto:tail=0"].groupby("load").max(),
        "least share of the gain kept, TTFT": kept("ttft_mean_s").groupby("load").min(),
        "ms a token": kept("normalized_ms").groupby("load").min(),
    }
    found = pd.DataFrame(columns)
    found = found.map(lambda value: value if isinstance(value, str) else f"{value:.2f}")
    return found.rename_axis("load")


@whole_only("auto.draft_loads")
def auto_draft_loads() -> pd.DataFrame:
    """The load at which 95 % keep their TPOT target, by acceptance, number of draft tokens and policy."""
    lines: dict[str, dict[str, str]] = {}
    for row in saved("draft_loads")["rows"]:
        policy, _, drafts = row["engine"].rpartition(", ")
        load, head = row["load_kept"], policy if policy == "stock" else f"`{policy}`"
        figure = f"{load:.2f}" if load else f"below {row['loads'][0]:g}"
        lines.setdefault(f"{row['acceptance']:g}, {drafts.removeprefix('up to ')}", {})[head] = figure
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("acceptance, drafts")


@table("deadlines.long_prompts")
def chats_beside_long_prompts() -> pd.DataFrame:
    """Chats and long prompts in time, at three loads."""
    return long_prompts.in_time()


@table(
    "tasks.react",
    rows=[
        "stock",
        "`fcfs`, swap",
        "`auto`",
        "`auto`, tasks",
        "`auto`, swap",
        "`auto`, tasks, swap",
        "`edf-split`*",
        "`plas`*",
        "`continuum`*",
        "`thunder-agent`*, 1 s",
        "`plas`*, swap",
        "`thunder-agent`*, 1 s, swap",
    ],
    columns=["load 1", "load 2", "mean s", "tokens/s, of stock's", "found, %"],
)
def tasks_react() -> pd.DataFrame:
    """Agents that call tools, on an engine with KV for a dozen of them."""
    return tasks.in_time("react")


@table(
    "tasks.coding",
    columns=["load 0.7", "load 1", "load 1.5", "mean s", "tokens/s, of stock's", "found, %"],
)
def tasks_coding() -> pd.DataFrame:
    """Coding agents with prompts of 195,000 tokens."""
    return tasks.in_time("coding")


@whole_only("tasks.chat")
def tasks_chat() -> pd.DataFrame:
    """Chats of many turns on a small KV cache; in time are calls, by their TTFT."""
    return tasks.in_time("chat")


@whole_only("tasks.map_reduce")
def tasks_map_reduce() -> pd.DataFrame:
    """Planners with bursts of sub-agents."""
    return tasks.in_time("map-reduce")


@table(
    "tasks.mooncake",
    rows=[
        "stock",
        "`fcfs`, swap",
        "`auto`",
        "`auto`, tasks",
        "`auto`, swap",
        "`auto`, tasks, swap",
        "`edf-split`*",
        "`plas`*",
        "`continuum`*",
        "`thunder-agent`*, 1 s",
    ],
    columns=["load 1", "load 1.5", "tokens/s, of stock's", "found, %"],
)
def tasks_mooncake() -> pd.DataFrame:
    """Conversations of a production trace; in time are calls, by TTFT and TPOT."""
    return tasks.in_time("mooncake")


@table(
    "tasks.burst",
    rows=[
        "stock",
        "`fcfs`, swap",
        "`auto`",
        "`auto`, tasks",
        "`auto`, tasks, swap",
        "`edf-split`*",
        "`thunder-agent`*",
    ],
    columns=["in time %", "longest wait for a first token, s", "the large task, s", "tokens/s"],
)
def tasks_burst() -> pd.DataFrame:
    """A burst of small tasks beside a large one."""
    return tasks.burst()


@table(
    "tenants.settings",
    columns=[
        "others: stock",
        "best fair queue",
        "`auto`",
        "with shares",
        "against alone, points",
        "tokens/s, of `auto`'s",
        "Jain's index",
    ],
)
def tenants_settings() -> pd.DataFrame:
    """Every setting of tenants at each load: what the others have when the first asks for more than its share."""
    return tenants.settings()


@table(
    "tenants.burst",
    rows=[f"{policy}, load 1.2" for policy in tenants.POLICIES.values()],
    columns=["the two others, % in time", "the one that bursts", "tokens/s"],
)
def tenants_burst() -> pd.DataFrame:
    """Three tenants of equal weight, of which one sends ten times as much for a minute."""
    return tenants.burst()


@table(
    "tenants.fleet",
    rows=["flood, 2", "flood, 8", "burst, 8", "heavy, 8"],
    columns=[*tenants.FLEET.values(), "tokens/s, of stock's", "error, bound, s"],
)
def tenants_fleet() -> pd.DataFrame:
    """Shares over a fleet beside shares in each engine, a gateway's order, and gateways with fair queues."""
    return tenants.fleet()


@table(
    "auto.held_out_deadlines",
    rows=["`auto`", "`niyama`*", "`econo`*", "`sjf`*", "stock"],
    columns=["in time, %", "less `auto`, points", "worst, best setting", "tokens/s, x stock", "least"],
)
def auto_held_out_deadlines() -> pd.DataFrame:
    """One deadline for all requests, on settings that were fixed before any run."""
    return held_out.by_policy("deadlines")


@whole_only("auto.held_out_settings")
def auto_held_out_settings() -> pd.DataFrame:
    """Mixes of traffic, models with several KV layouts, and short outputs on few slots."""
    return held_out.by_setting(list(held_out.GROUPS))


@table("auto.held_out")
def auto_held_out() -> pd.DataFrame:
    """The same by group: means, and the settings in which `auto` is worst."""
    return held_out.by_group()


@whole_only("auto.held_out_untargeted")
def auto_held_out_untargeted() -> pd.DataFrame:
    """Requests without targets: latencies as multiples of stock's."""
    return held_out.untargeted()


@table("auto.highest", columns=["stock", "`edf`", "`andes`", "`auto`", "`auto` over stock"])
def auto_highest() -> pd.DataFrame:
    """The highest load at which hardly any request is late, as a multiple of what stock completes."""
    names = {
        "azure-conv": "Azure's conversations, readers, scarce, H100",
        "azure-code": "Azure's code, mixed, ample, H100",
        "servegen-10h": "ServeGen 10h, mixed, scarce, 70B",
        "servegen-19h": "ServeGen 19h, readers, scarce, 70B",
        "sharegpt": "ShareGPT, mixed, scarce, OPT-13B",
        "reasoning": "long replies, readers, scarce, 70B",
    }
    policies = {"stock": "stock"} | {name + BUDGET: f"`{name}`" for name in ("edf", "andes", "econo", "niyama")}
    loads = means("highest_load", by=["workload", "policy"]).load.unstack()
    found = loads[[*policies, "auto"]].rename(columns=policies | {"auto": "`auto`"})
    return chosen(
        found.assign(**{"`auto` over stock": loads.auto / loads.stock}).map("{:.2f}".format),
        names,
        "workload, targets, KV, engine",
    )


@whole_only("auto.agents")
def auto_agents() -> pd.DataFrame:
    """Tasks of agents in time at each rate, and what their calls take at 0.16 tasks a second."""
    found = rows("agent_tasks").set_index(["rate", "policy"])
    at = found.loc[0.16]
    texts = {f"{rate} tasks/s": found.loc[rate].in_time.map("{:.0%}".format) for rate in (0.08, 0.12, 0.16, 0.2)}
    less, half = 100 * at.less_auto, 100 * at.less_auto_half_95
    texts["at 0.16, less `auto`, points"] = less.map("{:+.1f} ± ".format) + half.map("{:.1f}".format)
    seconds = at[["mean_s", "p50_s", "p99_s"]].map("{:,.0f}".format)
    texts["task mean, p50, p99, s"] = seconds.agg(", ".join, axis="columns")
    texts["call p99, s"] = at.call_p99_s.map("{:.0f}".format)
    texts["cache hits"] = at.hit_rate.map("{:.0%}".format)
    texts["prompt tokens computed, x needed"] = at.computed_over_needed.map("{:.1f}".format)
    texts["preemptions a call"] = at.preemptions_per_call.map("{:.2f}".format)
    texts["at 0.16, less `auto`, points"]["auto"] = ""
    names = {name: re.sub(r"^(?!stock|least)\w+", r"`\g<0>`", name) for name in at.index}
    return chosen(pd.DataFrame(texts).fillna("–"), names, "policy, stated")


@table(
    "fleet.tasks",
    columns=[
        "stock: tasks in time",
        "less `affinity: false`, points",
        "`auto`: tasks in time",
        "less `affinity: false`",
    ],
)
def fleet_tasks() -> pd.DataFrame:
    """Tasks of agents on two engines in time, by where their calls go, under stock's scheduler and under `auto`."""
    found = rows("task_affinity").set_index(["policy", "name"])
    texts = {}
    for policy, engines in (("stock", "stock"), ("auto", "`auto`")):
        of = found.loc[policy]
        added = (100 * of.less_off).map("{:+.1f} ± ".format) + (100 * of.less_off_half_95).map("{:.1f}".format)
        added["affinity off"] = ""
        texts[f"{engines}: tasks in time"] = of.in_time.map("{:.0%}".format)
        texts["less `affinity: false`, points" if policy == "stock" else "less `affinity: false`"] = added
        texts[f"{engines}: cache hits"] = of.hit_rate.map("{:.0%}".format)
        texts[f"{engines}: prompt tokens computed, x needed"] = of.computed_over_needed.map("{:.1f}".format)
    names = {
        "random": "to any engine",
        "least-loaded": "to the engine with the fewest requests",
        "affinity off": "as with `affinity: false`",
        "affinity": "as a gateway sends them",
        "caches known": "through a gateway that looks into the caches",
        "3 gateways, own prompts": "through three gateways that know their own requests alone",
        "3 gateways": "through three gateways",
    }
    return chosen(pd.DataFrame(texts), names, "calls go")


@whole_only("fleet.choices")
def fleet_choices() -> pd.DataFrame:
    """What a choice, a report, a plan and a view cost a gateway, by size of its fleet, before and now."""
    return gateways.choices()


@whole_only("fleet.polls")
def fleet_polls() -> pd.DataFrame:
    """What questions to agents cost a gateway, by their number."""
    return gateways.polls()


@whole_only("fleet.drawn")
def fleet_drawn() -> pd.DataFrame:
    """What a choice among drawn instances is worth."""
    return gateways.quality()


@table("swap.overload")
def swap_overload() -> pd.DataFrame:
    """What swap space adds to each policy under overload, with half of the 95 % interval."""
    found = rows("swap_overload", "over_all").set_index(["figure", "policy"])

    def texts(figure: str, spec: str, scale: float = 1) -> pd.Series:
        added, half = scale * found.loc[figure].added, scale * found.loc[figure].half_95
        return added.map(f"{{:+{spec}}} ± ".format) + half.map(f"{{:{spec}}}".format)

    frame = pd.DataFrame(
        {
            "in time, points": texts("slo_attainment", ".1f", 100),
            "QoE": texts("qoe_mean", ".3f"),
            "tokens/s": texts("output_throughput", ".0f"),
            "latency, ms a token": texts("normalized_latency_ms", ".1f"),
            "preemptions a request": found.loc["preemptions_per_request"].added.map("{:+.2f}".format),
        }
    )
    budgets = [policy + BUDGET for policy in ("econo", "andes", "edf", "qlm", "sjf")]
    return chosen(frame, shown(["auto", *budgets]), "policy")


@table("swap.grid", columns=["computed again", "by cost", "preemptions", "QoE"])
def swap_grid() -> pd.DataFrame:
    """What swapping is worth in the cells with the largest gains and losses."""
    cells = {
        ("azure-code-h100", "edf"): [0],
        ("azure-conv-h100", "edf"): [0, 1, 2],
        ("multiround-a100", "edf"): [0, 1, 2],
        ("multiround-h100", "andes"): [0],
        ("multiround-h100", "econo"): [0],
        ("multiround-h100", "edf"): [0],
        ("multiround-h100", "sjf"): [0],
    }
    runs = rows("swap-grid", engine="model").set_index("seed")
    found = {}
    for (cell, policy), seeds in cells.items():
        of_cell = runs[(runs.cell == cell) & runs.index.isin(seeds)]
        stock, own = of_cell[of_cell.policy == "stock"], of_cell[of_cell.policy == policy]
        again = own[own.how == "recompute"]
        cost = own[(own.how == "cost") & (own.pool == 1) & (own.link == 1)]
        found[f"{cell}, `{policy}`" + (", 3 seeds" if len(seeds) > 1 else "")] = {
            "computed again": f"{(again.output_throughput / stock.output_throughput).mean():.3f}",
            "by cost": f"{(cost.output_throughput / stock.output_throughput).mean():.3f}",
            "preemptions": f"{again.preemptions_per_request.mean():.2f} → {cost.preemptions_per_request.mean():.2f}",
            "QoE": f"{again.qoe_mean.mean():.3f} → {cost.qoe_mean.mean():.3f}",
            "KB moved per token": f"{cost.swap_bytes_per_output_token.mean() / 1000:.0f}",
        }
    return pd.DataFrame(found).T.rename_axis("workload, policy")


@table("qlm.many", columns=["latency-sensitive, 30 % of all"])
def qlm_many() -> pd.DataFrame:
    """Many models on few instances, by planner: share in time, and the difference from `on-demand`."""
    texts = {
        "latency-sensitive, 30 % of all": compared("fleet-qlm-rates", "interactive", to="on-demand"),
        "all": compared("fleet-qlm-rates", "in_time", to="on-demand"),
    }
    return chosen(pd.DataFrame(texts), FLEET, "in time, %")


@table("qlm.throughput")
def qlm_throughput() -> pd.DataFrame:
    """The rate at which 90 % are in time, and its ratio to `on-demand`'s."""
    cells = printed("fleet-qlm-throughput")
    found = pd.DataFrame({planner: cells[planner][1:] for planner in FLEET}, index=["10 % for tail models", "60 %"])
    return chosen(found.T, FLEET, "requests/s")


@whole_only("promises.coverage")
def promises_coverage() -> pd.DataFrame:
    """How often predictions of the product and its rivals are kept."""
    return promises.coverage()


@whole_only("promises.held_out")
def promises_held_out() -> pd.DataFrame:
    """The same with a seed that nothing was chosen on."""
    return promises.coverage("promises_held_out")


@whole_only("promises.widths")
def promises_widths() -> pd.DataFrame:
    """How wide predictions of the product and its rivals are."""
    return promises.widths()


@table(
    "promises.predictors",
    rows=[
        "TTFT, **the product**",
        "TTFT, one window of 128 ratios",
        "TPOT, **the product**",
        "TPOT, one window of 128 ratios",
        "e2e, **the product**",
        "e2e, one window of 128 ratios",
        "e2e, last 1,000 outcomes",
        "e2e, queue x mean service",
    ],
)
def promises_predictors() -> pd.DataFrame:
    """Coverage and width of the product's predictions and its rivals'."""
    return promises.predictors()


@whole_only("promises.parts")
def promises_parts() -> pd.DataFrame:
    """Windows of the product beyond the aims, by their place in the run."""
    return promises.by_part()


@table(
    "promises.kept",
    rows=[
        "1, edf, all ask",
        "1, edf, no promises",
        "1.5, auto, all ask",
        "1.5, auto, chats ask",
        "1.5, auto, no promises",
        "1.5, edf, all ask",
        "1.5, edf, no promises",
        "2, auto, all ask",
        "2, auto, no promises",
    ],
    columns=["promised: chats, batch", "broken", "in time: all, chats, batch"],
)
def promises_kept() -> pd.DataFrame:
    """What promises were given and broken."""
    return promises.kept()


@table(
    "promises.fleet",
    rows=[
        "60, qlm, chats ask",
        "60, qlm, no promises",
        "60, on-demand, no promises",
        "120, qlm, chats ask",
        "120, qlm, no promises",
        "120, on-demand, no promises",
    ],
    columns=["promised: chats, batch", "broken", "in time: all, chats, batch"],
)
def promises_fleet() -> pd.DataFrame:
    """Promises that a fleet in virtual time gives and keeps."""
    return promises.kept("promises_fleet")


@whole_only("promises.cpu")
def promises_cpu() -> pd.DataFrame:
    """What clients measured on vLLM's engine on a CPU."""
    return promises.on_cpu()


@whole_only("promises.leaving")
def promises_leaving() -> pd.DataFrame:
    """Coverage where a fifth of the clients leave."""
    return promises.leaving()
