"""How well is a request's output length predicted, at admission and later, and what does a prediction cost?

Replays windows of each trace in time order: a predictor is asked when a request arrives and when it has emitted 64 and
256 tokens, and learns of a length when the request ends. Requests do not wait here and emit a token every 30 ms, which
fixes only the order of events. Scored: ``start``, the first 200 requests, and ``steady``, the second half of a window.
The learned model is trained on those that ended before the second half. Then instructions with their answers, from
their text: random splits; and what a prediction from text costs. Writes benchmarks/results/length_accuracy.json.gz; no
line of the data goes in. Argument: the folder of data, by default SLOSERVE_DATA. With ``--predictors``, rows of other
predictors on traces stay as they are in the result.
"""

import gzip
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, read_json, write_result
from benchmarks.traces import AZURE_CONV, TRACES
from sloserve.estimator.length.accuracy import Accuracy, Predictions, accuracy
from sloserve.estimator.length.at_admission import LengthAtAdmission
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.examples import NO_CAP, Examples, count_tokens, make_examples
from sloserve.estimator.length.gaussian import GaussianLength
from sloserve.estimator.length.given import OracleLength
from sloserve.estimator.length.held_out import fed, gains, held_out
from sloserve.estimator.length.learned_length import LearnedLength
from sloserve.estimator.length.remaining import Estimator, KnownRequests
from sloserve.estimator.length.training import LEAST_EXAMPLES, LengthTrainingSettings, train
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.trace import Trace

TEXT_SAMPLE = "instruct_sample_CC-BY-NC.jsonl.gz"
SEEDS = (0, 1, 2)
WINDOW = 4000
START = 200
EMITTED = (0, 64, 256)
PREFILL_S, PREFILL_TOKEN_S, DECODE_TOKEN_S = 0.05, 3e-5, 0.03
SPLITS = 5
CHARS = (400, 16_000, 1_000_000)
"""Prompts of about 100 and 4,000 tokens, and one that is far longer than any context."""


@dataclass
class Rival:
    """A predictor under test. by_task: the task is its class.

    drawn: its median is a random draw. learned: made in the middle of the window, and not scored before.
    """

    make: Callable[[], Estimator]
    by_task: bool = False
    drawn: bool = False
    learned: bool = False


RIVALS = {
    "empirical": Rival(EmpiricalLength),
    "empirical, by task": Rival(EmpiricalLength, by_task=True),
    "gaussian": Rival(GaussianLength),
    "gaussian, fit as in the paper": Rival(lambda: GaussianLength(cut_fit=False)),
    "gaussian, drawn as in the paper": Rival(lambda: GaussianLength(cut_fit=False), drawn=True),
    "learned": Rival(EmpiricalLength, learned=True),
    "oracle, error 10 %": Rival(lambda: OracleLength(0.10)),
    "oracle, error 30 %": Rival(lambda: OracleLength(0.30)),
}


@dataclass
class PredictionLog:
    """Predictions so far and what then came."""

    median: list[float] = field(default_factory=list)
    p90: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    actual: list[int] = field(default_factory=list)

    def accuracy(self) -> Accuracy | None:
        if not self.actual:
            return None
        predicted = Predictions(np.array(self.median), np.array(self.p90), np.array(self.mean))
        return accuracy(predicted, np.array(self.actual))


