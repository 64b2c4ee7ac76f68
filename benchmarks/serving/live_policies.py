"""What do policies bring on a real GPU, and how well did the simulator predict it?

Usage: python -m benchmarks.serving.live_policies [options] MODEL [flags of `vllm serve`]
       python -m benchmarks.serving.live_policies --predict [--out FOLDER]

One engine, started once. Its step times are measured first, as `sloserve profile` does. Then the scheduler is
exchanged from run to run: stock vLLM's, and ours with each policy, serve the same requests, which come in real time at
a multiple of stock's capacity (in the simulator, with the profile just measured). Front end and sockets are left out.
KV is scarce: the schedulers have ``--kv-blocks`` of the engine's blocks. Weights may be made up (``--load-format
dummy``): a reply ends at its length in the workload, which no policy knows, since its last token is replaced by an end
of sequence.

Before these runs, streams that only decode are held under each scheduler in turn, to see what a step loses.

Written to --out: profile.yaml and what it was fitted to, runs.json.gz (each request's token times), steps.json.
``--predict`` needs no GPU: it simulates the same runs with the profiles of ``--known`` (names, paths, or ``measured``),
and writes results/live_policies.json.gz, with the error of each shipped profile on the steps that were measured.
"""

import argparse
import gc
import gzip
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, provenance, write_result
from sloserve.core.clock import SystemClock
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.measurements import Measurements
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.estimator.step_time.profiling import ProfileSettings, make_profile, measure_grid, write_profile
from sloserve.sim.experiment import Experiment, Point, measured_points, run_experiment, task_of
from sloserve.sim.report.summary import summarize
from sloserve.sim.workloads.workload_registry import workload
from sloserve.wire.xargs import to_xargs

POLICIES = "stock,auto,edf:step_budget=true,sjf:step_budget=true,andes,qlm,econo,fcfs"
HELD_POLICIES = ("stock", "fcfs", "auto")
HELD_STREAMS = (32, 256)
HELD_STEPS, HELD_ROUNDS, HELD_PROMPT = 60, 3, 64
SHIPPED, MEASURED = "h100-llama3-8b", "measured"
FIGURES = ("slo_attainment", "output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "qoe_mean")
END, OTHER = 2, 3
"""Ids of the token that ends a reply, and of one that does not."""


class LiveEngine:
    """The core of a started engine, whose scheduler is exchanged. kv_blocks: of the engine's, those it may use."""

    def __init__(self, core: Any, vllm_config: Any, kv_blocks: int) -> None:
        stock = core.scheduler
        self.core, self._config, self._stock_class = core, vllm_config, type(stock)
        assert self._stock_class.__module__.startswith("vllm."), self._stock_class
        self._all_blocks = stock.kv_cache_config.num_blocks
        self._kv_blocks = kv_blocks
        self._arguments = {
            "vllm_config": vllm_config,
            "structured_output_manager": core.structured_output_manager,
            "block_size": stock.block_size,
            "hash_block_size": stock.hash_block_size,
            "log_stats": False,
        }
        self._kv_config = stock.kv_cache_config
        self._numbers = 0

    def use(self, config: dict[str, Any] | None, *, all_blocks: bool = False) -> None:
        """A fresh scheduler: stock's own for ``None``, else ours with vLLM's additional config."""
        from sloserve.vllm_plugin import SLOScheduler

        assert not self.core.scheduler.has_requests() and not self.core.batch_queue
        blocks = self._all_blocks if all_blocks else self._kv_blocks + 1  # vLLM keeps one for itself
        self._config.cache_config.num_gpu_blocks = blocks
        self._config.additional_config = config or {}
        chosen: Any = self._stock_class if config is None else SLOScheduler
        self.core.scheduler = chosen(kv_cache_config=replace(self._kv_config, num_blocks=blocks), **self._arguments)
        gc.collect()
        gc.freeze()

    def serve(self, items: Sequence[WorkloadRequest], settings: EngineSettings) -> RunLog:
        """Serves the requests, each when it comes."""
        return _Serving(self, items, settings).run()

    def held_step_s(self, streams: int, extra: dict[str, Any]) -> float:
        """Mean seconds of a step while so many streams decode."""
        for _ in range(streams):
            self.add(f"held-{self._numbers}", HELD_PROMPT, 4 * HELD_STEPS, SystemClock().now_s(), extra)
        requests = self.core.scheduler.requests
        while sum(request.num_output_tokens > 0 for request in requests.values()) < streams:
            self.step()
        began_s, steps = time.perf_counter(), 0
        while steps < HELD_STEPS:
            steps += self.step()
        took_s = time.perf_counter() - began_s
        self.core.abort_requests(list(requests))
        while self.core.scheduler.has_requests() or self.core.batch_queue:
            self.step()
        return took_s / HELD_STEPS

    def add(
        self, request_id: str, prompt_tokens: int, max_tokens: int, arrival_s: float, extra: dict[str, Any] | None
    ) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._numbers += 1
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, extra_args=extra)
        params.update_from_generation_config({}, eos_token_id=END)
        rng = np.random.default_rng(self._numbers)
        self.core.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=rng.integers(OTHER, 250, prompt_tokens).tolist(),
                sampling_params=params,
                pooling_params=None,
                arrival_time=arrival_s,
            )
        )

    def step(self) -> bool:
        _, executed = self.core.step_fn()
        self.core.post_step(executed)
        return bool(executed)


