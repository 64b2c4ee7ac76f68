"""How often are predicted latencies kept, in each window of 2,000 requests, while load, mix, policy and engine change?

Usage: python -m benchmarks.promises.coverage [--seeds 3] [--first-seed 0] [--requests 30000] [--runs FOLDER] [--plot]

Runs of shocks.py under three policies. The engine runs once for each, which takes minutes; what its front end saw is
kept in the folder of ``--runs``, and the product's admission and its rivals then predict from the same events. No
request is refused, so that the engine does not depend on what is predicted. Once more, a fifth of the clients leave at
random times.

Writes results/promises.json.gz: by run, predictor, figure and level how many requests of each window were judged and
how many took longer than predicted, the mean quantile in seconds and relative to the median, and the pinball loss.
``--plot`` runs nothing, and draws the windows of that file as promises.png beside it.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.promises.former import FormerPredictor
from benchmarks.promises.rival import Arrival, LastOutcomes, Product, QueueTimesService, Rival
from benchmarks.promises.shocks import ARRIVES, ENDS, PARTS, STARTS, THEN, Recorded, capacity_of, requests, served
from benchmarks.publish import RESULTS, read_json, write_result
from sloserve.core.arrays import FloatArray
from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS, PREDICTED
from sloserve.core.slo import SLO
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 3
REQUESTS = 30_000
WINDOW = 2_000
PROFILE, KV_BLOCKS = "h100-llama3-8b", 12_000
POLICIES = tuple(sorted(THEN))
LEAVING, STAYS_S = 0.2, 8.0
"""Share of clients that leave before the end, and the mean of the exponential time after which they do."""
PREDICTORS: dict[str, Callable[[tuple[str, ...]], Rival]] = {
    "product": Product,
    "former": FormerPredictor,
    "last 1,000 outcomes": LastOutcomes,
    "queue x service": QueueTimesService,
}


def predict(run: Recorded, predictor: Callable[[tuple[str, ...]], Rival]) -> tuple[FloatArray, float]:
    """Return the quantiles of requests, ``[requests, figures, levels]``, and microseconds of CPU time a request."""
    table = DEFAULT_ASSIGNMENT.table
    slos = [SLO(table[name], table[name].targets) for name in table.names]
    rival, found = predictor(tuple(table.names)), np.full((len(run.class_id), len(PREDICTED), len(LEVELS)), np.nan)
    limit = EngineSettings(kv_blocks=KV_BLOCKS).max_model_len
    classes, prompts, outputs = (of.tolist() for of in (run.class_id, run.prompt_tokens, run.output_tokens))
    latencies = run.latency_s.tolist()
    began = time.process_time()
    for (kind, i), now_s in zip(run.event.tolist(), run.at_s.tolist(), strict=True):
        if kind == ARRIVES:
            new = Arrival(i, classes[i], slos[classes[i]], now_s, prompts[i], limit - prompts[i])
            found[i] = rival.arrives(new, now_s)
        elif kind == STARTS:
            rival.starts(i, now_s)
        else:
            ttft_s, tpot_s, e2e_s = latencies[i]
            latency = None if math.isnan(e2e_s) else Latency(ttft_s, 0.0 if math.isnan(tpot_s) else tpot_s, e2e_s)
            rival.ends(i, latency, outputs[i], now_s)
    return found, 1e6 * (time.process_time() - began) / len(classes)


def judged(found: FloatArray, actual_s: FloatArray, window: int = WINDOW) -> list[dict[str, Any]]:
    """Return the figures of each figure and level.

    Args:
        found: Quantiles, ``[requests, figures, levels]``.
        actual_s: What came of them, ``[requests, figures]``; not a number where that is not known.
        window: Requests of a window, in order of arrival.
    """
    rows = []
    for i, name in enumerate(PREDICTED):
        actual = actual_s[:, i]
        for j, level in enumerate(LEVELS):
            quantile = found[:, i, j]
            known = ~np.isnan(quantile) & ~np.isnan(actual)
            if not known.any():
                continue
            above = known & (actual > quantile)
            short = np.where(above, level * (actual - quantile), (1.0 - level) * (quantile - actual))
            starts = np.arange(0, len(actual), window)
            rows.append(
                {
                    "figure": name,
                    "level": level,
                    "judged": np.add.reduceat(known.astype(int), starts).tolist(),
                    "missed": np.add.reduceat(above.astype(int), starts).tolist(),
                    "mean_s": float(quantile[known].mean()),
                    "over_median": float((quantile[known] / found[known, i, 0]).mean()),
                    "pinball_s": float(short[known].mean()),
                }
            )
    return rows


def recorded(policy: str, seed: int, count: int, folder: Path, *, leaving: bool = False) -> tuple[Recorded, Any]:
    """Return a run, and which of its clients leave; it is served unless ``folder`` has it."""
    leaves = stream(seed, "promises/leaves").random(count) < LEAVING if leaving else np.zeros(count, bool)
    path = folder / f"{policy}-{seed}{'-leaving' if leaving else ''}.npz"
    if not path.exists():
        profile, settings = load_profile(PROFILE), EngineSettings(kv_blocks=KV_BLOCKS)
        made, shocks = requests(count, seed, capacity_of(profile, settings, seed))
        after_s = stream(seed, "promises/stays").exponential(STAYS_S, count)
        left = {r.request_id: r.arrival_s + float(after_s[i]) for i, r in enumerate(made) if leaves[i]}
        folder.mkdir(parents=True, exist_ok=True)
        served(profile, settings, made, shocks, policy, seed, left).save(path)
    return Recorded.load(path), leaves


def in_flight_at_shocks(run: Recorded) -> list[int]:
    """Return how many requests were in flight when each part of the run but the first began."""
    change = np.where(run.event[:, 0] == ARRIVES, 1, np.where(run.event[:, 0] == ENDS, -1, 0))
    in_flight = np.concatenate([[0], np.cumsum(change)])
    return [int(count) for count in in_flight[np.searchsorted(run.at_s, run.at_s[0] + run.starts_s[1:])]]


def rows_of(run: Recorded, **labels: Any) -> list[dict[str, Any]]:
    """Return the rows of every predictor."""
    rows = []
    for name, predictor in PREDICTORS.items():
        found, us = predict(run, predictor)
        rows += [{**labels, "predictor": name, **row} for row in judged(found, run.latency_s)]
        print(json.dumps({**labels, "predictor": name, "us": us}), flush=True)
    return rows


def abandonment(run: Recorded, leaves: Any) -> list[dict[str, Any]]:
    """Return the product's rows of the clients that stay, which are a fair sample, where others leave."""
    found, _ = predict(run, Product)
    actual_s = np.where(leaves[:, None], np.nan, run.latency_s)
    return [{"predictor": "product", **row} for row in judged(found, actual_s)]


