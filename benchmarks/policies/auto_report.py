"""`auto` beside its rivals over the cells of auto_cells.py: what it wins, what it loses, and which aims it misses.

The rival of a cell is what is best on the earlier half: by attainment; of those within half a point by tokens per
second; of those within 1 % by latency per token. Without targets latency alone decides. Differences are of pairs of
seeds on the later half, auto less rival, with their 95 % interval. A rival dominates auto in a cell where it is better
by more than the interval in attainment, QoE, latency or tokens per second, and its mean is not worse in any of them.

    python -m benchmarks.policies.auto_report --raw raw.csv [--out results/auto]

Writes runs.csv.gz, the runs of ``--raw`` to four digits, and table.txt. Without ``--raw`` table.txt is made again from
runs.csv.gz.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import (
    AUTO,
    AUTOS,
    COLUMNS,
    POLICIES,
    STOCK,
    AutoCell,
    Row,
    budget_of,
    read_cells,
    rival_of,
)
from benchmarks.policies.step_sizes import FIGURES
from benchmarks.publish import RESULTS, RUNS, markdown, read_rows, write_rows, write_table
from sloserve.sim.report.statistics import Mean, mean_interval

ATTAINMENT, QOE, LATENCY, TOKENS, PREEMPTIONS = FIGURES
UNITS = {ATTAINMENT: 100.0, QOE: 1.0, LATENCY: 100.0, TOKENS: 100.0, PREEMPTIONS: 1.0}
"""Differences are shown in points, QoE, and % of the rival's."""
NAMES = {ATTAINMENT: "points", QOE: "QoE", LATENCY: "% of latency", TOKENS: "% of tokens/s"}
RELATIVE, LESS_IS_BETTER = (LATENCY, TOKENS), (LATENCY, PREEMPTIONS)
NON_INFERIOR, LEAST_TOKENS, MOST_PREEMPTIONS = -1.0, 0.97, 0.3
PUBLISHED = [name for name in COLUMNS if name != "rps"]

Runs = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Figures by policy, then seed, of one cell; nan where there is none."""


def rounded(text: str) -> str:
    """The figure to four digits."""
    return f"{float(text):.4g}" if text else text


def published(rows: Iterable[Row]) -> list[Row]:
    """The rows as they are published: in one order, with rounded figures."""
    key = lambda row: (int(row["cell"]), row["half"], row["policy"], int(row["seed"]))  # noqa: E731
    return [row | {name: rounded(row[name]) for name in FIGURES} for row in sorted(rows, key=key)]


def runs_of(rows: Iterable[Row], cell: int) -> Runs:
    """What the later half of the cell says."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        if int(row["cell"]) == cell and row["half"] == "later":
            figures = {name: float(row[name] or "nan") for name in FIGURES}
            found.setdefault(row["policy"], {})[int(row["seed"])] = figures
    return found


def sized(runs: Runs, policy: str) -> str:
    """The policy at the size of a step that is best on the earlier half, and so was run on the later."""
    names = [name for name in runs if name.partition("@")[0] == policy]
    return max(names, key=lambda name: "@" in name)


def pairs(runs: Runs, ours: str, theirs: str, figure: str) -> list[float]:
    """Differences by seed, in the units of the tables; none where the figure is not defined."""
    found = []
    for seed in sorted(runs.get(ours, {}).keys() & runs.get(theirs, {}).keys()):
        a, b = runs[ours][seed][figure], runs[theirs][seed][figure]
        found.append(UNITS[figure] * ((a / b - 1.0) if figure in RELATIVE else a - b))
    return [value for value in found if not np.isnan(value)]


def better(difference: Mean | None, figure: str) -> int:
    """1 where the first is better by more than the interval, -1 where the second is, else 0."""
    if difference is None or difference.low is None or difference.high is None:
        return 0
    sign = (difference.low > 0) - (difference.high < 0)
    return -sign if figure in LESS_IS_BETTER else sign