class _Serving:
    """One run: stands between the core and its scheduler, ends replies at their lengths, and notes when tokens come."""

    def __init__(self, engine: LiveEngine, items: Sequence[WorkloadRequest], settings: EngineSettings) -> None:
        self._engine, self._items = engine, items
        self._front_end = VirtualFrontEnd(settings, None)
        self._scheduler = engine.core.scheduler
        self._times: dict[str, list[float]] = {}
        self._wanted = {item.request_id: item.output_tokens for item in items}
        self._preemptions: dict[str, int] = {}
        self._steps: list[tuple[float, int, int, int]] = []
        self._schedule, self._update = self._scheduler.schedule, self._scheduler.update_from_output
        self._scheduler.schedule, self._scheduler.update_from_output = self._scheduling, self._updating
        self._began_s = 0.0
        from sloserve.vllm_plugin.engine import compat

        compat.on_preemption(self._scheduler, self._preempted)

    def _preempted(self, request_id: str) -> None:
        self._preemptions[request_id] = self._preemptions.get(request_id, 0) + 1

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _scheduling(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        running, waiting = self._scheduler.get_request_counts()
        if output.total_num_scheduled_tokens:
            self._steps.append((self._now_s(), output.total_num_scheduled_tokens, running, waiting))
        return output

    def _updating(self, scheduler_output: Any, runner_output: Any) -> Any:
        requests, before = self._scheduler.requests, []
        for request_id, tokens in zip(runner_output.req_ids, runner_output.sampled_token_ids, strict=True):
            request = requests.get(request_id)
            if request is not None and len(tokens):
                count = request.num_output_tokens
                tokens[-1] = END if count + 1 >= self._wanted[request_id] else OTHER
                before.append((request, count))
        outputs = self._update(scheduler_output, runner_output)
        now_s = self._now_s()
        for request, count in before:
            self._times[request.request_id].extend([now_s] * (request.num_output_tokens - count))
        return outputs

    def run(self) -> RunLog:
        core, pending, refused = self._engine.core, list(reversed(self._items)), set[str]()
        self._began_s, epoch_s = time.perf_counter(), SystemClock().now_s()
        while pending or self._scheduler.has_requests() or core.batch_queue:
            while pending and pending[-1].arrival_s <= self._now_s():
                item = pending.pop()
                if not self._front_end.takes(item, epoch_s + item.arrival_s):
                    refused.add(item.request_id)
                    continue
                self._times[item.request_id] = []
                most = self._front_end.max_tokens(item)
                self._wanted[item.request_id] = min(item.output_tokens, most)
                arrived_s = epoch_s + item.arrival_s
                self._engine.add(item.request_id, item.prompt_tokens, most, arrived_s, to_xargs(item.slo, None))
            if not self._scheduler.has_requests() and not core.batch_queue:
                time.sleep(max(pending[-1].arrival_s - self._now_s(), 0.0) if pending else 0.0)
                continue
            self._engine.step()
        steps = np.array(self._steps)
        log = StepLog(
            end_s=steps[:, 0],
            duration_s=np.diff(steps[:, 0], prepend=0.0),
            scheduled_tokens=steps[:, 1].astype(np.int64),
            running=steps[:, 2].astype(np.int64),
            waiting=steps[:, 3].astype(np.int64),
            kv_utilization=np.zeros(len(steps)),
        )
        counters = dict(getattr(self._scheduler, "slo_counters", {}))
        return RunLog([self._log_of(item, refused) for item in self._items], log, counters=counters)

    def _log_of(self, item: WorkloadRequest, refused: set[str]) -> RequestLog:
        times = self._times.get(item.request_id, [])
        ended = len(times) == self._wanted[item.request_id]
        outcome = Outcome.REJECTED if item.request_id in refused else Outcome.COMPLETED if ended else Outcome.LOST
        return RequestLog(item, outcome, np.array(times), self._preemptions.get(item.request_id, 0))


def experiment_of(given: argparse.Namespace, profile: Profile, facts: dict[str, int], loads: bool) -> Experiment:
    """The runs as an experiment of the simulator. loads: the load is to be measured; else ``given.rps`` says it."""
    engine = EngineSettings.of_profile(profile, kv_blocks=given.kv_blocks, **facts)
    return Experiment(
        workload=workload(given.workload),
        profile=profile,
        engine=engine,
        policies=tuple(given.policies.split(",")),
        seeds=tuple(range(given.seeds)),
        max_requests=given.requests,
        loads=(given.load,) if loads else None,
        rps=None if loads else (1.0,),
        engine_kind="model",
    )


def measure(engine: Any, model: str, given: argparse.Namespace, out: Path) -> Profile:
    """The profile of a started :class:`ProfileEngine`."""
    from sloserve.vllm_plugin.profile_engine import link_bandwidth_gb_per_s

    settings = ProfileSettings(
        grid=given.grid, repetitions=given.repetitions, max_context_tokens=given.max_context_tokens
    )
    measured = Measurements.open(out / "profile.jsonl", engine.facts("live", model))
    measured.add_start({**engine.start_times_s, "link_bandwidth_gb_per_s": link_bandwidth_gb_per_s()})
    measure_grid(engine, settings.scenarios(engine.limits), settings.repetitions, measured)
    return write_profile(out / "profile.yaml", make_profile(measured, settings.form))


def order(policies: Sequence[str], points: Sequence[Point]) -> Iterator[tuple[str, Point]]:
    """Stock and the first of ours at each seed, then the others: what matters most comes first."""
    for point in points:
        for policy in policies[:2]:
            yield policy, point
    for point in points:
        for policy in policies[2:]:
            yield policy, point


def live(given: argparse.Namespace, flags: list[str]) -> None:
    """Measures and serves; every file is written as soon as there is something in it."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    began_s = time.perf_counter()

    def left_s() -> float:
        return float(given.budget_s - (time.perf_counter() - began_s))

    from sloserve.vllm_plugin.server import serve

    given.out.mkdir(parents=True, exist_ok=True)
    args = serve.prepare(flags, {})
    from sloserve.vllm_plugin.profile_engine import ProfileEngine, hardware

    engine = ProfileEngine(args)
    model = given.name or str(args.model)
    print(f"started in {engine.start_times_s['start_s']:.1f} s, {left_s():.0f} s left", flush=True)
    profile = measure(engine, model, given, given.out)
    print(f"profile, {left_s():.0f} s left: {profile.error}", flush=True)
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    facts = {name: getattr(engine.limits, name) for name in names}
    experiment = experiment_of(given, profile, facts, loads=given.rps == 0.0)
    points = measured_points(experiment) if given.rps == 0.0 else [Point(s, given.rps, None) for s in experiment.seeds]
    core = LiveEngine(engine.core, engine.config, given.kv_blocks)
    about = provenance() | {"device": hardware(1), "model": model, "flags": flags[1:], "engine": facts}
    about |= {key: value for key, value in vars(given).items() if key not in ("out", "predict", "quick")}

    steps = held_steps(core, HELD_STREAMS if not given.quick else (4,), facts["max_num_seqs"])
    (given.out / "steps.json").write_text(json.dumps(about | {"held": steps}, indent=1) + "\n", encoding="utf-8")
    print(f"held steps, {left_s():.0f} s left", flush=True)
    rows, longest_s = [], 0.0
    for policy, point in order(experiment.policies, points):
        if left_s() < 1.2 * longest_s:
            print(f"no time for {policy}, seed {point.seed}", flush=True)
            continue
        before_s = left_s()
        task = task_of(experiment, policy, point)
        core.use(task.config)
        log = core.serve(task.requests, task.engine)
        longest_s = max(longest_s, before_s - left_s())
        record = summarize(log, policy=policy, seed=point.seed, rps=point.rps, load=point.load)
        shown = "  ".join(f"{key} {record[key]:.4g}" for key in FIGURES if record[key] is not None)
        print(f"{policy} seed {point.seed}: {shown}, {left_s():.0f} s left", flush=True)
        rows.append(_raw(log, policy, point))
        with gzip.open(given.out / "runs.json.gz", "wt", encoding="utf-8") as file:
            json.dump(about | {"runs": rows}, file)
    engine.shutdown()


def held_steps(core: LiveEngine, streams_of: Sequence[int], most: int) -> list[dict[str, Any]]:
    """Mean time of a step of streams that decode, by scheduler, round and number of streams."""
    rows = []
    for streams in (s for s in streams_of if s <= most):
        for number in range(HELD_ROUNDS + 1):
            for policy in HELD_POLICIES[:: 1 if number % 2 else -1]:
                core.use(None if policy == "stock" else {"sloserve": {"policy": policy}}, all_blocks=True)
                extra = None if policy == "stock" else {"slo_ttft_ms": 2000, "slo_tds": 8}
                step_s = core.held_step_s(streams, extra)
                if number:  # the first warms up
                    rows.append({"streams": streams, "round": number, "policy": policy, "step_ms": step_s * 1e3})
    return rows


def _raw(log: RunLog, policy: str, point: Point) -> dict[str, Any]:
    steps = log.steps
    return {
        "policy": policy,
        "seed": point.seed,
        "rps": point.rps,
        "load": point.load,
        "requests": [
            [one.request.request_id, one.outcome.value, one.num_preemptions, [round(t, 5) for t in one.token_times_s]]
            for one in log.requests
        ],
        "steps": np.round(np.column_stack((steps.end_s, steps.scheduled_tokens, steps.running)), 5).tolist(),
        "counters": log.counters,
    }


def predict(out: Path, known: Sequence[str]) -> dict[str, Any]:
    """The runs of ``out`` in figures, beside what the simulator says of the same requests with each known profile."""
    with gzip.open(out / "runs.json.gz", "rt", encoding="utf-8") as file:
        found = json.load(file)
    given = argparse.Namespace(
        **{key: found[key] for key in ("kv_blocks", "workload", "policies", "seeds", "requests")}
    )
    profiles = {name: load_profile(str(out / "profile.yaml") if name == MEASURED else name) for name in known}
    experiments = {
        name: experiment_of(given, profile, found["engine"], loads=False) for name, profile in profiles.items()
    }
    predicted = {name: _predicted(experiment, found["runs"]) for name, experiment in experiments.items()}
    rows = []
    for run in found["runs"]:
        point = Point(run["seed"], run["rps"], run["load"])
        task = task_of(next(iter(experiments.values())), run["policy"], point)
        items = {item.request_id: item for item in task.requests}
        logs = [
            RequestLog(items[request_id], Outcome(outcome), np.array(times), preemptions)
            for request_id, outcome, preemptions, times in run["requests"]
        ]
        end_s, tokens, running = np.array(run["steps"]).T
        nothing = np.zeros(end_s.size)
        log = RunLog(logs, StepLog(end_s, np.diff(end_s, prepend=0.0), tokens, running, nothing, nothing))
        rows.append({"by": "live", "rps": run["rps"], **_figures(log, run)})
        rows += [{"by": name, "rps": run["rps"], **of[run["policy"], run["seed"]]} for name, of in predicted.items()]
    about = {key: found[key] for key in found if key != "runs"}
    held = json.loads((out / "steps.json").read_text(encoding="utf-8"))["held"]
    errors = {name: step_errors(profile, out) for name, profile in profiles.items() if name != MEASURED}
    return about | {"runs": rows, "held": held, "step_errors": errors}


def step_errors(profile: Profile, out: Path) -> dict[str, dict[str, float]]:
    """How far the profile is from steps that were measured: those that only decode, and prompts that begin alone."""
    kinds: dict[str, list[float]] = {"decode": [], "prompts": [], "prompts of 512 tokens or more": []}
    with (out / "profile.jsonl").open(encoding="utf-8") as file:
        for scenario in map(json.loads, file):
            by_step: dict[str, list[tuple[StepLoad, float]]] = {}
            for name, load, duration_s in scenario.get("steps", ()):
                by_step.setdefault(name, []).append((_load(load), duration_s))
            for name, steps in by_step.items():
                load = steps[len(steps) // 2][0]
                ratio = profile.step_s(load) / float(np.median([duration_s for _, duration_s in steps])) - 1.0
                if name == "decode":
                    kinds["decode"].append(ratio)
                elif not load.decode_seqs and name == "wave 0 step 0":
                    kinds["prompts"].append(ratio)
                    if load.prefill_tokens >= 512:
                        kinds["prompts of 512 tokens or more"].append(ratio)
    return {
        kind: {"steps": len(ratios), "mape": float(np.mean(np.abs(ratios))), "mean": float(np.mean(ratios))}
        for kind, ratios in kinds.items()
    }


def _load(values: Sequence[int]) -> StepLoad:
    """As the measurements' file has it."""
    prefill_tokens, num_prefills, decode_seqs, decode_context_tokens, pairs = values
    return StepLoad(prefill_tokens, num_prefills, decode_seqs, decode_context_tokens, pairs)


def _predicted(experiment: Experiment, runs: Sequence[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    figures = {}
    for run in runs:
        point = Point(run["seed"], run["rps"], run["load"])
        of_one = replace(experiment, policies=(run["policy"],), rps=(run["rps"],), seeds=(run["seed"],))
        for one in run_experiment(of_one, points=[point]):
            figures[run["policy"], run["seed"]] = _figures(one.log, run)
    return figures


def _figures(log: RunLog, run: dict[str, Any]) -> dict[str, Any]:
    record = summarize(log, policy=run["policy"], seed=run["seed"], rps=run["rps"])
    kept = ("policy", "seed", *FIGURES, "preemptions_per_request", "duration_s", "lost", "slo_attainment_by_class")
    return {key: record[key] for key in kept}


def main() -> None:
    parser = parser_for(
        __doc__,
        out=Path("live"),
        name="",
        workload="chat-batch-mix",
        policies=POLICIES,
        kv_blocks=3000,
        requests=400,
        seeds=2,
        load=1.5,
        rps=0.0,
        budget_s=250.0,
        grid="full",
        repetitions=3,
        max_context_tokens=65536,
        predict=False,
        known=SHIPPED,
        quick=False,
    )
    given, flags = parser.parse_known_args()
    if given.predict:
        write_result(RESULTS / "live_policies.json.gz", predict(given.out, given.known.split(",")))
    else:
        live(given, flags)


if __name__ == "__main__":
    main()
