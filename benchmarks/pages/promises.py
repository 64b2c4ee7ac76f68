"""Tables of predicted latencies: how often they are kept, in windows of requests, and how wide they are."""

from typing import Any

import numpy as np
import pandas as pd

from benchmarks.pages.results import saved
from benchmarks.promises.shocks import PARTS
from sloserve.core.predicted import LEVELS, PREDICTED

NAMES = {
    "product": "**the product**",
    "former": "one window of 128 ratios",
    "last 1,000 outcomes": "last 1,000 outcomes",
    "queue x service": "queue x mean service",
}
FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}
NEAR = {0.5: 0.03, 0.9: 0.02, 0.99: 0.007}
"""Aim: how far the coverage of a window may be from the level."""
ASKING = {"none": "no promises", "chat": "chats ask", "all": "all ask"}


def coverage(name: str = "promises") -> pd.DataFrame:
    """Return by figure and predictor how far the coverage is from the level, and how many windows miss the aim.

    Args:
        name: Name of the file of results.
    """
    lines = {}
    for figure in PREDICTED:
        for predictor, shown in NAMES.items():
            levels = {level: _of(predictor, figure, level, name) for level in LEVELS}
            if not all(levels.values()):
                continue
            off = [f"{100.0 * (_kept(found) - level):+.2f}" for level, found in levels.items()]
            beyond = [_beyond(found, level) for level, found in levels.items()]
            worst = [f"{100.0 * _off(found, level)[1]:.1f}" for level, found in levels.items()]
            lines[f"{FIGURES[figure]}, {shown}"] = {
                "coverage off by, p50, p90, p99": ", ".join(off),
                "windows beyond the aim": ", ".join(str(count) for count, _ in beyond),
                "of": str(beyond[0][1]),
                "points off, 95th percentile of windows": ", ".join(worst),
            }
    return _table(lines)


def widths() -> pd.DataFrame:
    """Return by figure and predictor how wide the quantiles are, and their pinball losses."""
    lines = {}
    for figure in PREDICTED:
        for predictor, name in NAMES.items():
            levels = {level: _of(predictor, figure, level) for level in LEVELS}
            if not all(levels.values()):
                continue
            means = {key: [_mean(levels[level], key) for level in LEVELS] for key in ("mean_s", "pinball_s")}
            ratios = [_mean(levels[level], "over_median") for level in LEVELS[1:]]
            lines[f"{FIGURES[figure]}, {name}"] = {
                "mean of p50, p90, p99 in s": ", ".join(f"{value:.3g}" for value in means["mean_s"]),
                "p90, p99 over p50": ", ".join(f"{value:.3g}" for value in ratios),
                "pinball loss in ms": ", ".join(
                    f"{1e3 * value:{',.0f' if value >= 0.1 else '.3g'}}" for value in means["pinball_s"]
                ),
            }
    return _table(lines)


def predictors() -> pd.DataFrame:
    """Return by figure and predictor the coverage, also with the held-out seed, and the width of the quantiles."""
    kept_first, kept_held_out, wide = coverage(), coverage("promises_held_out"), widths()
    off = "coverage off by, p50, p90, p99"
    windows = int(kept_first["of"].iloc[0])
    shown = {
        "points off, p50, p90, p99": kept_first[off],
        "with the held-out seed": kept_held_out[off],
        f"windows of {windows} beyond the aim": kept_first["windows beyond the aim"],
        "mean of p50, p90, p99 in s": wide["mean of p50, p90, p99 in s"],
        "pinball loss in ms": wide["pinball loss in ms"],
    }
    return pd.DataFrame(shown).loc[kept_first.index].rename_axis("figure, predictor")


def by_part() -> pd.DataFrame:
    """Return how many windows of the product are beyond the aims, by their place in the run."""
    lines = {}
    per_part = len(_of("product", "e2e", LEVELS[0])[0]["judged"]) // len(PARTS)
    for part, name in enumerate(PARTS):
        first = part * per_part
        for place, windows in (("first window", [first]), ("later", list(range(first + 1, first + per_part)))):
            line = {}
            for figure in PREDICTED:
                counts = []
                for level in LEVELS:
                    each = np.array([_window_coverage(row)[windows] for row in _of("product", figure, level)])
                    counts.append(str(int(np.sum(np.abs(each - level) > NEAR[level]))))
                line[FIGURES[figure]] = ", ".join(counts)
            lines[f"{name}, {place}"] = {"windows": str(each.size), **line}
    return _table(lines, "windows beyond the aim: p50, p90, p99")


