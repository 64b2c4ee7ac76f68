"""How many engines replace G of which some compute prompts and the others decode? EconoServe's Fig. 12, virtual time.

Usage: SLOSERVE_DATA=FOLDER python -m benchmarks.policies.econo_engines [--quick] [--out FILE]

The split: p engines compute prompts (stock vLLM, one output token each), the KV goes over a link, d = G - p engines
decode (stock vLLM). Against it N engines that do both, by stock vLLM or by a policy. Everywhere requests go to the
engines in turn. The split is offered the rate at which its goodput (requests that meet their SLO, per second) is
highest, for p = G / 2 as in the paper and for the best p; then the least N is sought whose goodput at that rate is no
lower. ``engines`` is N, ``exact`` the same with goodput interpolated from N - 1 to N (of nothing at 0). Rates are
multiples (``load``) of what one stock engine completes of the same seed's requests, since windows of a trace differ
twofold; attainment is the mean over seeds. Runs are finite, equally long for all. Every engine is simulated; only
while the split's rate and ratio are sought, one decode engine stands for all. Predictors of lengths start cold.

``unequal`` is the paper's split of unequal devices: H100s compute prompts, A100s decode, and the engines that replace
them are A100s. Policies run with a server's defaults: ageing is on, planning is charged.

What the split gets for free, all in its favour: a prompt's KV takes no room while it waits for the link or for blocks
of its decode engine; each prompt engine has a link of its own, which serves one prompt after another and hinders no
step; decode engines take in any number of prompts a step, and who is evicted there is not computed again
(``evictions`` a request). What it does not get: engines chosen by queue, other parallelism.

Writes results/econo_engines.json.gz; ``--quick`` writes nothing. A case whose trace is absent is left out.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.core.errors import ConfigError
from sloserve.core.goodput import attainment
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import Experiment, capacity_rps
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.experiments import experiment_flags
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.run_name import STOCK

SEEDS = (0, 1, 2)
ENGINES = (8,)
WAYS = ("stock", "edf", "sjf:length=oracle", "econo", "econo:length=oracle", "auto")
LINKS = {"400 GB/s": 400e9, "100 Gb/s": 12.5e9}
"""Like NVLink, with which the split's rate and ratio are chosen, and the paper's Ethernet; bytes/s."""
CASES = {"econo-sharegpt": 1.0, "econo-azure-conv": 1.0}
"""Row of the experiments' registry, and the load of a decode engine at which the search for rates starts."""
UNEQUAL = {"econo-sharegpt": (4, 8)}
"""Engines of the paper's unequal split that compute prompts, and that decode."""
PROMPTS_FASTER = 989.0 / 312.0
"""An H100 than an A100: dense BF16 TFLOPS of their data sheets. Not measured."""
REQUESTS = 160
"""Requests that one engine is offered at load 1."""
STEP = 1.12
MOST_STEPS = 12
"""From one rate to the next, and how far from the first the search goes."""


@dataclass(frozen=True)
class Offered:
    """What comes to all engines together. load: in multiples of what one stock engine completes.

    total: engines of the split; so many as it needs requests are what the capacity is measured on.
    """

    total: int
    load: float


@dataclass(frozen=True)
class DecodeOnly:
    """Step times where prompts come with their KV: what vLLM takes for a prompt is a sequence's next token."""

    latency: StepLatency

    def step_s(self, load: StepLoad) -> float:
        return self.latency.step_s(
            StepLoad(
                decode_seqs=load.decode_seqs + load.num_prefills,
                decode_context_tokens=load.decode_context_tokens + load.prefill_tokens,
            )
        )


@dataclass(frozen=True)
class Faster:
    """Step times of a device that computes so many times as fast."""

    latency: StepLatency
    times: float

    def step_s(self, load: StepLoad) -> float:
        return self.latency.step_s(load) / self.times


