"""Does KVC pipelining gain anything in ``econo``, which admits by a forecast? Four forms of it beside econo and rivals.

Usage: python -m benchmarks.policies.econo_guests [--quick] [--out FILE]

The forms are in hosted_econo. Scarce KV, earlier halves of the workloads, three seeds that no form was developed with,
the engine model; each form and ``econo`` with predicted and with known lengths. ``gain``: points of attainment above
``econo`` of the same lengths, ``latency`` and ``tokens``: latency per token and tokens per second relative to econo's,
each with half of its 95 % interval, paired by seed. ``guests``: share of the requests that were admitted as guests.

Writes results/econo_guests.json.gz; ``--quick`` writes nothing without ``--out``. Cells that the file has are not run
again. Traces are looked for in the folder that SLOSERVE_DATA names.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.policies.auto_cells import AutoCell, experiment
from benchmarks.policies.auto_judged import half_95
from benchmarks.policies.hosted_econo import FORMS, HostedEcono
from benchmarks.publish import RESULTS, read_json, write_result
from sloserve.estimator.planning_cost import planning_costs
from sloserve.scheduler.econo.policy import Econo
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.sim.experiment import Experiment, Point, measured_points, task_of
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import summarize
from sloserve.sim.run_name import STOCK

_OPT, _LLAMA = "a100-opt-13b", "h100-llama3-8b"
CELLS: Final = (
    AutoCell("sharegpt", "deadline", "scarce", _OPT, "1.5"),
    AutoCell("sharegpt", "mixed", "scarce", _OPT, "0.7"),
    AutoCell("azure-conv", "mixed", "scarce", _LLAMA, "1.5"),
    AutoCell("azure-conv", "deadline", "scarce", _LLAMA, "2"),
    AutoCell("azure-code", "mixed", "scarce", _LLAMA, "1"),
    AutoCell("servegen-10h", "readers", "scarce", _LLAMA, "2"),
)
SEEDS: Final = (10, 11, 12)
RIVALS: Final = (STOCK, *(f"{name}:step_budget=true" for name in ("edf", "sjf", "niyama")), "auto")
LENGTHS: Final = {"predicted": "predicted", "known": "oracle"}
ECONO: Final = "econo"
FIGURES: Final = {"attainment": "slo_attainment", "latency_ms": "normalized_latency_ms", "tokens": "output_throughput"}


def policy_of(form: str, lengths: str, seed: int) -> Policy | None:
    """Return the policy of a run; ``None`` for stock."""
    if form in FORMS:
        return HostedEcono(Econo.Settings(length=LENGTHS[lengths]), form, seed=seed)
    if form == ECONO:
        return Econo(Econo.Settings(length=LENGTHS[lengths]), seed=seed)
    return None if form == STOCK else make_policy(*parse_policy(form), seed=seed)


def run(ours: Experiment, point: Point, form: str, lengths: str) -> dict[str, float]:
    """Return the figures of one run; planning is charged as ``econo``'s for each of its forms."""
    task = task_of(ours, ECONO if form in FORMS else form, point)
    policy = policy_of(form, lengths, point.seed)
    made = None if form in RIVALS else policy
    engine = ModelEngine(task.engine, task.profile, task.config, planning_costs=planning_costs(), policy=made)
    found = summarize(engine.run(task.requests), policy=form, seed=point.seed, rps=point.rps, load=point.load)
    guests = policy.num_guests / len(task.requests) if isinstance(policy, HostedEcono) else 0.0
    return {name: found[key] for name, key in FIGURES.items()} | {
        "preemptions": found["preemptions_per_request"],
        "kv_used": found["kv_utilization_mean"],
        "guests": guests,
    }


def measured(cell: AutoCell, seeds: Sequence[int], **flags: Any) -> list[dict[str, Any]]:
    """Return a row for each policy of a cell."""
    runs = [(rival, "-") for rival in RIVALS]
    runs += [(form, lengths) for form in (ECONO, *FORMS) for lengths in LENGTHS if (form, lengths) != ("mean", "known")]
    found: dict[tuple[str, str], list[dict[str, float]]] = {one: [] for one in runs}
    for seed in seeds:
        with TemporaryDirectory() as folder:
            ours = experiment(cell, "earlier", seed, Path(folder), **flags)
            (point,) = measured_points(ours)
            for form, lengths in runs:
                found[form, lengths].append(run(ours, point, form, lengths))
    return [_row(cell, form, lengths, of, found[ECONO, _beside(lengths)]) for (form, lengths), of in found.items()]


def _beside(lengths: str) -> str:
    return "predicted" if lengths == "-" else lengths


def _row(cell: AutoCell, form: str, lengths: str, of: list[dict[str, float]], base: list[dict[str, float]]) -> Any:
    def more(name: str, relative: bool) -> list[float]:
        pairs = [(one[name], other[name]) for one, other in zip(of, base, strict=True)]
        values = 100.0 * np.array([a / b - 1.0 if relative else a - b for a, b in pairs])
        return [round(float(values.mean()), 3), round(half_95(values), 3)]

    row = {**cell._asdict(), "form": form, "lengths": lengths}
    row |= {name: round(float(np.mean([one[name] for one in of])), 5) for name in of[0]}
    row |= {"gain": more("attainment", False), "latency": more("latency_ms", True), "tokens_gain": more("tokens", True)}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_guests.json.gz")
    rows: list[dict[str, Any]] = read_json(out).get("rows", []) if out is not None else []
    done = {AutoCell(*(row[name] for name in AutoCell._fields)) for row in rows}
    for cell in CELLS[:1] if quick else CELLS:
        if cell in done:
            continue
        rows += measured(cell, SEEDS[:1], max_requests=60) if quick else measured(cell, SEEDS)
        if out is not None:
            write_result(out, {"seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
