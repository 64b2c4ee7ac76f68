"""Run vLLM's engine in this process, have it compute chosen steps, and time them, for ``sloserve profile``.

The engine is the real one, with stock's scheduler and whatever executor its flags ask for; what runs in a server around
it (front end, detokenisation, network) is left out. The requests choose a step: first requests that are left decoding,
then prompts, under a budget of tokens a step that makes their chunks. A step's load is read off vLLM's own
SchedulerOutput, its time by the rule of :class:`~sloserve.estimator.step_time.timer.StepTimer`, so that it is right
with asynchronous scheduling too. A step is scheduled when ``schedule()`` is entered, and its output is there when
``update_from_output()`` has returned.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import vllm
from rich.console import Console
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.request import Request

from sloserve.core.errors import EngineError
from sloserve.core.progress_bar import progress
from sloserve.estimator.step_time.grid import EngineCapacity, Scenario, Wave
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.measurements import Measurements, TimedStep
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.profiling import (
    ProfileSettings,
    doubts,
    make_profile,
    measure_grid,
    scores,
    write_profile,
)
from sloserve.estimator.step_time.timer import StepTimer
from sloserve.vllm_plugin.engine.step_load import step_load
from sloserve.vllm_plugin.kv_facts import KVFacts

DECODE_STEPS = 12
"""Equal steps that a scenario times; their median is one repetition."""

_MAX_STEPS = 100_000
_COPY_BYTES, _COPIES = 1 << 28, 5


class ProfileEngine:
    """Starts the engine that ``args``, as for ``vllm serve``, describe.

    Prefix caching is off, so that a prompt is computed however often it was seen.

    Args:
        now_s: The clock of the steps. Wall time, but for an engine of one thread in this process on a machine that does
            other work too, where the process's CPU time is what the step would take.
    """

    def __init__(self, args: argparse.Namespace, now_s: Callable[[], float] = time.perf_counter) -> None:
        args.model = args.model_tag or args.model
        args.enable_prefix_caching = False
        engine_args = EngineArgs.from_cli_args(args)
        self._now_s = now_s
        self.start_times_s: dict[str, float] = {}
        began_s = time.perf_counter()
        self.config = engine_args.create_engine_config()
        with _timed_load(self.config, self.start_times_s):
            self.core: Any = EngineCore(self.config, Executor.get_class(self.config), log_stats=False)
        self.start_times_s["start_s"] = time.perf_counter() - began_s
        self._scheduler = self.core.scheduler
        self._budget: int = self._scheduler.max_num_scheduled_tokens
        self._kv = KVFacts(self._scheduler)
        self._timed: list[tuple[StepLoad, float]] = []
        self._decode_s: dict[int, float] = {}  # of a step that only decodes, by its sequences
        self._rng = np.random.default_rng(0)
        self._vocabulary = self.config.model_config.get_vocab_size()
        self._serial = 0
        self._watch()

    @property
    def limits(self) -> EngineCapacity:
        """Limits of this engine."""
        return EngineCapacity(
            max_num_batched_tokens=self._budget,
            max_num_seqs=self._scheduler.max_num_running_reqs,
            max_model_len=self.config.model_config.max_model_len,
            kv_capacity_tokens=self._kv.capacity_tokens,
            decode_tokens=1 + int(self._scheduler.num_spec_tokens),
        )

    def facts(self, name: str, model: str) -> dict[str, Any]:
        """Return the profile's fields that no step shows. They stay the same when the same engine is started again."""
        parallel = self.config.parallel_config.tensor_parallel_size
        limits = self.limits
        return {
            "name": name,
            "hardware": hardware(parallel),
            "model": f"{model}, {str(self.config.model_config.dtype).removeprefix('torch.')}{self._drafts}",
            "tensor_parallel": parallel,
            "vllm_version": vllm.__version__,
            **self._kv.fields(parallel),
            "max_model_len": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "async_scheduling": self.core.batch_queue is not None,
        }

    @property
    def _drafts(self) -> str:
        """Text on what drafts, which is part of each step that decodes; empty without drafts."""
        drafts = self.config.speculative_config
        return "" if drafts is None else f", {drafts.num_speculative_tokens} drafts a step ({drafts.method})"

    def measure(self, scenario: Scenario) -> list[TimedStep]:
        """Measure the scenario's steps, each timed once; the engine is empty before and after.

        Raises: EngineError when the engine does not compute the steps that were asked for.
        """
        try:
            return [*self._decode(scenario), *self._waves(scenario)]
        finally:
            self._scheduler.max_num_scheduled_tokens = self._budget
            self.core.abort_requests(list(self._scheduler.requests))
            self._run_until(lambda: not self._scheduler.has_requests() and not self.core.batch_queue)

    def shutdown(self) -> None:
        """End the engine and give its memory back."""
        self.core.shutdown()

    def _decode(self, scenario: Scenario) -> Iterator[TimedStep]:
        seqs = scenario.decode_seqs
        if not seqs:
            return
        ids = [self._add(scenario.context_tokens, max_tokens=None) for _ in range(seqs)]
        requests = [self._scheduler.requests[i] for i in ids]
        self._run_until(lambda: all(request.num_output_tokens for request in requests))
        self._timed.clear()
        self._run_until(lambda: len(self._timed) > DECODE_STEPS)
        # The first may have been scheduled with a prompt still in it.
        steps = [(x, s) for x, s in self._timed[1:] if x.decode_seqs == seqs and not x.prefill_tokens]
        if steps:
            self._decode_s[seqs] = median(s for _, s in steps)
        for load, duration_s in steps:
            yield TimedStep("decode", load, duration_s)

    def _waves(self, scenario: Scenario) -> Iterator[TimedStep]:
        for i, wave in enumerate(scenario.waves):
            self._timed.clear()
            decodes = self.limits.decode_tokens * scenario.decode_seqs
            self._scheduler.max_num_scheduled_tokens = min(self._budget, decodes + wave.step_tokens)
            with nullcontext() if scenario.decode_seqs else self._one_in_flight():
                self._serve(wave)
            steps = [(load, s) for load, s in self._timed if load.prefill_tokens]
            for j, (load, duration_s) in enumerate(steps):
                if load.decode_seqs == scenario.decode_seqs:
                    yield TimedStep(f"wave {i} step {j}", load, duration_s)
            self._scheduler.max_num_scheduled_tokens = self._budget

    def _serve(self, wave: Wave) -> None:
        ids = [self._add(wave.prompt_tokens, max_tokens=1) for _ in range(wave.prompts)]
        self._run_until(lambda: not any(i in self._scheduler.requests for i in ids))

    @contextmanager
    def _one_in_flight(self) -> Iterator[None]:
        """Schedule no step before the output of the last is there, except for the stages of a pipeline."""
        self._run_until(lambda: not self.core.batch_queue)
        most = self.core.batch_queue_size
        self.core.batch_queue_size = self.config.parallel_config.pipeline_parallel_size
        try:
            yield
        finally:
            self.core.batch_queue_size = most

    def _add(self, prompt_tokens: int, max_tokens: int | None) -> str:
        self._serial += 1
        request_id = f"profile-{self._serial}"
        params = SamplingParams(
            max_tokens=max_tokens or self.config.model_config.max_model_len - prompt_tokens,
            temperature=0.0,
            ignore_eos=True,
        )
        params.update_from_generation_config({}, eos_token_id=None)
        self.core.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=self._rng.integers(0, self._vocabulary, prompt_tokens).tolist(),
                sampling_params=params,
                pooling_params=None,
                arrival_time=0.0,
            )
        )
        return request_id

    def _run_until(self, done: Any) -> None:
        for _ in range(_MAX_STEPS):
            if done():
                return
            _, executed = self.core.step_fn()
            self.core.post_step(executed)
        raise EngineError(f"the engine made {_MAX_STEPS} steps without computing the requested ones")

    def _watch(self) -> None:
        """Wrap the scheduler's two calls, so that each step's load and time are recorded."""
        scheduler, timer = self._scheduler, StepTimer()
        schedule, update, bitmask = scheduler.schedule, scheduler.update_from_output, scheduler.get_grammar_bitmask
        loads, launched_s = deque[StepLoad](), 0.0

        def timed_schedule(*args: Any, **kwargs: Any) -> Any:
            began_s = self._now_s()
            output = schedule(*args, **kwargs)
            loads.append(step_load(output))
            timer.scheduled(loads[-1], began_s)
            return output

        def after_launch(*args: Any, **kwargs: Any) -> Any:
            nonlocal launched_s
            launched_s = self._now_s()
            return bitmask(*args, **kwargs)

        def timed_update(*args: Any, **kwargs: Any) -> Any:
            outputs = update(*args, **kwargs)
            load = loads.popleft()
            decodes = 0 if load.prefill_tokens else load.decode_seqs
            step = timer.output(self._now_s(), launched_s, self._decode_s.get(decodes, 0.0))
            if step is not None:
                self._timed.append(step)
            return outputs

        scheduler.schedule, scheduler.update_from_output = timed_schedule, timed_update
        scheduler.get_grammar_bitmask = after_launch


