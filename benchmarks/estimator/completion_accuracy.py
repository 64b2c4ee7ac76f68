"""How well are waiting and completion times predicted (QLM, Fig. 3 and 17), and are 90 % of them within their p90?

Writes benchmarks/results/completion_accuracy/{result.json,accuracy.png}. Two questions, in virtual time, on vLLM's own
scheduler. Depth: a queue that is there at once is predicted at time 0, from the mean and spread of lengths of other
requests of the same workload; against it, Eq. 2 with the throughput of a run of ShareGPT, as QLM profiles once, and
with that of the workload itself. Coverage: requests arrive at a rate near capacity, and each is predicted when it
arrives, from the queue as it is and the lengths that ended or run; half-way the workload changes.
"""

import logging
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.estimator.arrival_queue import ExpectedArrivals
from benchmarks.estimator.completion_times import Completion, CompletionModel, TokenWaiting, token_moments
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.conformal import ConformalQuantiles
from sloserve.estimator.length import remaining
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.virtual.engine_settings import EngineSettings
from sloserve.vllm_plugin.virtual.engine import VirtualEngine
from sloserve.workloads.arrivals import Poisson, generate
from sloserve.workloads.length_models import IndependentLengths, alpaca, sharegpt, truncated_lognormal, uniform

SEEDS = (0, 1, 2)
LONG = IndependentLengths(truncated_lognormal(600.0, 16, 3200), truncated_lognormal(500.0, 19, 991))
MEGA = IndependentLengths(uniform(1800, 2200), truncated_lognormal(30.0, 8, 120))
# name: lengths, requests, slots, profile
BURSTS = {
    "sharegpt": (sharegpt(), 700, 64, "h100-llama3-8b"),
    "alpaca, deep": (alpaca(), 2000, 16, "h100-llama3-8b"),
    "mega prompts": (MEGA, 400, 256, "h100-llama3-8b"),
    "scarce KV cache": (sharegpt(), 200, 256, "a100-opt-13b-12gb"),
}
COVERAGE = {"load 0.9": 0.9, "load 1.1": 1.1}
COVERAGE_REQUESTS = 900
TRANSITION = 150
"""Backlog after the change that are counted apart: the lengths that ended lately are still the old ones."""
SLOTS, WINDOW = 64, 300
BUDGET = 2048
RELATIVE_ERROR = 0.03


