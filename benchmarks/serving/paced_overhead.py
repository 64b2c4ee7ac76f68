"""What do tokens/s lose to our scheduler at a GPU's pace, and where does each microsecond of a step go?

Usage: python -m benchmarks.serving.paced_overhead [--rounds 6] [--streams 1 32 128 256] [--quick]

The cores of real engines, stock vLLM and one of each policy, take turns at rounds of so many streams that decode at
once. Their worker waits as long as a GPU computes (``PacedWorker``): at the steps of h100-llama3-8b, and at steps of
about 3 ms; with the next step launched while one runs (async), and without (sync). With ``waiting``, a quarter more
requests wait for a place, so that there is something to plan. All else of a step is real; front end and sockets are
left out, which have a process of their own.

Times are of the clock on the wall, and a step is the sum of its parts: schedule(), update_from_output(), the worker's
own code, the wait for the worker, and the rest of the core. Writes results/paced_overhead.json.gz: means over rounds in
µs a step, and tokens/s over stock's, paired by round with 95 % intervals.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.scaled_profile import scaled_profile

POLICIES = ("fcfs", "edf", "auto")
PROFILE = "h100-llama3-8b"
FAST = 0.29
"""Of the profile's times: 32 requests decode in 3 ms."""
STREAMS = (1, 32, 128, 256)
PROMPT = 16
STEPS = 100
"""Timed in each round, all streams in decode."""
PARTS = ("schedule", "update", "worker", "wait", "rest")
SLO_OF_ALL = {"slo_ttft_ms": 2000, "slo_tds": 8}
"""A reader's: kept by every engine here."""


class Engine:
    """The core of an engine in this process. parts: wall seconds of its steps so far, by what they were spent on."""

    def __init__(self, policy: str, profile: str, streams: int, *, is_async: bool) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from sloserve.vllm_plugin.server.tiny_model import resolve_model

        section = {"profile": profile} | ({} if policy == "stock" else {"policy": policy})
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=resolve_model("builtin:tiny"),
                worker_cls=f"benchmarks.paced_worker.{'' if is_async else 'Sync'}PacedWorker",
                scheduler_cls=None if policy == "stock" else "sloserve.vllm_plugin.SLOScheduler",
                additional_config={"sloserve": section},
                max_num_seqs=streams,
                max_num_batched_tokens=8192,
                max_model_len=2048,
                enable_prefix_caching=False,
                enforce_eager=True,
            )
        )
        self.policy = policy
        self.core = self._engine.engine_core.engine_core
        self.parts = dict.fromkeys(PARTS, 0.0)
        self._numbers = itertools.count()
        self._within: list[float] = []
        scheduler, executor = self.core.scheduler, self.core.model_executor
        for owner, name, part in (
            (scheduler, "schedule", "schedule"),
            (scheduler, "update_from_output", "update"),
            (executor, "execute_model", "worker"),
            (executor, "sample_tokens", "worker"),
            (executor.driver_worker.worker, "wait_until", "wait"),
        ):
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        self._step = self._timed("rest", self.core.step_fn)

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            began_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                took_s = time.perf_counter() - began_s
                self.parts[part] += took_s - self._within.pop()
                if self._within:
                    self._within[-1] += took_s

        return timed

    def round(self, streams: int, waiting: int) -> tuple[float, dict[str, float]]:
        """Tokens/s of ``streams`` requests in decode while ``waiting`` others wait, and µs a step by part."""
        from vllm import SamplingParams

        extra = None if self.policy == "stock" else dict(SLO_OF_ALL)
        params = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.0, extra_args=extra, detokenize=False)
        for _ in range(streams + waiting):
            prompt = {"prompt_token_ids": [5] * PROMPT}
            self._engine.add_request(str(next(self._numbers)), prompt, params)
        requests = self.core.scheduler.requests
        while sum(request.num_output_tokens > 0 for request in requests.values()) < streams:
            self._step()
        self.parts = dict.fromkeys(PARTS, 0.0)
        began_s, steps = time.perf_counter(), 0
        while steps < STEPS:
            _, executed = self._step()
            steps += executed
        took_s = time.perf_counter() - began_s
        found = {part: seconds / STEPS * 1e6 for part, seconds in self.parts.items()}
        self.core.abort_requests(list(requests))
        while self.core.scheduler.has_requests() or self.core.batch_queue:
            self._step()
        return streams * STEPS / took_s, found | {"step": took_s / STEPS * 1e6}

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def cell(engines: Sequence[Engine], streams: int, waiting: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each engine, the first stock's."""
    rates: dict[str, list[float]] = {engine.policy: [] for engine in engines}
    parts: dict[str, list[dict[str, float]]] = {engine.policy: [] for engine in engines}
    for number in range(rounds + 1):
        for engine in engines[:: 1 if number % 2 else -1]:
            rate, spent = engine.round(streams, waiting)
            if number:  # the first warms up
                rates[engine.policy].append(rate)
                parts[engine.policy].append(spent)
    rows = []
    for policy, found in rates.items():
        row: dict[str, Any] = {"policy": policy, "tokens_per_s": float(np.mean(found))}
        if policy != "stock":
            ratios = np.array(found) / np.array(rates["stock"])
            interval = bootstrap((ratios,), np.mean, rng=np.random.default_rng(0)).confidence_interval
            row |= {"over_stock": float(ratios.mean()), "over_stock_95": [float(interval.low), float(interval.high)]}
        row["us"] = {part: round(float(np.mean([one[part] for one in parts[policy]])), 1) for part in parts[policy][0]}
        rows.append(row)
    return rows


def main() -> None:
    parser = parser_for(__doc__, rounds=6, quick=False)
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    given = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        profiles = {"h100": PROFILE, "3 ms": str(scaled_profile(PROFILE, FAST, Path(folder)))}
        streams_of = (32,) if given.quick else given.streams
        for streams, mode, (steps, profile) in itertools.product(streams_of, ("sync", "async"), profiles.items()):
            names = ("stock", *given.policies)
            engines = [Engine(policy, profile, streams, is_async=mode == "async") for policy in names]
            for waiting in sorted({0, streams // 4}):
                about = {"steps": steps, "mode": mode, "streams": streams, "waiting": waiting}
                for row in cell(engines, streams, waiting, 2 if given.quick else given.rounds):
                    rows.append(about | row)
                    ratio = f"{row['over_stock']:.3f}" if "over_stock" in row else ""
                    print(*about.values(), row["policy"], ratio, row["us"], sep="  ", flush=True)
            for engine in engines:
                engine.close()
    if not given.quick:
        settings = {"profile": PROFILE, "fast": FAST, "rounds": given.rounds, "steps": STEPS}
        write_result(RESULTS / "paced_overhead.json.gz", {"settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