def serve(
    engine: EngineSettings, profile: Profile, requests: list[WorkloadRequest], config: dict[str, Any] | None = None
) -> RunLog:
    """One run of the engine model."""
    return ModelEngine(engine, profile, config, planning_costs=planning_costs()).run(requests)


class EngineCase:
    """A workload on its engine, and runs of it. prompts_faster: of a split, the devices that compute prompts."""

    def __init__(self, row: str, prompts_faster: float = 1.0) -> None:
        flags = experiment_flags(row) | {"load": None, "rps": "1", "policy": ",".join(WAYS)}
        self.capacity_rps = cache(self._capacity_rps)
        self.experiment: Experiment = build_experiment(SimulateOptions(**flags))
        self.profile, self.engine = self.experiment.profile, self.experiment.engine
        assert self.experiment.slos is not None
        self.classes = self.experiment.slos.table.as_config()
        self.prompts = lru_cache(maxsize=2 * len(SEEDS))(self._prompts)
        self.decode_engine = replace(
            self.engine, max_num_batched_tokens=self.engine.max_num_seqs * self.engine.max_model_len
        )
        latency = self.profile.latency
        self.decode_profile = self.profile.model_copy(update={"latency": DecodeOnly(latency)})
        self.prompt_profile = self.profile.model_copy(update={"latency": Faster(latency, prompts_faster)})

    def _capacity_rps(self, total: int, seed: int) -> float:
        """What one stock engine completes of a seed's requests, all there at once."""
        wanted = self.experiment
        requests = wanted.workload.requests(total * REQUESTS, seed, 1e6, slos=wanted.slos)
        return capacity_rps(wanted, serve(self.engine, self.profile, requests))

    def requests(self, offered: Offered, seed: int) -> list[WorkloadRequest]:
        rps = offered.load * self.capacity_rps(offered.total, seed)
        wanted = self.experiment
        return wanted.workload.requests(round(offered.load * REQUESTS), seed, rps, slos=wanted.slos)

    def whole(self, way: str, engines: int, offered: Offered, seed: int) -> list[RequestLog]:
        """All requests on engines that compute prompts and decode."""
        config = None
        if way != STOCK:
            config = {"sloserve": {"policy": way, "seed": seed, **self.classes}}
        requests = self.requests(offered, seed)
        runs = [serve(self.engine, self.profile, requests[i::engines], config).requests for i in range(engines)]
        return [log for run in runs for log in run]

    def _prompts(self, prompt_engines: int, offered: Offered, seed: int) -> list[list[RequestLog]]:
        """What each prompt engine did with its requests, cut to one token."""
        requests = [replace(r, output_tokens=1, max_tokens=1) for r in self.requests(offered, seed)]
        return [
            serve(self.engine, self.prompt_profile, requests[i::prompt_engines]).requests for i in range(prompt_engines)
        ]

    def split(
        self, prompt_engines: int, decode_engines: int, offered: Offered, seed: int, link: str, simulated: int
    ) -> list[RequestLog]:
        """The requests of the first ``simulated`` decode engines, from arrival at a prompt engine to the last token."""
        done = self.prompts(prompt_engines, offered, seed)
        moved = sorted((pair for logs in done for pair in self._moved(logs, LINKS[link])), key=lambda pair: pair[0])
        originals = {r.request_id: r for r in self.requests(offered, seed)}
        runs = [self._decoded(moved[i::decode_engines], originals) for i in range(simulated)]
        return [log for run in runs for log in run]

    def _moved(self, logs: list[RequestLog], bytes_per_s: float) -> Iterable[tuple[float, RequestLog]]:
        """When each request's KV has come, over a link that serves them in the order in which prompts ended."""
        free_s = 0.0
        for log in sorted(logs, key=lambda log: log.finish_s or log.request.arrival_s):
            if log.finish_s is None:
                yield log.request.arrival_s, log
                continue
            seconds = log.request.prompt_tokens * self.profile.kv_bytes_per_token / bytes_per_s
            free_s = max(free_s, log.finish_s) + seconds
            yield free_s, log

    def _decoded(
        self, moved: list[tuple[float, RequestLog]], originals: dict[str, WorkloadRequest]
    ) -> list[RequestLog]:
        whole, parts = {}, []
        for at_s, log in moved:
            original = originals[log.request.request_id]
            tokens = original.prompt_tokens + 1
            whole[original.request_id] = replace(log, request=original)
            if log.outcome is Outcome.COMPLETED and original.output_tokens > 1 and tokens < self.engine.max_model_len:
                parts.append(
                    replace(original, arrival_s=at_s, prompt_tokens=tokens, output_tokens=original.output_tokens - 1)
                )
        for log in serve(self.decode_engine, self.decode_profile, parts).requests:
            first = whole[log.request.request_id]
            times_s = np.concatenate((first.token_times_s, log.token_times_s))
            whole[log.request.request_id] = replace(log, request=first.request, token_times_s=times_s)
        return list(whole.values())


