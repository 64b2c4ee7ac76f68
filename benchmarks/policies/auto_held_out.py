"""Does `auto` hold where nothing was tuned? Settings, windows and seeds that were fixed before the first run.

Usage: python -m benchmarks.policies.auto_held_out [--workers 2] [--groups deadlines,seats] [--raw raw.csv]

Five groups of settings. ``deadlines``: one deadline for all requests of a trace, on two engines, below and above what
the engine can do. ``seats``: replies of a few tokens, or of one, with few seats (``--max-num-seqs``). ``mixes``: the
kinds of traffic and targets that a server has most, of which one has ten times the load for 20 s. ``models``: a hybrid
and a mixture of experts whose layers keep KV in several ways. ``untargeted``: nobody states a target.

Each policy but stock runs with the step budget. Requests come from the later half of each trace, by seeds that no other
benchmark has used, so that no constant and no rule was chosen on them. Runs go through the engine model, with planning
charged. Rows are added to ``--raw``, and runs that are there already are not made again: run it in a checkout of an
earlier commit with ``--label before`` to compare `auto` with what it was. Traces are looked for in the folder that
SLOSERVE_DATA names; settings without their trace are left out.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import MIXED, WORKLOADS
from benchmarks.policies.step_sizes import BUDGET, HALVES
from benchmarks.publish import RESULTS, read_rows, write_rows
from sloserve.core.errors import ConfigError
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.found import find_trace
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.trace import Trace

SEEDS: Final = (500, 501, 502)
AUTO, STOCK = "auto", "stock"
POLICIES: Final = (STOCK, *(name + BUDGET for name in ("edf", "sjf", "econo", "andes", "niyama")), AUTO)
FIGURES: Final = (
    "slo_attainment",
    "qoe_mean",
    "normalized_latency_ms",
    "output_throughput",
    "preemptions_per_request",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "max_wait_s",
    "mean_e2el_ms",
    "p99_e2el_ms",
)
COLUMNS: Final = ("group", "setting", "load", "seed", "rps", "label", "policy", *FIGURES)
H100, A100X4 = "h100-llama3-8b", "a100-llama3-70b-tp4"
SCARCE_BLOCKS: Final = 3000
BURST_S, BURST_TIMES, BEFORE_S, AFTER_S = 20.0, 10.0, 60.0, 120.0
"""A burst: how long it lasts, by how much the load grows, and what comes before and after."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Requests, targets and an engine.

    Args:
        group: Its group.
        name: Its name within the group.
        load: Offered load, in multiples of stock's capacity.
        flags: Flags of ``sloserve simulate``.
        slo: The classes of an SLO file, the name of an assignment, or ``None`` for the default classes.
        output_tokens: Median of the replies of short prompts, in the place of a workload.
        has_burst: Whether the load is ``BURST_TIMES`` as high for ``BURST_S``.
    """

    group: str
    name: str
    load: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    slo: str | Mapping[str, Any] | None = None
    output_tokens: int = 0
    has_burst: bool = False

    def experiment(self, seed: int, folder: Path) -> Experiment:
        """Return the experiment with stock as its only policy.

        Raises: ConfigError without its trace.
        """
        flags: dict[str, Any] = {"load": self.load, "max_requests": 300, "engine": MODEL, "policy": STOCK}
        flags |= self.flags
        if isinstance(self.slo, str):
            flags["slo"] = self.slo
        elif self.slo is not None:
            path = folder / "slo.yaml"
            path.write_text(yaml.safe_dump({"classes": dict(self.slo)}), encoding="utf-8")
            flags["slo"] = str(path)
        if self.output_tokens:
            flags["trace"] = _write(short_replies(flags["max_requests"], self.output_tokens, seed), folder)
            return replace(build_experiment(SimulateOptions(**flags)), seeds=(seed,))
        return replace(build_experiment(SimulateOptions(**flags)), seeds=(seed,), window=HALVES["later"])


def _of(workload: str, **flags: Any) -> dict[str, Any]:
    return WORKLOADS[workload] | flags


def deadline_settings() -> Iterator[Setting]:
    """Return the settings with one deadline for all requests."""
    for trace, profile, seconds, load in itertools.product(
        ("mooncake", "azure-conv", "azure-code"), (H100, A100X4), (12, 30), ("0.75", "1.5")
    ):
        flags = _of(trace, profile=profile) | {"max_requests": 150 if trace == "mooncake" else 600}
        slo = {"fixed": {"share": 1, "e2e_ms": 1000 * seconds}}
        yield Setting("deadlines", f"{trace}, {profile}, {seconds} s", load, flags, slo)


def seat_settings() -> Iterator[Setting]:
    """Return the settings with replies of a few tokens, or of one, on few seats."""
    for tokens, seats in itertools.product((4, 1), (4, 16, 64, 256)):
        flags = {"profile": H100, "max_num_seqs": seats, "max_requests": min(150 * seats, 3000)}
        yield Setting("seats", f"replies of {tokens}, {seats} seats", "1.5", flags, output_tokens=tokens)


def mix_settings() -> Iterator[Setting]:
    """Return the settings of the kinds of traffic that servers have most."""
    scarce = {"kv_blocks": SCARCE_BLOCKS}
    yield Setting("mixes", "mixed", "1.5", _of("servegen-10h", profile=A100X4, **scarce), MIXED)
    yield Setting("mixes", "code", "1", _of("azure-code", profile=H100), MIXED)
    yield Setting("mixes", "reasoning", "2", _of("reasoning", profile=H100, **scarce, max_requests=150))
    ample = _of("azure-conv", profile=A100X4, max_requests=600)
    yield Setting("mixes", "readers, ample KV", "1.5", ample, "reading")
    yield Setting("mixes", "readers, deep overload", "3", _of("azure-conv", profile=H100, **scarce), "reading")
    yield Setting("mixes", "default classes", "1.5", _of("servegen-19h", profile=A100X4, **scarce))
    yield Setting("mixes", "a burst", "0.7", _of("azure-conv", profile=H100, **scarce), has_burst=True)


def model_settings() -> Iterator[Setting]:
    """Return the settings of models whose layers keep KV in several ways."""
    agentic = {
        "agent": {"share": 0.5, "e2e_ms": 10_000},
        "chat": {"share": 0.3, "ttft_ms": 1000, "tpot_ms": 50},
        "batch": {"share": 0.2, "e2e_ms": 300_000},
    }
    chats = _of("azure-conv", profile="h100-gpt-oss-20b", max_requests=1500)
    yield Setting("models", "gpt-oss-20b, default classes", "1.5", chats)
    yield Setting("models", "gpt-oss-20b, code", "1.5", _of("azure-code", profile="h100-gpt-oss-20b"))
    calls = _of("servegen-10h", profile="h100-granite4-small", max_requests=600)
    yield Setting("models", "Granite 4, agentic", "1.5", calls, agentic)


def untargeted_settings() -> Iterator[Setting]:
    """Return the settings in which nobody states a target."""
    scarce = {"kv_blocks": SCARCE_BLOCKS}
    workloads = {
        "azure-conv, scarce KV": _of("azure-conv", profile=H100, **scarce, max_requests=500),
        "azure-code": _of("azure-code", profile=H100, max_requests=500),
        "servegen-19h, scarce KV": _of("servegen-19h", profile=H100, **scarce, max_requests=500),
        "mooncake": _of("mooncake", profile=H100),
    }
    for (name, flags), load in itertools.product(workloads.items(), ("0.7", "1", "1.3", "2")):
        yield Setting("untargeted", name, load, flags, {"plain": {"share": 1}})


def settings() -> list[Setting]:
    """Return all settings, group by group."""
    return [
        *deadline_settings(),
        *seat_settings(),
        *mix_settings(),
        *model_settings(),
        *untargeted_settings(),
    ]


def short_replies(num_requests: int, output_tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrivals, prompts and replies of requests that classify: prompts of 46 tokens at the median.

    Both lengths are log-normal, as the short clients of ServeGen's smallest model have them; replies of one token have
    no spread.
    """
    rng = stream(seed, f"short-replies/{output_tokens}")
    arrivals_s = np.cumsum(rng.exponential(0.02, num_requests))
    prompts = np.clip(np.rint(rng.lognormal(math.log(46), 0.9, num_requests)), 4, 2000)
    outputs = np.ones(num_requests)
    if output_tokens > 1:
        outputs = np.clip(np.rint(rng.lognormal(math.log(output_tokens), 0.7, num_requests)), 1, 200)
    return arrivals_s, prompts, outputs


