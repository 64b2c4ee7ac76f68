"""Advice as text: what was found, for a person to read; the settings, for ``--slo-config``; and vLLM's flags."""

import textwrap
from collections.abc import Iterator

import yaml

from sloserve.core.slo import DEFAULT_CLASSES, ClassTable
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.admissions import NONE, limit_queue, parse_admission
from sloserve.sim.advise import Advice, Found, RunComparison, is_general
from sloserve.sim.run_name import STOCK, RunName
from sloserve.sim.tuning import Score, ranked

WIDTH = 110
COMMAND = "  sloserve serve"
SHOWN = 8
"""The number of best runs of the search that are listed."""


def tried_lines(found: Found) -> list[str]:
    """Return the lines on the best runs that were tried, and stock."""
    tried = found.tried
    order = ranked(tried, STOCK)
    names = list(dict.fromkeys([*order[:SHOWN], *([STOCK] if STOCK in tried else [])]))
    width = max(map(len, names), default=0)
    lines = [f"  {name:<{width}}  {_figures(tried[name])}" for name in names]
    limit = f"; {found.untried} more would exceed --budget" if found.untried else ""
    return [f"best of {len(tried)} tried on the earlier part{limit}:", *lines]


def tie_lines(advice: Advice) -> list[str]:
    """Return what else would do as well, and why to choose which; empty where the advice has no equal."""
    tie = advice.tie
    if tie is None:
        return []
    simpler, general = (tie.reference, tie.name) if is_general(tie.name) else (tie.name, tie.reference)
    return [
        f"a tie: {_compared(tie)}",
        f"{simpler} has fewer parts to understand; {general} holds where the mix of requests changes",
    ]


def judged_lines(judged: RunComparison) -> list[str]:
    """Return the lines on one comparison on the later part, and on vLLM's scheduler."""
    lines = [_compared(judged)]
    if judged.real is not None:
        mine, theirs = judged.real
        lines.append(
            f"confirmed on vLLM's scheduler, one run each: {mine.mean_attainment:.1%} and {theirs.mean_attainment:.1%} "
            f"(the model's first run: {judged.score.attainment[0]:.1%} and {judged.reference_score.attainment[0]:.1%})"
        )
    if not judged.is_better:
        if judged.covers_zero:
            lines.append("no difference: the interval covers 0")
        else:
            below = judged.difference.value < 0.0
            lines.append("below it" if below else "not confirmed: below it on vLLM's scheduler")
    return lines


def headline(advice: Advice) -> str:
    """Return the advice in a sentence."""
    if advice.name == STOCK:
        return "advice: vLLM's own scheduler at the flags as they are; nothing that was tried is certainly better"
    if RunName.parse(advice.name).policy == STOCK:
        return f"advice: vLLM's own scheduler with other flags, {advice.name}"
    return f"advice: {advice.name}"


def vllm_flags(name: str, settings: EngineSettings) -> list[str]:
    """Return vLLM's flags of a run.

    The two flags that were chosen are always named: vLLM's own defaults depend on the GPU.
    """
    run = RunName.parse(name)
    engine = run.engine_settings(settings)
    values = {
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        **run.engine,
    }
    caps = limit_queue(settings, run.admission)
    values |= {
        cap: value
        for cap in ("max_num_queued_reqs", "max_num_queued_tokens")
        if (value := getattr(caps, cap)) is not None
    }
    return [f"--{flag.replace('_', '-')} {value}" for flag, value in values.items()]


def settings_yaml(advice: Advice, classes: ClassTable, settings: EngineSettings, subject: str) -> str:
    """Return a commented file for ``sloserve serve --slo-config``.

    ``subject`` says in a line what the advice is about.
    """
    run = RunName.parse(advice.name)
    flags = " ".join(vllm_flags(advice.name, settings))
    comments = [
        f"Advice of `sloserve advise` for {subject}.",
        "Use it with:",
        f"{COMMAND} MODEL --slo-config THIS_FILE {flags}",
        "",
        *(line for judged in advice.judged for line in judged_lines(judged)),
        *tie_lines(advice),
        headline(advice),
        *_kept_lines(classes),
    ]
    section: dict[str, object] = {"policy": "fcfs" if run.policy == STOCK else run.policy}
    admission = parse_admission(run.admission)[0]
    if run.admission != NONE and admission.mode != "none":
        section["admission"] = admission.model_dump(exclude_defaults=True)
    section |= {"classes": _class_changes(classes), "default_class": classes.default.name}
    return "".join(_commented(comments)) + yaml.safe_dump(section, sort_keys=False, width=WIDTH)


def _class_changes(classes: ClassTable) -> dict[str, dict[str, object]]:
    """Return what a server's settings state of ``classes``, beside which it keeps its other built-in classes.

    Ranks are left out where the built-in ranks put the classes into the same order.
    """
    built_in = [name for name in DEFAULT_CLASSES.names if name in classes]
    is_usual = built_in == list(classes.names) and len({c.rank for c in classes}) == len(built_in)
    left_out = {"rank"} if is_usual else set()
    return {c.name: {key: x for key, x in c.as_config().items() if key not in left_out} for c in classes}


def _kept_lines(classes: ClassTable) -> list[str]:
    """Return the comment on the built-in classes that the server has beside ``classes``."""
    kept = [f"{c.name} (rank {c.rank})" for c in DEFAULT_CLASSES if c.name not in classes]
    return [f"The server keeps its built-in classes beside those below: {', '.join(kept)}."] if kept else []


def _commented(lines: list[str]) -> Iterator[str]:
    for line in lines:
        parts = [line] if line.startswith(COMMAND) else textwrap.wrap(line, WIDTH, break_on_hyphens=False) or [""]
        yield from (f"# {part}".rstrip() + "\n" for part in parts)


def _compared(judged: RunComparison) -> str:
    difference, interval = judged.difference, ""
    if difference.low is not None and difference.high is not None:
        interval = f" (95 % interval {_points(difference.low)} to {_points(difference.high)})"
    tokens = judged.score.mean_throughput / max(judged.reference_score.mean_throughput, 1e-9) - 1.0
    return (
        f"{judged.name}: {judged.score.mean_attainment:.1%} in time, {judged.reference}: "
        f"{judged.reference_score.mean_attainment:.1%}; {_points(difference.value)} points{interval}, "
        f"tokens/s {tokens:+.1%}"
    )


def _figures(score: Score) -> str:
    return f"{score.mean_attainment:6.1%} in time  {score.mean_throughput:7.0f} tokens/s"


def _points(share: float) -> str:
    return f"{100.0 * share:+.1f}"
