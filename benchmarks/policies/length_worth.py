"""What is a better prediction of output lengths worth to a policy, and why is it a loss to some?

Two kinds of traffic at 1.5 times what stock carries, on the engine model with KV for some dozens of requests:

- ``chat``: Azure's conversations. The model of `sloserve train-length` learns from the first half what the prompt's
  length says; the requests are windows of the second half.
- ``text``: instructions with their texts and the lengths of their answers, which arrive at random times. Each seed
  holds 400 of them out, and the model learns from the words of the others.

Each policy knows the distribution of the class (``class``), what the model predicts (``predicted``), or the length
(``known``); stock and rivals run on the same requests. ``targets``: ``default`` (first tokens and pace, or 30 s),
``deadline`` (one for all) and ``none``. Beside attainment and tokens per second of whole runs, a run has what was done
until the last arrival, since the end of a finite run says little of a server; and who misses its first token, by
the output's length. Writes results/length_worth.json.gz: means over three seeds, and the paired difference to
``class``. Argument: the folder of data, by default SLOSERVE_DATA.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.estimator.length_accuracy import TEXT_SAMPLE, text_examples
from benchmarks.policies.auto_cells import AutoCell, experiment
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, read_json, write_result
from benchmarks.traces import AZURE_CONV
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.estimator.length.at_admission import LengthAtAdmission
from sloserve.estimator.length.examples import Examples, count_tokens, make_examples
from sloserve.estimator.length.training import LengthTrainingSettings, train
from sloserve.sim.experiment import Experiment, Point, engine_of, measured_points, task_of
from sloserve.sim.report.summary import summarize
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.slo_file import read_slo_file
from sloserve.sim.workloads.trace import Trace, make_trace
from sloserve.sim.workloads.window import WHOLE

SEEDS = (0, 1, 2)
LOAD = "1.5"
HELD_OUT = 400
CHAT_REQUESTS, CHAT_BLOCKS, TEXT_BLOCKS = 500, 3000, 250
KNOWN = {"class": ":length=empirical", "predicted": ":length=predicted", "known": ":length=oracle"}
POLICIES = {"chat": ("sjf", "econo", "auto"), "text": ("sjf", "econo", "auto", "sa")}
RIVALS = ("stock", "edf", "niyama:step_budget=true")
TARGETS = {"chat": ("default",), "text": ("deadline", "none")}
TEXT_DEADLINE_MS = 1000
"""An answer of the sample has 53 tokens in the mean, a quarter of a conversation's."""


@dataclass
class Traffic:
    """Requests of one seed; a request's task is its place here. ``quantiles``: as the model predicts its length."""

    trace: Trace
    quantiles: list[list[float] | None]


class GivenLengths(VirtualFrontEnd):
    """A front end that predicts what it was given, since requests of simulations have no texts."""

    given: list[list[float] | None]

    def length(self, item: WorkloadRequest, now_s: float) -> list[float] | None:
        return self.given[int(item.task)]


def chat(folder: Path, seed: int) -> Traffic:
    window = read_trace(folder / f"{AZURE_CONV}.csv.gz").part(0.5, 1.0).window(seed, CHAT_REQUESTS)
    found = predicted(learned_from_chats(folder), trace_examples(window))
    return Traffic(replace(window, task=[str(i) for i in range(len(window))]), found)


def trace_examples(trace: Trace) -> Examples:
    return make_examples(trace.output_tokens, prompt_tokens=trace.prompt_tokens)


def text(folder: Path, seed: int) -> Traffic:
    sample, rng = text_examples(folder / TEXT_SAMPLE), np.random.default_rng(seed)
    order = rng.permutation(len(sample))
    test = sample.take(order[:HELD_OUT])
    assert test.requests.prompt is not None
    trace = make_trace(
        "instructions",
        TEXT_SAMPLE,
        np.cumsum(rng.exponential(size=HELD_OUT)),
        [count_tokens(prompt) for prompt in test.requests.prompt],
        test.lengths,
        [str(i) for i in range(HELD_OUT)],
    )
    one_task = make_examples(sample.lengths[order[HELD_OUT:]], prompt=sample.take(order[HELD_OUT:]).requests.prompt)
    return Traffic(trace, predicted(learned(one_task), test))


def learned(past: Examples) -> LengthAtAdmission:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        train(past, LengthTrainingSettings()).save(path)
        return LengthAtAdmission(path, ())


@cache
def learned_from_chats(folder: Path) -> LengthAtAdmission:
    return learned(trace_examples(read_trace(folder / f"{AZURE_CONV}.csv.gz").part(0.0, 0.5)))


def predicted(lengths: LengthAtAdmission, asked: Examples) -> list[list[float] | None]:
    known = asked.requests
    return [
        lengths.quantiles(
            "",
            arrival_s=0.0,
            prompt_tokens=None if known.prompt_tokens is None else int(known.prompt_tokens[i]),
            prompt=None if known.prompt is None else known.prompt[i],
        )
        for i in range(len(asked))
    ]


