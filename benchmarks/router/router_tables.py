"""Tables of ``gain.py``: mean quality by rate, shares of the largest model, windows of 20, and the bars."""

from collections.abc import Mapping, Sequence
from typing import Any

from sloserve.fleet.router.evaluation import THRESHOLDS

Row = dict[str, Any]


def table(rates: Mapping[str, Sequence[float]], found: list[Row], engines: list[Row]) -> str:
    """rates: that were judged, by system."""
    lines = []
    for name in dict.fromkeys(run["system"] for run in found):
        of = [run for run in found if run["system"] == name]
        if not of:
            continue
        names = list(dict.fromkeys(run["rule"] for run in of))
        for key in ("reward", "weighted") if name in ("network", "priority") else ("reward",):
            heads = "".join(f"{rate:>7g}" for rate in rates[name]) + f"{'counted':>9}{'timed':>7}"
            lines.append(f"{name}: {key}, by requests/s; unpredictable arrivals\n{'':26}{heads}")
            for rule in names:
                row = [run[key] for run in of if run["rule"] == rule]
                lines.append(f"{rule:26}" + "".join(f"{x:7.3f}" for x in row[:-2]) + f"{row[-2]:9.3f}{row[-1]:7.3f}")
        for rule in ("greedy", "dqn 0"):
            for task in ("", *(key for key in of[0] if key.startswith("large_"))):
                row = [run[task or "large"] for run in of if run["rule"] == rule and run["arrivals"] == "stable"]
                if row:
                    what = f"{rule}, {task.removeprefix('large_') or 'all'}"
                    lines.append(f"  to largest: {what:28}" + "".join(f"{x:7.2f}" for x in row))
        lines.append(
            "windows of 20 under counted arrivals, % with at least " + ", ".join(f"{t:.2f}" for t in THRESHOLDS)
        )
        for run in of:
            if run["arrivals"] == "counted":
                lines.append(f"{run['rule']:26}" + "".join(f"{100 * run[f'windows_{t:g}']:7.1f}" for t in THRESHOLDS))
        lines.append("")
    lines += [*bars(found), ""]
    lines.append("the same requests through the engine model, replicas on devices of their own")
    lines.append(f"{'system':9}{'rule':14}{'arrivals':10}{'rate':>6}{'reward':>8}{'engines':>9}{'bias':>8}{'error':>8}")
    for run in engines:
        lines.append(
            f"{run['system']:9}{run['rule']:14}{run['arrivals']:10}{run['rate']:>6}{run['reward']:8.3f}"
            f"{run['engine_reward']:9.3f}{run['latency_bias']:8.1%}{run['latency_error']:8.1%}"
        )
    return "\n".join(lines) + "\n"


TOLERANCE = 0.03
"""How far a policy's mean quality may lie below that of the best single model."""
BURSTS = {"network": 0.0}
"""Mean quality required above the best single model where rates change: the paper's Table 4, which its policy lost."""
TEN_TIMES = ("paper", "opt")
"""Systems where more than ten times the largest model's rate is to be served."""
LEAST = {"paper": ((0.25, 2.0, 0.95), (4.0, 20.0, 0.89))}
"""From this rate to that one so much mean quality in time, with the constants of the notes."""


def bars(found: list[Row]) -> list[str]:
    """What is promised of masked policies and of greedy, and whether it holds: the worst figure of each."""
    lines = ["bars (the worst rate; x: missed)"]
    for name in dict.fromkeys(run["system"] for run in found):
        rewards = _rewards(found, name)
        alone = [rewards[model] for model in rewards if model.startswith("opt-")]
        for rule in rewards:
            if rule != "greedy" and not rule.startswith("dqn") or not alone:
                continue
            mine = rewards[rule]
            over = {at: mine[at] - max(one[at] for one in alone) for at in mine}
            steady = min((x, f"at {at:g}") for at, x in over.items() if isinstance(at, float))
            told = [_bar(f"best single {steady[0]:+.3f} {steady[1]}", steady[0] >= -TOLERANCE)]
            bursts = BURSTS.get(name, -TOLERANCE)
            told += [_bar(f"{at} {over[at]:+.3f}", over[at] >= bursts) for at in ("counted", "timed")]
            for low, high, least in LEAST.get(name, ()):
                worst = min(x for at, x in mine.items() if isinstance(at, float) and low <= at <= high)
                told.append(_bar(f"{low:g} to {high:g}/s {worst:.3f} of {least:.2f}", worst >= least))
            for quality in (0.9, 0.8) if name in TEN_TIMES else ():
                largest = reaches(alone[-1], quality)
                times = reaches(mine, quality) / largest if largest else float("inf")
                told.append(_bar(f"{quality:g} is kept to {times:.1f} times the largest's rate", times > 10.0))
            lines.append(f"  {name + ', ' + rule:18}" + "; ".join(told))
    return lines


def reaches(reward: Mapping[Any, float], quality: float) -> float:
    """Greatest rate to which the mean quality is at least this, between judged rates by logarithms; 0: nowhere."""
    rates = [at for at in reward if isinstance(at, float)]
    if reward[rates[0]] < quality:
        return 0.0
    for before, after in zip(rates, rates[1:], strict=False):
        if reward[after] < quality:
            part = (reward[before] - quality) / (reward[before] - reward[after])
            return float(before * (after / before) ** part)
    return rates[-1]


def _rewards(found: list[Row], name: str) -> dict[str, dict[Any, float]]:
    """Returns the rewards of each rule, by rate or arrival process."""
    rewards: dict[str, dict[Any, float]] = {}
    for run in found:
        if run["system"] == name:
            rewards.setdefault(run["rule"], {})[run["rate"] or run["arrivals"]] = run["reward"]
    return rewards


def _bar(text: str, holds: bool) -> str:
    return text if holds else f"x {text}"
