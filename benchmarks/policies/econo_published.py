"""EconoServe as published, in its own figures: its load, its requests in time and its parts, beside stock's.

Usage: python -m benchmarks.policies.econo_published [--quick] [--out FILE]

``econo-paper`` with padding and buffer of the paper for each trace (Sec. 2.3 and 4), on the engine model beside stock.
Lengths are predicted by class, known with an error of 30 % (``fig13`` alone), or known, which are not padded.

- ``fig9``: the load that each carries at twice the latency per token of stock's least load, with one target for all
  requests, as in econo_rates.
- ``fig10``: requests in time at load 1.5 under the paper's targets, which are in proportion to the reply.
- ``fig13``: the parts of the paper at load 1, under the same targets.

Writes results/econo_published.json.gz; ``--quick`` writes nothing without ``--out``. Rows that the file has are not run
again.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.arguments import quick_and_out
from benchmarks.policies.econo_rates import capacities, fixed_deadline
from benchmarks.publish import RESULTS, read_json, write_result
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.experiments import experiment_flags
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run
from sloserve.sim.run_name import STOCK

ROWS: Final = {
    "econo-sharegpt": 200,
    "econo-alpaca": 400,
    "econo-bookcorpus": 40,
    "econo-llama-33b": 200,
    "econo-opt-175b": 200,
}
"""Rows of the experiments' registry, and requests a run."""
SHARES: Final = {"econo-alpaca": (0.1, 0.15), "econo-bookcorpus": (0.2, 0.1)}
"""The paper's padding and buffer; those of ShareGPT for the other rows."""
SHAREGPT: Final = (0.15, 0.15)
LENGTHS: Final = {"predicted": "predicted", "known": "oracle"}
WITH_ERROR: Final = LENGTHS | {"error 30 %": "oracle:length_error=0.3"}
PARTS: Final = ("d", "sd", "sdo", "full")
FIG9_LOADS: Final = "0.25,0.75,1"
KEPT: Final = ("policy", "load", "seed", "normalized_latency_ms", "slo_attainment", "output_throughput")


def names_of(row: str, parts: Sequence[str] = ("full",)) -> dict[str, str]:
    """Return the policies of a row of the registry by their names in the result."""
    padding, buffer = SHARES.get(row, SHAREGPT)
    found = {STOCK: STOCK}
    for part in parts:
        for lengths, option in (WITH_ERROR if len(parts) > 1 else LENGTHS).items():
            padded = 0.0 if lengths == "known" else padding
            found[f"{part}, {lengths}"] = f"econo-paper:parts={part}:length={option}:padding={padded}:buffer={buffer}"
    return found


@dataclass(frozen=True)
class Figure:
    """A figure of the paper on one row of the experiments' registry."""

    row: str
    requests: int
    seeds: int
    loads: str
    parts: Sequence[str] = ("full",)
    has_one_target: bool = False

    def experiment(self) -> Experiment:
        flags = experiment_flags(self.row) | {"max_requests": self.requests, "load": self.loads}
        flags |= {"policy": ",".join(names_of(self.row, self.parts).values())}
        built = replace(build_experiment(SimulateOptions(**flags, seeds=self.seeds)), engine_kind=MODEL)
        return replace(built, slos=fixed_deadline(built)) if self.has_one_target else built

    def runs(self) -> list[Run]:
        called = {policy: name for name, policy in names_of(self.row, self.parts).items()}
        records = [run.record() for run in run_experiment(self.experiment())]
        return [{key: record.get(key) for key in KEPT} | {"policy": called[record["policy"]]} for record in records]


def by_policy(row: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a line for each policy: figures by seed, and latency relative to stock's with its 95 % interval."""
    lines = []
    stock = [run["normalized_latency_ms"] for run in runs if run["policy"] == STOCK]
    for policy in dict.fromkeys(run["policy"] for run in runs):
        own = [run for run in runs if run["policy"] == policy]
        ratio = mean_interval([run["normalized_latency_ms"] / ours for run, ours in zip(own, stock, strict=True)])
        assert ratio is not None
        lines.append(
            {"row": row, "policy": policy, "latency_over_stock": [ratio.low, ratio.value, ratio.high]}
            | {key: [round(run[key], 5) for run in own] for key in KEPT[3:]}
        )
        print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_published.json.gz")
    rows, seeds = ({"econo-sharegpt": 40}, 1) if quick else (ROWS, 3)
    found: dict[str, Any] = {"fig13": [], "fig9": [], "fig10": []} | (read_json(out) if out is not None else {})
    done = {(figure, line["row"]) for figure in ("fig13", "fig9", "fig10") for line in found[figure]}
    first = next(iter(rows))
    for figure, row in (("fig13", first), *itertools.product(("fig9", "fig10"), rows)):
        if (figure, row) in done:
            continue
        if figure == "fig9":
            of_row = capacities(Figure(row, rows[row], seeds, FIG9_LOADS, has_one_target=True).runs())
            found[figure].append({"row": row, "capacity": [one.as_dict() for one in of_row]})
            print(json.dumps(found[figure][-1]), flush=True)
        else:
            load, parts = ("1", PARTS) if figure == "fig13" else ("1.5", ("full",))
            found[figure] += by_policy(row, Figure(row, rows[row], seeds, load, parts).runs())
        if out is not None:
            write_result(out, found)


if __name__ == "__main__":
    main()