def workload(lengths: IndependentLengths, n: int, seed: int, rate_per_s: float | None) -> list[WorkloadRequest]:
    trace = generate("accuracy", Poisson(), lengths, n, seed, rate_per_s or 1.0)
    slo = DEFAULT_CLASSES.slo(None, Targets())
    arrivals = trace.arrival_s if rate_per_s else np.zeros(n)
    rows = zip(arrivals.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return [WorkloadRequest(f"r{i}", a, p, o, slo) for i, (a, p, o) in enumerate(rows)]


def engine_for(profile: Profile, slots: int) -> VirtualEngine:
    length = min(profile.max_model_len, 4096)
    limits = EngineSettings(profile.kv_blocks, profile.block_size, slots, BUDGET, length)
    return VirtualEngine(limits, profile, None)


def r2(actual: np.ndarray, predicted: np.ndarray) -> float:
    return float(1.0 - np.sum((actual - predicted) ** 2) / np.sum((actual - actual.mean()) ** 2))


def columns(
    n: int, prompt: object = 0.0, context: object = 0.0, mean: object = 1.0, sd: object = 0.0
) -> RequestLengths:
    return RequestLengths(*(np.broadcast_to(np.asarray(x, np.float64), (n,)) for x in (prompt, context, mean, sd)))


def served(lengths: IndependentLengths, n: int, slots: int, profile: Profile, seed: int):  # type: ignore[no-untyped-def]
    requests = workload(lengths, n, seed, None)
    log = engine_for(profile, slots).run(requests)
    first, last = np.array([[r.first_token_s, r.finish_s] for r in log.requests]).T
    return requests, first, last, log


def throughput(requests: list[WorkloadRequest], last_s: np.ndarray) -> float:
    """Output tokens per second between the 10th and the 90th percentile of completions."""
    order = np.argsort(last_s)
    inner = order[len(order) // 10 : len(order) * 9 // 10]
    tokens = sum(requests[i].output_tokens for i in inner)
    return float(tokens / (last_s[inner[-1]] - last_s[inner[0]]))


def bursts() -> tuple[dict[str, object], dict[str, np.ndarray]]:
    result: dict[str, object] = {}
    shown: dict[str, np.ndarray] = {}
    for name, (lengths, n, slots, profile_name) in BURSTS.items():
        profile = load_profile(profile_name)
        size = EngineSize(slots, BUDGET, profile.kv_blocks * profile.block_size, steps_ahead=0.0)
        known = np.array([r.output_tokens for r in workload(lengths, 4000, 1000, None)])
        profiled, _, profiled_last, profiled_log = served(lengths, n, slots, profile, 999)
        theta = throughput(profiled, profiled_last)
        decode_s = float(np.median(profiled_log.steps.duration_s))
        own = borrowed = TokenWaiting(theta, decode_s, decode_s)
        if "sharegpt" not in name and "KV" not in name:
            chats, _, chats_last, _ = served(sharegpt(), 200, slots, profile, 999)
            borrowed = TokenWaiting(throughput(chats, chats_last), decode_s, decode_s)
        rows: dict[str, list[float]] = {}
        for seed in SEEDS:
            requests, first, last, log = served(lengths, n, slots, profile, seed)
            prompts = np.array([r.prompt_tokens for r in requests], np.float64)
            waiting = columns(n, prompts, 0.0, known.mean(), known.std())
            model = CompletionModel(profile, size)
            predictions: dict[str, Completion] = {
                "work": model.predict(columns(0), waiting, relative_error=RELATIVE_ERROR),
                "eq2_same_workload": own.predict(waiting),
                "eq2_sharegpt": borrowed.predict(waiting),
            }
            for kind, done in predictions.items():
                rows.setdefault(f"{kind}_r2_waiting", []).append(r2(first, done.ttft.mean_s))
                rows.setdefault(f"{kind}_r2_completion", []).append(r2(last, done.e2e.mean_s))
            done = predictions["work"]
            rows.setdefault("p90_coverage_ttft", []).append(float(np.mean(first <= done.ttft.quantile_s(0.9))))
            rows.setdefault("p90_coverage_e2e", []).append(float(np.mean(last <= done.e2e.quantile_s(0.9))))
            group = float(last.max() / done.e2e.last_quantile_s(0.9))
            rows.setdefault("group_last_over_predicted_p90", []).append(group)
            rows.setdefault("evictions_per_request", []).append(sum(r.num_preemptions for r in log.requests) / n)
            if seed == SEEDS[0]:
                shown |= {f"{name}/actual": first, f"{name}/p90": done.ttft.quantile_s(0.9)}
                shown |= {f"{name}/{k}": p.ttft.mean_s for k, p in predictions.items()}
        result[name] = {"requests": n, "slots": slots, "profile": profile_name, "per_seed": rows} | {
            key: float(np.mean(values)) for key, values in rows.items()
        }
        print(name, {k: round(float(np.mean(v)), 4) for k, v in rows.items()}, flush=True)
    return result, shown


class Watched:
    """An engine whose requests are each predicted when they arrive, from what ended lately."""

    def __init__(self, profile: Profile, requests: list[WorkloadRequest]) -> None:
        self.engine = engine_for(profile, SLOTS)
        size = EngineSize(SLOTS, BUDGET, profile.kv_blocks * profile.block_size)
        self._model = CompletionModel(profile, size)
        self._outputs = {r.request_id: r.output_tokens for r in requests}
        self._lengths = EmpiricalLength(window=WINDOW)
        self._ended = 0
        self._arrived: deque[tuple[float, int]] = deque(maxlen=100)
        self._seen: dict[str, int] = {}
        self._serial = 0
        self.predicted: dict[str, tuple[float, float, float]] = {}
        """TTFT p90, e2e p90, e2e median, from arrival"""
        scheduler = self.engine.scheduler
        add = scheduler.add_request

        def add_request(request):  # type: ignore[no-untyped-def]
            add(request)
            self._arrive(scheduler, request)

        scheduler.add_request = add_request

    def _arrive(self, scheduler, request) -> None:  # type: ignore[no-untyped-def]
        present = scheduler.requests
        for request_id in [i for i in self._seen if i not in present]:
            self._lengths.observe(0, self._outputs[request_id], seq=self._seen.pop(request_id))
            self._ended += 1
        self._seen[request.request_id] = self._serial = self._serial + 1
        self._arrived.append((request.arrival_time, request.num_prompt_tokens))
        if self._ended < 50:
            return
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        so_far = np.array([r.num_output_tokens for r in running] + [0], np.int64)
        same = np.zeros(so_far.size, np.int64)
        seq = np.array([self._seen[r.request_id] for r in running], np.int64)
        self._lengths.running(same[:-1], so_far[:-1], seq)
        rest = self._lengths.rest(remaining.KnownRequests(class_id=same, output_tokens=so_far, max_tokens=same + 4096))
        mean, sd = token_moments(rest)
        prefill = [max(r.num_prompt_tokens - r.num_computed_tokens, 0) for r in running]
        context = [r.num_computed_tokens for r in running]
        times, prompts = np.array(self._arrived).T
        rate_per_s = (len(times) - 1) / max(times[-1] - times[0], 1e-9)
        coming = ExpectedArrivals(rate_per_s, float(prompts.mean()), float(mean[-1]), float(sd[-1]))
        queue = columns(len(waiting), [r.num_prompt_tokens for r in waiting], 0.0, mean[-1], sd[-1])
        # The mean length is itself known from so many requests only.
        error = float(np.hypot(RELATIVE_ERROR, sd[-1] / mean[-1] / min(self._ended, WINDOW) ** 0.5))
        done = self._model.predict(columns(len(running), prefill, context, mean[:-1], sd[:-1]), queue, coming, error)
        e2e = done.e2e
        found = (done.ttft.quantile_s(0.9)[-1], e2e.quantile_s(0.9)[-1], e2e.quantile_s(0.5)[-1])
        self.predicted[request.request_id] = found


def calibrated_hits(
    arrived_s: np.ndarray, predicted_s: np.ndarray, actual_s: np.ndarray, known_after_s: np.ndarray
) -> np.ndarray:
    """Whether each was within its p90 once this is calibrated on line by the outcomes known at its arrival."""
    calibration = ConformalQuantiles((0.9,))
    promises, hits = {}, np.zeros(arrived_s.size)
    events = [(t, 1, i) for i, t in enumerate(arrived_s)]
    events += [(t, 0, i) for i, t in enumerate(arrived_s + known_after_s)]
    for _, arrives, i in sorted(events):
        if arrives:
            promises[i] = calibration.promise(float(predicted_s[i]))
            quantiles = promises[i].quantiles
            hits[i] = actual_s[i] <= (predicted_s[i] if quantiles is None else quantiles[0.9])
        else:
            calibration.observe(promises[i], float(actual_s[i]))
    return hits


def coverage() -> tuple[dict[str, object], dict[str, np.ndarray]]:
    profile = load_profile("h100-llama3-8b")
    half = COVERAGE_REQUESTS // 2
    capacity = {}
    for lengths in (sharegpt(), LONG):
        _, _, last, _ = served(lengths, 400, SLOTS, profile, 999)
        ordered = np.sort(last)
        capacity[str(lengths)] = 320 / (ordered[360] - ordered[40])
    result: dict[str, object] = {}
    shown: dict[str, np.ndarray] = {}
    for name, load in COVERAGE.items():
        within: dict[str, list[float]] = {}
        for seed in SEEDS:
            before = workload(sharegpt(), half, seed, load * capacity[str(sharegpt())])
            after = workload(LONG, half, seed + 50, load * capacity[str(LONG)])
            start_s = before[-1].arrival_s
            requests = before + [
                replace(r, request_id=f"s{i}", arrival_s=r.arrival_s + start_s) for i, r in enumerate(after)
            ]
            watched = Watched(profile, requests)
            log = watched.engine.run(requests)
            rows = []
            for i, r in enumerate(log.requests):
                if r.request.request_id in watched.predicted:
                    arrived_s = r.request.arrival_s
                    times_s = (arrived_s, r.first_token_s - arrived_s, r.finish_s - arrived_s)
                    rows.append((i, *times_s, *watched.predicted[r.request.request_id]))
            at, arrived, first, last, ttft, e2e, median = np.array(rows, np.float64).T
            ttft_hits, e2e_hits, median_hits = first <= ttft, last <= e2e, last <= median
            calibrated = {
                "ttft_p90_calibrated": calibrated_hits(arrived, ttft, first, first),
                "e2e_p90_calibrated": calibrated_hits(arrived, e2e, last, last),
            }
            phases = {
                "before": at < half,
                "transition": (at >= half) & (at < half + TRANSITION),
                "after": at >= half + TRANSITION,
            }
            for phase, chosen in phases.items():
                raw = {"ttft_p90": ttft_hits, "e2e_p90": e2e_hits, "e2e_p50": median_hits}
                for kind, hit in (raw | calibrated).items():
                    within.setdefault(f"{kind}_{phase}", []).append(float(hit[chosen].mean()))
            if seed == SEEDS[0]:
                shown |= {f"{name}/at": at, f"{name}/ttft": ttft_hits, f"{name}/e2e": e2e_hits}
                shown |= {f"{name}/{k.replace('_p90', '')}": hit for k, hit in calibrated.items()}
        result[name] = {"per_seed": within} | {key: float(np.mean(values)) for key, values in within.items()}
        print(name, {k: round(float(np.mean(v)), 3) for k, v in within.items()}, flush=True)
    return result, shown


def plot(path: Path, depth: dict[str, np.ndarray], hits: dict[str, np.ndarray]) -> None:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for axis, name in zip(axes, ("sharegpt", "alpaca, deep", "mega prompts", "scarce KV cache"), strict=False):
        actual = depth[f"{name}/actual"]
        place = np.arange(actual.size)
        axis.plot(place, actual, color="black", lw=2, label="simulated")
        for kind, colour in (("work", "#0072B2"), ("eq2_same_workload", "#E69F00"), ("eq2_sharegpt", "#D55E00")):
            axis.plot(place, depth[f"{name}/{kind}"], color=colour, lw=1.2, ls="--", label=kind.replace("_", " "))
        axis.fill_between(place, depth[f"{name}/work"], depth[f"{name}/p90"], color="#0072B2", alpha=0.2)
        axis.set(title=name, xlabel="place in the queue", ylabel="time to first token, s", ylim=(0, actual.max() * 1.5))
    axes[0].legend(fontsize=7, frameon=False)
    for axis, name in zip(axes[4:], COVERAGE, strict=True):
        for kind, colour in (
            ("ttft", "#56B4E9"),
            ("e2e", "#E69F00"),
            ("ttft_calibrated", "#0072B2"),
            ("e2e_calibrated", "#D55E00"),
        ):
            hit = np.convolve(hits[f"{name}/{kind}"], np.ones(100) / 100, mode="valid")
            axis.plot(hits[f"{name}/at"][99:], hit, color=colour, label=kind.replace("_", " "))
        axis.axvline(COVERAGE_REQUESTS / 2, color="grey", ls=":")
        axis.axhspan(0.85, 0.95, color="#009E73", alpha=0.15)
        axis.set(title=f"{name}: within p90, last 100", xlabel="request; dotted: workload changes", ylim=(0, 1.02))
        axis.legend(fontsize=7, frameon=False)
    FigureCanvasAgg(figure).print_figure(path, dpi=110, metadata={"Software": None})


def main() -> None:
    logging.disable(logging.WARNING)
    quick = "--quick" in sys.argv
    if quick:
        globals().update(SEEDS=(0,), COVERAGE_REQUESTS=400, TRANSITION=60, WINDOW=100)
        BURSTS.update({k: (x, min(n, 120), min(s, 16), p) for k, (x, n, s, p) in BURSTS.items()})
    depth, queues = bursts()
    covered, hits = coverage()
    if quick:
        return
    settings = {"seeds": SEEDS, "relative_error": RELATIVE_ERROR, "token_budget": BUDGET, "slots": SLOTS}
    folder = RESULTS / "completion_accuracy"
    write_result(folder / "result.json", {"settings": settings, "depth": depth, "coverage": covered})
    plot(folder / "accuracy.png", queues, hits)


if __name__ == "__main__":
    main()