def dominates(runs: Runs, theirs: str, ours: str = AUTO) -> str:
    """What ``theirs`` is better in by more than the interval, where its mean is in no figure worse; else nothing."""
    gains = []
    for figure in (ATTAINMENT, QOE, LATENCY, TOKENS):
        difference = mean_interval(pairs(runs, ours, theirs, figure))
        if difference is None:
            continue
        if difference.value * (-1 if figure in LESS_IS_BETTER else 1) > 0:
            return ""
        if better(difference, figure) < 0:
            gains.append(f"{abs(difference.value):.{3 if figure == QOE else 1}f} {NAMES[figure]}")
    return ", ".join(gains)


def mean(runs: Runs, name: str, figure: str) -> float:
    return float(np.mean([one[figure] for one in runs[name].values()])) if name in runs else float("nan")


def short(name: str) -> str:
    """``edf@1024`` and ``edf+budget``."""
    return (
        name.replace("max_num_batched_tokens=", "")
        .replace(":step_budget=true", "+budget")
        .replace(":step_budget=false", ", no budget")
    )


def named(number: int, cell: AutoCell) -> str:
    """The number of a cell and what it is."""
    return f"{number}: {', '.join(cell)}"


def shown(difference: Mean | None, digits: int) -> str:
    """The mean and half its interval."""
    if difference is None:
        return "-"
    reach = "" if difference.high is None else f" +-{difference.high - difference.value:.{digits}f}"
    return f"{difference.value:+.{digits}f}{reach}"


def cell_line(number: int, cell: AutoCell, rival: str, runs: Runs) -> tuple[list[str], list[str]]:
    """A row of the table of cells, and the aims that the cell misses."""
    differences = {figure: mean_interval(pairs(runs, AUTO, rival, figure)) for figure in FIGURES}
    tokens = 1.0 + float(np.mean(pairs(runs, AUTO, STOCK, TOKENS))) / 100.0
    preemptions = mean(runs, AUTO, PREEMPTIONS)
    stronger = {name: dominates(runs, name) for name in runs if name not in AUTOS}
    missed = [f"dominated by {short(name)} ({by})" for name, by in stronger.items() if by]
    if better(differences[ATTAINMENT], ATTAINMENT) < 0:
        missed.append("attainment below the rival's")
    if tokens < LEAST_TOKENS:
        missed.append(f"tokens/s {tokens:.3f} of stock's")
    if preemptions > MOST_PREEMPTIONS:
        missed.append(f"{preemptions:.2f} preemptions a request")
    attainment = mean(runs, AUTO, ATTAINMENT)
    columns = [
        named(number, cell),
        f"{short(rival)}",
        "-" if np.isnan(attainment) else f"{100 * attainment:.1f}",
        shown(differences[ATTAINMENT], 1),
        shown(differences[QOE], 3),
        shown(differences[LATENCY], 1),
        shown(differences[TOKENS], 1),
        f"{100 * tokens:.1f}",
        f"{preemptions:.2f}",
        str(len(runs[AUTO])),
    ]
    return columns, missed


def workload_lines(cells: Mapping[int, AutoCell], rivals: Mapping[int, str], runs: Mapping[int, Runs]) -> list[str]:
    """Attainment less the rival's, all cells of a workload pooled, and those beyond its capacity."""
    lines = [["workload", "all loads", "not inferior by 1 point", "load > 1", "above by more than the interval"]]
    for workload in dict.fromkeys(cell.workload for cell in cells.values()):
        of = [n for n in runs if cells[n].workload == workload]
        every = mean_interval([d for n in of for d in pairs(runs[n], AUTO, rivals[n], ATTAINMENT)])
        over = mean_interval(
            [d for n in of if float(cells[n].load) > 1 for d in pairs(runs[n], AUTO, rivals[n], ATTAINMENT)]
        )
        is_kept = every is not None and (every.value if every.low is None else every.low) >= NON_INFERIOR
        is_above = better(over, ATTAINMENT) > 0
        above = "-" if over is None else "yes" if is_above else "no"
        lines.append([workload, shown(every, 1), "yes" if is_kept else "no", shown(over, 1), above])
    return markdown(lines)