def leaving() -> pd.DataFrame:
    """Return the coverage among clients that stay, where a fifth of the clients leave at random times."""
    lines: dict[str, dict[str, str]] = {}
    for row in saved("promises")["leaving"]:
        line = lines.setdefault(FIGURES[row["figure"]], {})
        line[f"p{100 * row['level']:g}"] = f"{100.0 * (_kept([row]) - row['level']):+.2f}"
    return _table(lines, "points off among clients that stay")


def kept(name: str = "promises_kept") -> pd.DataFrame:
    """Return by load, policy and who asks what promises were given and broken, and the share of requests in time.

    Args:
        name: Name of the file of results.
    """
    runs: dict[tuple[float, str, str], list[dict[str, Any]]] = {}
    for row in saved(name)["runs"]:
        runs.setdefault((row["load"], row["policy"], row["asks"]), []).append(row)
    lines = {}
    for (load, policy, asks), found in sorted(runs.items()):
        classes = [one for row in found for one in (row["chat"], row["batch"])]
        given, broken = sum(one["given"] for one in classes), sum(one["broken"] for one in classes)
        shares = [_share(found, name, "given") for name in ("chat", "batch")]
        lines[f"{load:g}, {policy}, {ASKING[asks]}"] = {
            "promised: chats, batch": "" if asks == "none" else ", ".join(f"{100 * share:.0f} %" for share in shares),
            "broken": "" if not given else f"{broken} of {given:,}",
            "in time: all, chats, batch": ", ".join(
                f"{100 * share:.1f} %"
                for share in (
                    float(np.mean([row["good"] for row in found])),
                    _share(found, "chat", "good"),
                    _share(found, "batch", "good"),
                )
            ),
            "tokens/s": f"{np.mean([row['tokens_per_s'] for row in found]):,.0f}",
        }
    return _table(lines, "load, policy, who asks")


def on_cpu() -> pd.DataFrame:
    """Return the coverage and the promises that clients of vLLM's engine on a CPU measured."""
    lines = {}
    for row in saved("promises_cpu")["runs"]:
        asks = "promises" if row["promises"] else "no promises"
        cover = row["coverage"]
        lines[f"{row['load']:g}, {row['policy']}, {asks}"] = {
            FIGURES[figure] + " within p50, p90, p99": ", ".join(
                f"{100 * cover[f'{figure} p{100 * level:g}']:.1f} %" for level in LEVELS
            )
            for figure in ("ttft", "e2e")
        } | {
            "given": f"{row['given']} of {row['asked']}" if row["promises"] else "",
            "broken": str(row["broken"]) if row["promises"] else "",
            "in time": f"{100 * row['in_time']:.1f} %",
        }
    return _table(lines, "load, policy, promises")


def _share(runs: list[dict[str, Any]], name: str, what: str) -> float:
    return sum(row[name][what] for row in runs) / max(sum(row[name]["requests"] for row in runs), 1)


def _of(predictor: str, figure: str, level: float, name: str = "promises") -> list[dict[str, Any]]:
    wanted = (predictor, figure, level)
    return [row for row in saved(name)["rows"] if (row["predictor"], row["figure"], row["level"]) == wanted]


def _kept(found: list[dict[str, Any]]) -> float:
    return 1.0 - sum(sum(row["missed"]) for row in found) / sum(sum(row["judged"]) for row in found)


def _mean(found: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in found]))


def _window_coverage(row: dict[str, Any]) -> Any:
    return 1.0 - np.array(row["missed"]) / np.array(row["judged"])


def _off(found: list[dict[str, Any]], level: float) -> tuple[Any, float]:
    """Return how far each window is from the level, and the 95th percentile of that."""
    off = np.abs(np.concatenate([_window_coverage(row) for row in found]) - level)
    return off, float(np.quantile(off, 0.95))


def _beyond(found: list[dict[str, Any]], level: float) -> tuple[int, int]:
    off, _ = _off(found, level)
    return int(np.sum(off > NEAR[level])), off.size


def _table(lines: dict[str, dict[str, str]], head: str = "figure, predictor") -> pd.DataFrame:
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis(head)