def experiment_of(kind: str, targets: str, seed: int, traffic: Traffic, folder: Path) -> Experiment:
    """Return the cell of this name with ``traffic`` in place of its own requests."""
    blocks = CHAT_BLOCKS if kind == "chat" else TEXT_BLOCKS
    ours = experiment(
        AutoCell("sharegpt", targets, "ample", "h100-llama3-8b", LOAD),
        "earlier",
        seed,
        folder,
        kv_blocks=blocks,
        max_requests=len(traffic.trace),
    )
    source = replace(ours.workload, source=lambda n, seed: traffic.trace, rate_per_s=None, trace=traffic.trace)
    slos = ours.slos
    if kind == "text" and targets == "deadline":
        path = folder / "short.yaml"
        path.write_text(f"classes: {{fixed: {{share: 1, e2e_ms: {TEXT_DEADLINE_MS}}}}}\n", encoding="utf-8")
        slos = read_slo_file(path)
    return replace(ours, workload=source, slos=slos, window=WHOLE)


def served(ours: Experiment, policy: str, point: Point, given: list[list[float] | None]) -> RunLog:
    task = task_of(ours, policy, point)
    engine = engine_of(task)
    front = engine._front_end
    front.__class__ = GivenLengths
    front.given = given  # type: ignore[attr-defined]
    return engine.run(task.requests)


def figures(log: RunLog, policy: str, point: Point) -> dict[str, float]:
    """Return what a run came to; shares within 0..1, latencies in seconds."""
    record = summarize(log, policy=policy, seed=point.seed, rps=point.rps)
    arrival_s = np.array([one.request.arrival_s for one in log.requests])
    first_s = np.array([one.token_times_s[0] for one in log.requests]) - arrival_s
    end_s = np.array([one.token_times_s[-1] for one in log.requests])
    times_s = np.concatenate([one.token_times_s for one in log.requests])
    lengths = np.array([one.token_times_s.size for one in log.requests])
    last_s = float(arrival_s.max())
    ttft_s = np.array([one.asked.targets.ttft_s or np.nan for one in log.requests])
    late, timed = first_s > ttft_s, ~np.isnan(ttft_s)
    long, short = (timed & (lengths >= np.quantile(lengths, 0.75)), timed & (lengths <= np.quantile(lengths, 0.25)))
    return {
        "in_time": float(record["slo_attainment"] if record["slo_attainment"] is not None else np.nan),
        "latency_s": float((end_s - arrival_s).mean()),
        "latency_p99_s": float(np.quantile(end_s - arrival_s, 0.99)),
        "tokens_per_s": float(times_s.size / times_s.max()),
        "tokens_per_s_until_last_arrival": float((times_s <= last_s).sum() / last_s),
        "requests_per_s_until_last_arrival": float((end_s <= last_s).sum() / last_s),
        "first_token_late_long": float(late[long].mean()) if long.any() else float("nan"),
        "first_token_late_short": float(late[short].mean()) if short.any() else float("nan"),
    }


def cell(kind: str, targets: str, seeds: Sequence[int], data: Path, folder: Path) -> list[dict[str, Any]]:
    runs: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for seed in seeds:
        traffic = {"chat": chat, "text": text}[kind](data, seed)
        ours = experiment_of(kind, targets, seed, traffic, folder)
        (point,) = measured_points(ours)
        asked = [(name, "", name) for name in RIVALS]
        asked += [(policy, known, policy + option) for policy in POLICIES[kind] for known, option in KNOWN.items()]
        for policy, known, name in asked:
            print(kind, targets, seed, name, flush=True)
            runs[policy, known].append(figures(served(ours, name, point, traffic.quantiles), name, point))
    rows = []
    for (policy, known), found in runs.items():
        row: dict[str, Any] = {"traffic": kind, "targets": targets, "policy": policy, "lengths": known}
        row |= {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        if known not in ("", "class"):
            for name in ("in_time", "latency_s"):
                more = np.array([a[name] - b[name] for a, b in zip(found, runs[policy, "class"], strict=True)])
                row |= {f"{name}_more": float(more.mean()), f"{name}_half_95": half_95(more)}
        rows.append(row)
        print(*(f"{value:.4g}" if isinstance(value, float) else f"{value:9}" for value in row.values()), flush=True)
    return rows


def main() -> None:
    parser = parser_for(__doc__, out=RESULTS / "length_worth.json.gz", seeds=len(SEEDS))
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("SLOSERVE_DATA"))
    parser.add_argument("--traffic", nargs="+", choices=TARGETS, default=list(TARGETS), help="others stay as they are")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        for kind in given.traffic:
            for targets in TARGETS[kind]:
                found = cell(kind, targets, range(given.seeds), given.folder, Path(folder))
                others = [
                    row
                    for row in read_json(given.out).get("rows", [])
                    if (row["traffic"], row["targets"]) != (kind, targets)
                ]
                write_result(given.out, {"load": float(LOAD), "seeds": given.seeds, "rows": others + found})


if __name__ == "__main__":
    main()