def group_lines(cells: Mapping[int, AutoCell], rivals: Mapping[int, str], runs: Mapping[int, Runs]) -> list[str]:
    """Attainment by profile, targets, KV and load: auto with and without step budget, and the rivals of the cells."""
    lines = [["cells", "of them with targets", "auto", "auto, no budget", "rival of the cell"]]
    for field in ("profile", "targets", "kv", "load"):
        for value in dict.fromkeys(getattr(cell, field) for cell in cells.values()):
            of = [n for n in runs if getattr(cells[n], field) == value]
            of = [n for n in of if not np.isnan(mean(runs[n], AUTO, ATTAINMENT))]
            if of:
                means = [
                    100 * np.mean([mean(runs[n], name or rivals[n], ATTAINMENT) for n in of]) for name in (*AUTOS, "")
                ]
                lines.append([f"{field} {value}", str(len(of)), *(f"{m:.1f}" for m in means)])
    return markdown(lines)


def first_seeds(runs: Runs) -> Runs:
    """The seeds that all policies have run."""
    seeds = set.intersection(*(set(found) for found in runs.values()))
    return {name: {seed: found[seed] for seed in seeds} for name, found in runs.items()}


def settings(runs: Mapping[int, Runs]) -> dict[str, dict[int, str]]:
    """What may be left on in all cells, and the run of each cell that it stands for."""
    found: dict[str, dict[int, str]] = {name: dict.fromkeys(runs, name) for name in (*AUTOS, STOCK)}
    for policy in POLICIES:
        if not all(budget_of(policy) in of_cell for of_cell in runs.values()):
            continue  # a rival that came after these runs
        found[f"{policy}, its best size"] = {n: sized(runs[n], policy) for n in runs}
        found[budget_of(policy)] = dict.fromkeys(runs, budget_of(policy))
    return found


def kind_lines(cells: Mapping[int, AutoCell], runs: Mapping[int, Runs]) -> list[str]:
    """Attainment of each setting by kind of targets and by engine."""
    groups = [
        (field, v) for field in ("targets", "profile") for v in dict.fromkeys(getattr(c, field) for c in cells.values())
    ]
    with_targets = {n: found for n, found in runs.items() if not np.isnan(mean(found, AUTO, ATTAINMENT))}
    of = {value: [n for n in with_targets if getattr(cells[n], field) == value] for field, value in groups}
    of = {value: numbers for value, numbers in of.items() if numbers}
    lines = [["in time, %", *of]]
    for head, names in settings(runs).items():
        means = [100 * np.mean([mean(runs[n], names[n], ATTAINMENT) for n in numbers]) for numbers in of.values()]
        lines.append([short(head), *(f"{value:.1f}" for value in means)])
    return markdown(lines)


def loss_lines(cells: Mapping[int, AutoCell], runs: Mapping[int, Runs], most: int = 6) -> list[str]:
    """The cells in which auto is furthest behind the best other setting, chosen afterwards."""
    behind = {}
    for number, found in runs.items():
        rivals = {name: mean(found, name, ATTAINMENT) for name in found if name not in AUTOS}
        best = max(rivals, key=rivals.__getitem__)
        behind[number] = rivals[best] - mean(found, AUTO, ATTAINMENT), best
    lines = [["cell", "auto", "without step budget", "rival"]]
    for number in sorted((n for n in behind if behind[n][0] > 0), key=lambda n: -behind[n][0])[:most]:
        ours = (f"{100 * mean(runs[number], name, ATTAINMENT):.1f}" for name in AUTOS)
        best = behind[number][1]
        lines.append(
            [named(number, cells[number]), *ours, f"{100 * mean(runs[number], best, ATTAINMENT):.1f}, {short(best)}"]
        )
    return markdown(lines)