def profile_model(
    args: argparse.Namespace,
    settings: ProfileSettings,
    out: Path,
    raw: Path,
) -> Profile:
    """Measure the engine that ``args`` describe into ``raw``, continue earlier measurements there, and write ``out``.

    Raises: ConfigError when ``raw`` is about another engine, or the engine is too small to fit anything to.
    """
    console = Console()
    # The name under which it is served, if it is stated: the tag of builtin:tiny is a folder.
    model = args.served_model_name[0] if args.served_model_name else args.model_tag or args.model
    engine = ProfileEngine(args)
    try:
        measured = Measurements.open(raw, engine.facts(out.stem, model))
        measured.add_start({**engine.start_times_s, "link_bandwidth_gb_per_s": link_bandwidth_gb_per_s()})
        with progress("scenarios", console) as bar:
            measure_grid(
                engine,
                settings.scenarios(engine.limits),
                settings.repetitions,
                measured,
                on_progress=bar.update,
            )
    finally:
        engine.shutdown()
    profile = write_profile(out, make_profile(measured, settings.form))
    for form, found in scores(measured.steps()).items():
        console.print(f"{form:<10} R^2 {found.r2:.4f}, MAPE {found.mape_percent:.1f} % on {found.steps} held-out steps")
    console.print(f"wrote {out}, from {raw}", soft_wrap=True, highlight=False)
    doubt = doubts(profile)
    if doubt is not None:
        console.print(f"warning: {doubt}", soft_wrap=True, highlight=False)
    return profile