class MeasuredCase:
    """Attainment of a case's splits and ways, a value for each seed, each run once."""

    def __init__(self, case: EngineCase, first_load: float) -> None:
        self.case, self.first_load = case, first_load
        self._usual: dict[str, float] = {}
        self.split = cache(self._split)
        self.whole = cache(self._whole)

    def _split(
        self, prompt_engines: int, decode_engines: int, offered: Offered, link: str, simulated: int
    ) -> tuple[tuple[float, ...], float]:
        """Attainment of each seed, and evictions a request."""
        runs = [self.case.split(prompt_engines, decode_engines, offered, seed, link, simulated) for seed in SEEDS]
        return attained(runs), mean(log.num_preemptions for run in runs for log in run)

    def _whole(self, way: str, engines: int, offered: Offered) -> tuple[float, ...]:
        return attained([self.case.whole(way, engines, offered, seed) for seed in SEEDS])

    def best_step(self, prompt_engines: int, decode_engines: int, first_step: int) -> tuple[float, int]:
        """The highest goodput of the split, in multiples of capacity, and at which step of the ladder of rates."""

        def goodput(step: int) -> float:
            if abs(step) > MOST_STEPS:
                return -math.inf
            offered = offered_to(prompt_engines + decode_engines, decode_engines, self.first_load, step)
            return offered.load * mean(self.split(prompt_engines, decode_engines, offered, next(iter(LINKS)), 1)[0])

        step = climb(goodput, first_step)
        return goodput(step), step

    def ratios(self, total: int, first_step: int) -> dict[int, tuple[float, int]]:
        """What ``best_step`` finds, by decode engines: for half of ``total``, and from there on to the best."""
        found: dict[int, tuple[float, int]] = {}

        def goodput(decode_engines: int) -> float:
            if not 0 < decode_engines < total:
                return -math.inf
            if decode_engines not in found:
                found[decode_engines] = self.best_step(total - decode_engines, decode_engines, first_step)
            return found[decode_engines][0]

        climb(goodput, total // 2)
        return found

    def needed(self, way: str, offered: Offered, wanted: float, guess: int) -> dict[str, Any]:
        """The least engines of ``way`` with that attainment, and what all that were tried attain."""
        tried: dict[int, tuple[float, ...]] = {}

        def reached(engines: int) -> float:
            if not engines:
                return 0.0
            tried[engines] = self.whole(way, engines, offered)
            return mean(tried[engines])

        engines = guess
        while reached(engines) < wanted:
            engines += 1
        while reached(engines - 1) >= wanted:
            engines -= 1
        below, above = reached(engines - 1), reached(engines)
        exact = engines - 1 + (wanted - below) / (above - below)
        return {"engines": engines, "exact": exact, "attainment": {str(n): tried[n] for n in sorted(tried)}}

    def rows(self, name: str, prompt_engines: int, decode_engines: int, step: int) -> list[dict[str, Any]]:
        """The split at a place of the ladder of rates, over each link, and the engines that each way needs instead."""
        total, rows = prompt_engines + decode_engines, []
        offered = offered_to(total, decode_engines, self.first_load, step)
        rps = [offered.load * self.case.capacity_rps(total, seed) for seed in SEEDS]
        for link in LINKS:
            split, evictions = self.split(prompt_engines, decode_engines, offered, link, decode_engines)
            ways = {
                way: self.needed(way, offered, mean(split), math.ceil(decode_engines * self._usual.get(way, 1.0)))
                for way in WAYS
            }
            self._usual = {way: of["exact"] / decode_engines for way, of in ways.items()}
            row = {
                "total": total,
                "split": name,
                "prompt_engines": prompt_engines,
                "decode_engines": decode_engines,
                "link": link,
                "load": offered.load,
                "rps": rps,
                "attainment": split,
                "goodput_rps": [of_one * ratio for of_one, ratio in zip(rps, split, strict=True)],
                "evictions": evictions,
                "ways": ways,
            }
            rows.append(row)
            show(self.case.experiment.workload.name, row)
        return rows


def offered_to(total: int, decode_engines: int, first_load: float, step: int) -> Offered:
    """Each decode engine's load is ``step`` places up or down the ladder from the first."""
    return Offered(total, first_load * STEP**step * decode_engines)


def attained(runs: list[list[RequestLog]]) -> tuple[float, ...]:
    return tuple(attainment(run).ratio or 0.0 for run in runs)


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def climb(value: Callable[[int], float], start: int) -> int:
    """The nearest place to ``start``, upwards if it rises there, from which ``value`` rises neither way."""
    for step in (1, -1):
        at = start
        while value(at + step) > value(at):
            at += step
        if at != start:
            return at
    return start


def compare(row: str, first_load: float) -> dict[str, Any]:
    """For each G the split as in the paper and at its best, and the engines that each way needs instead; then the
    unequal split.
    """
    case, step = EngineCase(row), 0
    measured, rows = MeasuredCase(case, first_load), []
    for total in ENGINES:
        found = measured.ratios(total, step)
        best = max(found, key=lambda decode_engines: found[decode_engines][0])
        for name, decode_engines in {"half": total // 2, "best": best}.items():
            step = found[decode_engines][1]
            rows += measured.rows(name, total - decode_engines, decode_engines, step)
    if row in UNEQUAL:
        unequal = MeasuredCase(EngineCase(row, PROMPTS_FASTER), first_load)
        rows += unequal.rows("unequal", *UNEQUAL[row], unequal.best_step(*UNEQUAL[row], 0)[1])
    return {"kv_blocks": case.engine.kv_blocks, "profile": case.profile.name, "rows": rows}


def show(name: str, row: dict[str, Any]) -> None:
    needed = ", ".join(f"{way} {of['engines']} ({of['exact']:.2f})" for way, of in row["ways"].items())
    print(
        f"{name} {row['prompt_engines']}+{row['decode_engines']} ({row['split']}, {row['link']}): "
        f"{mean(row['rps']):.1f}/s, attains {mean(row['attainment']):.3f}, "
        f"goodput {mean(row['goodput_rps']):.2f}; {needed}",
        flush=True,
    )


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_engines.json.gz")
    if quick:
        globals().update(SEEDS=(0,), ENGINES=(2,), WAYS=("stock", "econo"), MOST_STEPS=0)
        globals().update(CASES={"econo-sharegpt": 1.0}, REQUESTS=20, UNEQUAL={"econo-sharegpt": (1, 1)})
    result = {}
    for row, first_load in CASES.items():
        try:
            result[row] = compare(row, first_load)
        except ConfigError as error:
            print(f"left out: {error}")
    if out is None:
        return
    settings = {"seeds": SEEDS, "requests": REQUESTS, "rate_step": STEP, "links_bytes_per_s": LINKS}
    write_result(out, {**settings, "cases": result})


if __name__ == "__main__":
    main()