def replay(trace: Trace, rival: Rival, seed: int) -> dict[tuple[str, int], PredictionLog]:
    """What ``rival`` predicted in one window, by phase and tokens emitted."""
    n, rng = len(trace), np.random.default_rng(seed)
    first = trace.arrival_s + PREFILL_S + PREFILL_TOKEN_S * trace.prompt_tokens
    end = first + DECODE_TOKEN_S * trace.output_tokens
    place = {label: i for i, label in enumerate(sorted(set(trace.task)))}
    class_id = np.array([place[label] if rival.by_task else 0 for label in trace.task])
    events = [(float(end[i]), 0, i, -1) for i in range(n)]
    for k in EMITTED:
        at = trace.arrival_s if k == 0 else first + DECODE_TOKEN_S * k
        events += [(float(at[i]), 1, i, k) for i in range(n) if trace.output_tokens[i] > k]
    predictor = rival.make()
    answers: dict[tuple[str, int], PredictionLog] = defaultdict(PredictionLog)
    ended: list[int] = []
    for _, kind, i, k in sorted(events):
        if kind == 0:
            ended.append(i)
            predictor.observe(int(class_id[i]), int(trace.output_tokens[i]))
            continue
        if k == 0:
            if rival.learned and i == n // 2 and len(ended) >= LEAST_EXAMPLES:
                predictor = LearnedLength(train(examples(trace, np.array(ended)), LengthTrainingSettings(seed=seed)))
        phase = "start" if i < START else "steady" if i >= n // 2 else None
        if phase is None or (rival.learned and not isinstance(predictor, LearnedLength)):
            continue
        rest = predictor.rest(question(trace, class_id, i, k))
        asked = answers[phase, k]
        asked.median.append(float(rest.quantile(rng.random() if rival.drawn else 0.5)[0]))
        asked.p90.append(float(rest.quantile(0.9)[0]))
        asked.mean.append(float(rest.mean()[0]))
        asked.actual.append(int(trace.output_tokens[i]) - k)
    return answers


def question(trace: Trace, class_id: np.ndarray, i: int, k: int) -> KnownRequests:
    return KnownRequests(
        class_id=class_id[i : i + 1],
        output_tokens=np.array([k]),
        max_tokens=np.array([NO_CAP]),
        seq=np.array([i]),
        prompt_tokens=trace.prompt_tokens[i : i + 1],
        stated_tokens=trace.output_tokens[i : i + 1],
        task=[trace.task[i]],
    )


def examples(trace: Trace, places: np.ndarray) -> Examples:
    return make_examples(
        trace.output_tokens[places],
        task=[trace.task[i] for i in places],
        prompt_tokens=trace.prompt_tokens[places],
    )


def over_seeds(found: list[Accuracy]) -> dict[str, object]:
    """Means over windows or splits; the range where it says how far they agree."""
    mean = {f.name: round(float(np.mean([getattr(a, f.name) for a in found])), 3) for f in fields(Accuracy)}
    ranges = {
        name: [round(min(v), 3), round(max(v), 3)]
        for name in ("within_25", "mae_tokens", "cover_90", "pinball_tokens")
        for v in [[getattr(a, name) for a in found]]
    }
    return {**mean, "requests": found[0].requests, "range_over_seeds": ranges}


def on_trace(path: Path, names: list[str], before: dict[str, Any]) -> dict[str, object]:
    whole = read_trace(path)
    windows = [whole.window(seed, WINDOW) for seed in SEEDS]
    by_rival: dict[str, object] = dict(before.get("predictors", {}))
    for name, rival in ((name, RIVALS[name]) for name in names):
        if rival.by_task and len(set(whole.task)) == 1:
            continue
        answers = [replay(window, rival, seed) for window, seed in zip(windows, SEEDS, strict=True)]
        by_case: dict[str, object] = {}
        for phase in ("start", "steady"):
            for k in EMITTED:
                found = [a for one in answers if (phase, k) in one and (a := one[phase, k].accuracy())]
                if len(found) == len(SEEDS):
                    by_case[f"{phase}, {k} emitted"] = over_seeds(found)
        by_rival[name] = by_case
        steady = by_case["steady, 0 emitted"]
        print(f"{whole.name:34} {name:32} {json.dumps(steady)[:170]}", flush=True)
    lengths = whole.output_tokens
    spread = round(float(lengths.std() / lengths.mean()), 2)
    return {"mean_tokens": round(float(lengths.mean()), 1), "relative_spread": spread, "predictors": by_rival}


def text_examples(path: Path) -> Examples:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return make_examples(
        np.array([count_tokens(row["output"]) for row in rows]),
        task=[row["source"] for row in rows],
        prompt=[f"{row['instruction']}\n{row['input']}".strip() for row in rows],
    )


def on_text(sample: Examples) -> dict[str, object]:
    named: dict[str, list[Accuracy]] = defaultdict(list)
    gained: dict[str, object] = {}
    for text in (True, False):
        name = "learned from text" if text else "learned without text"
        splits = list(held_out(sample, LengthTrainingSettings(text=text), share=0.2, seeds=SPLITS))
        gained[name] = [asdict(one) for one in gains(splits, sample)]
        named[name] = [split.accuracy["learned"] for split in splits]
        if text:
            named["empirical, by task"] = [split.accuracy["empirical"] for split in splits]
            named["gaussian, by task"] = [split.accuracy["gaussian"] for split in splits]
    for name, found in named.items():
        print(f"text {name:30} {json.dumps(over_seeds(found))[:170]}", flush=True)
    predictors = {name: over_seeds(found) for name, found in named.items()}
    return {"splits": SPLITS, "predictors": predictors, "relative_loss": gained, "at_admission": at_admission(sample)}