def hardware(tensor_parallel: int) -> str:
    """Return the devices of one engine, as text."""
    if torch.cuda.is_available():
        return f"{tensor_parallel}x {torch.cuda.get_device_name()}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{tensor_parallel}x CPU {names[0] if names else 'of unknown name'}, {torch.get_num_threads()} threads"


def link_bandwidth_gb_per_s() -> float:
    """Return the bandwidth from host to device, pinned, in 1e9 bytes/s: the best of a few copies.

    Without a device it is the bandwidth from memory to memory.
    """
    device = torch.cuda.is_available()
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=device)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda" if device else "cpu")
    best_s = float("inf")
    for _ in range(_COPIES):
        began_s = time.perf_counter()
        target.copy_(source)
        if device:
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return round(_COPY_BYTES / best_s / 1e9, 1)


@contextmanager
def _timed_load(config: Any, into: dict[str, float]) -> Iterator[None]:
    """Record as load_s how long the worker loads the weights; nothing where workers are processes of their own."""
    worker = config.parallel_config.worker_cls
    worker = resolve_obj_by_qualname(worker) if isinstance(worker, str) else worker
    load = worker.load_model

    def timed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return load(*args, **kwargs)
        finally:
            into["load_s"] = time.perf_counter() - began_s

    worker.load_model = timed
    try:
        yield
    finally:
        worker.load_model = load