def drawn(rows: list[dict[str, Any]]) -> "Figure":
    """Return a figure of the coverage of e2e in each window: the mean of all runs, and the range of them."""
    from matplotlib.figure import Figure  # matplotlib: only where it is drawn

    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    each = figure.subplots(len(LEVELS), 1, sharex=True)
    for axes, level, off in zip(each, LEVELS, (0.03, 0.02, 0.007), strict=True):
        axes.axhspan(level - off, level + off, alpha=0.15, color="gray", label="aim")
        for name, color in (("former", "tab:orange"), ("product", "tab:blue")):
            of = [r for r in rows if (r["predictor"], r["figure"], r["level"]) == (name, "e2e", level)]
            kept = np.array([1.0 - np.array(r["missed"]) / np.array(r["judged"]) for r in of])
            at = (np.arange(kept.shape[1]) + 0.5) * WINDOW
            axes.fill_between(at, kept.min(axis=0), kept.max(axis=0), alpha=0.2, color=color)
            axes.plot(at, kept.mean(axis=0), color=color, label=name)
        for k in range(1, len(PARTS)):
            axes.axvline(k * REQUESTS / len(PARTS), color="black", linewidth=0.6, linestyle=":")
        axes.set_ylabel(f"p{100 * level:g} kept")
    each[0].legend(ncols=3, loc="lower left")
    each[-1].set_xlabel("requests in order of arrival; dotted: load, mix, policy, engine change")
    return figure


def about(found: dict[str, Any]) -> str:
    """Return the caption of the picture."""
    runs = {(r["policy"], r["seed"]) for r in found["rows"]}
    return (
        f"promises: e2e latency, mean and range of {len(runs)} runs of {found['requests']} requests in windows of "
        f"{found['window']}, {PROFILE}, {KV_BLOCKS} KV blocks; commit {found['commit']}, sloserve {found['sloserve']}"
    )


def main() -> None:
    out = RESULTS / "promises.json.gz"
    parser = parser_for(
        __doc__, seeds=SEEDS, first_seed=0, requests=REQUESTS, runs=Path("promises_runs"), out=out, plot=False
    )
    given = parser.parse_args()
    if given.plot:
        from sloserve.sim.report.figure_style import styled, write_figure

        with styled():
            found = read_json(given.out)
            write_figure(drawn(found["rows"]), given.out.with_name("promises.png"), about(found))
        return
    rows, in_flight = [], []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for policy in POLICIES:
            run, _ = recorded(policy, seed, given.requests, given.runs)
            rows += rows_of(run, policy=policy, seed=seed)
            in_flight.append({"policy": policy, "seed": seed, "in_flight": in_flight_at_shocks(run)})
    left = abandonment(*recorded("fcfs", given.first_seed, given.requests, given.runs, leaving=True))
    figures = {"window": WINDOW, "requests": given.requests, "shocks": in_flight, "rows": rows, "leaving": left}
    write_result(given.out, figures)


if __name__ == "__main__":
    main()