def with_burst(trace: Trace, rps: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrivals, prompts and replies of the later half of ``trace`` at ``rps``, with one burst."""
    rng = stream(seed, "burst")
    spans = ((BEFORE_S, 1.0), (BURST_S, BURST_TIMES), (AFTER_S, 1.0))
    starts_s = np.cumsum([0.0, *(seconds for seconds, _ in spans)])
    arrivals_s = np.concatenate(
        [
            start_s + np.sort(rng.uniform(0.0, seconds, round(seconds * rps * times)))
            for start_s, (seconds, times) in zip(starts_s, spans, strict=False)
        ]
    )
    half = trace.prompt_tokens.size // 2
    first = int(rng.integers(half, max(trace.prompt_tokens.size - arrivals_s.size, half + 1)))
    found = first + np.arange(arrivals_s.size) % (trace.prompt_tokens.size - first)
    return arrivals_s, trace.prompt_tokens[found], trace.output_tokens[found]


def _write(columns: tuple[np.ndarray, np.ndarray, np.ndarray], folder: Path) -> Path:
    """Write a trace as CSV into ``folder`` and return its path."""
    path = folder / "trace.csv"
    rows = (
        {"arrival_s": f"{arrival_s:.6f}", "prompt_tokens": int(prompt), "output_tokens": int(output)}
        for arrival_s, prompt, output in zip(*columns, strict=True)
    )
    write_rows(path, rows)
    return path


def run(setting: Setting, seed: int, policies: Sequence[str], label: str, rps: float | None) -> list[Row]:
    """Return the figures of each policy in one setting; ``rps`` where the offered rate is known already."""
    with TemporaryDirectory() as folder:
        try:
            ours = setting.experiment(seed, Path(folder))
        except ConfigError as error:
            print(f"left out: {setting.name}: {error}", flush=True)
            return []
        found = [Point(seed, rps, float(setting.load))] if rps else measured_points(ours)
        points: Sequence[Point] | None = found
        offered = repr(found[0].rps)
        if setting.has_burst:
            trace = read_trace(find_trace(setting.flags["trace"]))
            flags = dict(setting.flags) | {"trace": _write(with_burst(trace, found[0].rps, seed), Path(folder))}
            flags |= {"rate_scale": 1.0, "load": None, "max_requests": 100_000, "engine": MODEL, "policy": STOCK}
            ours, points = replace(build_experiment(SimulateOptions(**flags)), seeds=(seed,)), None
        named = {"group": setting.group, "setting": setting.name, "load": setting.load, "seed": seed, "label": label}
        rows = []
        for one in run_experiment(replace(ours, policies=tuple(policies)), points=points):
            record = one.record()
            row = named | {"rps": offered, "policy": one.policy}
            rows.append(row | {name: "" if record[name] is None else f"{record[name]:.6g}" for name in FIGURES})
        return rows


def main() -> None:
    parser = parser_for(__doc__, workers=2, seeds=len(SEEDS), raw=RESULTS / "auto_held_out.csv.gz", label="after")
    parser.add_argument("--groups", help="comma-separated. Default: all")
    parser.add_argument("--policies", help="comma-separated. Default: all")
    given = parser.parse_args()
    groups = given.groups.split(",") if given.groups else None
    policies = given.policies.split(",") if given.policies else POLICIES
    rows = read_rows(given.raw)
    rates = {(row["setting"], row["load"], int(row["seed"])): float(row["rps"]) for row in rows}
    ours = [row for row in rows if row["label"] == given.label]
    ran = {(row["setting"], row["load"], int(row["seed"]), row["policy"]) for row in ours}
    jobs = []
    for setting, seed in itertools.product(settings(), SEEDS[: given.seeds]):
        at = (setting.name, setting.load, seed)
        names = [policy for policy in policies if (*at, policy) not in ran]
        if names and (groups is None or setting.group in groups):
            jobs.append((setting, seed, names, given.label, rates.get(at)))
    with ProcessPoolExecutor(given.workers) as pool:
        for job, found in zip(jobs, pool.map(run, *zip(*jobs, strict=True)), strict=True) if jobs else ():
            shares = {row["policy"].removesuffix(BUDGET): row["slo_attainment"] or row["p99_ttft_ms"] for row in found}
            print(job[0].group, job[0].name, job[0].load, job[1], shares, flush=True)
            rows += found
            write_rows(given.raw, rows, COLUMNS)


if __name__ == "__main__":
    main()