def policy_lines(runs: Mapping[int, Runs]) -> list[str]:
    """Each policy left on in all cells: means, and how far it is from the best of the cell."""
    begin = ["policy in all cells", "attainment, %", "worst cell", "behind the cell's best rival, points"]
    lines = [[*begin, "most behind", "QoE", "latency, x auto", "tokens/s, x stock", "least", "preemptions"]]
    for head, names in settings(runs).items():
        attained = {n: mean(runs[n], names[n], ATTAINMENT) for n in runs}
        attained = {n: value for n, value in attained.items() if not np.isnan(value)}
        if not attained:
            continue
        best_rival = {
            n: max(mean(runs[n], name, ATTAINMENT) for name in runs[n] if name not in AUTOS) for n in attained
        }
        behind = [best_rival[n] - value for n, value in attained.items()]
        qoe = [mean(runs[n], names[n], QOE) for n in runs]
        latency = [mean(runs[n], names[n], LATENCY) / mean(runs[n], AUTO, LATENCY) for n in runs]
        tokens = [mean(runs[n], names[n], TOKENS) / mean(runs[n], STOCK, TOKENS) for n in runs]
        preemptions = [mean(runs[n], names[n], PREEMPTIONS) for n in runs]
        figures = (
            f"{100 * np.mean(list(attained.values())):.1f}",
            f"{100 * min(attained.values()):.1f}",
            f"{100 * np.mean(behind):.1f}",
            f"{100 * max(behind):.1f}",
            f"{np.nanmean(qoe):.3f}",
            f"{np.exp(np.mean(np.log(latency))):.2f}",
            f"{np.exp(np.mean(np.log(tokens))):.3f}",
            f"{min(tokens):.3f}",
            f"{np.mean(preemptions):.2f}",
        )
        lines.append([short(head), *figures])
    return markdown(lines)


def table(rows: Sequence[Row], cells: Mapping[int, AutoCell]) -> str:
    """All tables, as Markdown."""
    earlier = {n: [r for r in rows if int(r["cell"]) == n and r["half"] == "earlier"] for n in cells}
    runs = {n: runs_of(rows, n) for n in cells}
    runs = {n: found for n, found in runs.items() if AUTO in found}
    rivals = {n: rival_of(earlier[n], [name for name in found if name not in AUTOS]) for n, found in runs.items()}
    head = ["cell", "rival", "auto, % in time", "attainment", "QoE", "latency", "tokens/s", "tokens/s, % of stock's"]
    by_cell = [[*head, "preemptions", "seeds"]]
    common = {n: first_seeds(found) for n, found in runs.items()}
    missed = {}
    for number, found in runs.items():
        line, missed[number] = cell_line(number, cells[number], rivals[number], found)
        by_cell.append(line)
    lines = ["Auto less the rival of the cell: attainment in points, QoE; latency per token and tokens/s in %.", ""]
    without = ", ".join(str(n) for n in cells if n not in runs) or "none"
    lines += [*markdown(by_cell), "", f"Cells without auto's runs: {without}."]
    lines += [
        "",
        *workload_lines(cells, rivals, runs),
        "",
        *policy_lines(common),
        "",
        *kind_lines(cells, common),
        "",
        *group_lines(cells, rivals, common),
        "",
        "Where auto is furthest behind, chosen afterwards, in % in time.",
        "",
        *loss_lines(cells, common),
        "",
        "Aims missed.",
        "",
    ]
    lines += [f"- {named(n, cells[n])}: {'; '.join(why)}" for n, why in missed.items() if why]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = parser_for(__doc__, out=RESULTS / "auto")
    parser.add_argument("--raw", type=Path)
    args = parser.parse_args()
    path = args.out / RUNS
    if args.raw is not None:
        write_rows(path, published(read_rows(args.raw)), PUBLISHED)
    text = table(read_rows(path), read_cells())
    write_table(args.out, text, shown=True)


if __name__ == "__main__":
    main()