def at_admission(sample: Examples) -> dict[str, object]:
    """CPU microseconds of one prediction as a server makes it, by characters of the prompt, and the model's KiB."""
    prompts = sample.requests.prompt
    assert prompts is not None
    text, took = "\n".join(prompts), {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        train(sample, LengthTrainingSettings()).save(path)
        lengths = LengthAtAdmission(path, sample.tasks)
        for chars in CHARS:
            each = []
            for start in range(0, 50 * 997, 997):
                prompt = text[start : start + chars]
                began = time.process_time()
                lengths.quantiles(sample.tasks[-1], arrival_s=0.0, prompt_tokens=chars // 4, prompt=prompt)
                each.append((time.process_time() - began) * 1e6)
            took[f"{chars} characters"] = round(float(np.median(each)), 1)
        return {"cpu_us": took, "model_kib": round(path.stat().st_size / 1024)}


def cost(trace: Trace, sample: Examples) -> dict[str, object]:
    """Microseconds per request, median of repeats: mean, p50 and p90 of what remains."""
    known = examples(trace, np.arange(2000))
    plain = train(known, LengthTrainingSettings())
    worded = train(sample, LengthTrainingSettings())
    predictors: dict[str, tuple[Callable[[], Estimator], KnownRequests]] = {}
    asked = KnownRequests(
        class_id=np.zeros(1000, np.int64),
        output_tokens=np.arange(1000) % 300,
        max_tokens=np.full(1000, NO_CAP),
        prompt_tokens=trace.prompt_tokens[:1000],
        stated_tokens=trace.output_tokens[:1000],
        seq=np.arange(1000),
        task=trace.task[:1000],
    )
    for name, make in (("empirical", EmpiricalLength), ("gaussian", GaussianLength), ("oracle, error 10 %", oracle)):
        made = fed(make(), known)
        predictors[name] = (lambda made=made: made, asked)
    predictors["learned, first look"] = (lambda: LearnedLength(plain), asked)
    predictors["learned from text, first look"] = (lambda: LearnedLength(worded), sample.requests.take(np.arange(1000)))
    seen = LearnedLength(plain)
    predictors["learned, seen before"] = (lambda: seen, asked)
    return {
        name: {f"of {n}": timed_us(make, requests.take(np.arange(n))) for n in (1, 1000)}
        for name, (make, requests) in predictors.items()
    }


def oracle() -> Estimator:
    return OracleLength(0.1)


def timed_us(make: Callable[[], Estimator], requests: KnownRequests) -> float:
    n, times = requests.class_id.size, []
    for _ in range(31 if n == 1 else 5):
        predictor = make()
        began = time.perf_counter()
        Predictions.of(predictor.rest(requests))
        times.append((time.perf_counter() - began) * 1e6 / n)
    return round(float(np.median(times)), 1)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("SLOSERVE_DATA"))
    parser.add_argument("--predictors", nargs="+", choices=RIVALS, default=list(RIVALS))
    given = parser.parse_args()
    folder, path = given.folder, RESULTS / "length_accuracy.json.gz"
    sample = text_examples(folder / TEXT_SAMPLE)
    before = read_json(path).get("traces", {})
    traces = {
        name: on_trace(folder / f"{name}.csv.gz", given.predictors, before.get(name, {})) for name in TRACES.values()
    }
    result: dict[str, object] = {
        "window_requests": WINDOW,
        "seeds": SEEDS,
        "start_requests": START,
        "training": asdict(LengthTrainingSettings()),
        "cost_us_per_request": cost(read_trace(folder / f"{AZURE_CONV}.csv.gz"), sample),
        "traces": traces,
        "text": on_text(sample),
    }
    print(json.dumps(result["cost_us_per_request"], indent=1))
    write_result(path, result)
    print(path)


if __name__ == "__main__":
    main()
