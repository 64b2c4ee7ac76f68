"""A virtual engine that is held at so many requests, of which so many run, while its steps are timed.

Another request comes as one ends. The first ``WARM_UP`` steps fill the engine up and are not timed. Timed is thread CPU
time; between two steps the caches are filled with other data, as a server's other threads do.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.registry import parse_policy
from sloserve.sim.workloads.workload_registry import workload

PROFILE = "a100-opt-13b"
WORKLOAD = "reading-speed"
KV_BLOCKS = 60
"""A running request: so many run as may."""
FLUSH_BYTES = 64 * 2**20
WARM_UP = 60
"""Steps before, in which the engine fills up."""
CALLS = {"add": "add_request", "free": "_free_request"}
"""What vLLM calls once for each request."""
_STOCK: dict[str, Callable[..., Any]] = {}
"""vLLM's own methods, which each run times anew."""


class Stopwatch:
    """Thread CPU seconds of one step, by what it is spent on; a part within another counts for itself alone.

    tells_parts: whether parts are timed, which itself takes a microsecond or two for each, cold: what all of it takes
    is that of a step without.
    """

    def __init__(self) -> None:
        self.tells_parts = True
        self.spent: Counter[str] = Counter()
        self.calls: dict[str, list[float]] = {what: [] for what in CALLS}
        self._within: list[float] = []

    def times(self, what: str, call: Callable[..., Any], *, is_part: bool = False) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if is_part and not self.tells_parts:
                return call(*args, **kwargs)
            self._within.append(0.0)
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                alone = took - self._within.pop()
                self.spent[what] += alone
                if what in self.calls:
                    self.calls[what].append(alone)
                if self._within:
                    self._within[-1] += took

        return timed

    def times_vllm(self, names: Iterable[str] = ("schedule", "update_from_output")) -> None:
        """Times these methods of vLLM's own scheduler as ``vllm``."""
        from vllm.v1.core.sched.scheduler import Scheduler

        for name in names:
            _STOCK.setdefault(name, getattr(Scheduler, name))
            setattr(Scheduler, name, self.times("vllm", _STOCK[name]))

    def clear(self) -> None:
        self.spent.clear()
        for calls in self.calls.values():
            calls.clear()


class _AllTimed(Exception):
    """All steps were timed."""


def engine_of(policy: str, running: int, **more: Any) -> Any:
    """An engine of the profile in which so many requests may run. more: further settings of ours."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    profile = load_profile(PROFILE)
    tokens = max(profile.max_num_batched_tokens, 4 * running)
    settings = EngineSettings.of_profile(
        profile, kv_blocks=KV_BLOCKS * running, max_num_seqs=running, max_num_batched_tokens=tokens
    )
    name, options = parse_policy(policy)
    classes = workload(WORKLOAD).slos.table.as_config()
    engine = VirtualEngine(
        settings,
        profile,
        {"sloserve": {"policy": name, "policy_options": options, "profile": PROFILE, **classes, **more}},
    )
    if engine.scheduler.planner is not None:
        engine.scheduler.planner._cost = None  # plans are timed, as on a real engine, not charged virtual time
    return engine


def requests_to_come(most: int, seed: int) -> Iterator[Any]:
    """Enough to hold an engine with; when each arrives is for ``hold`` to say."""
    return iter(workload(WORKLOAD).requests(most, seed, 1e6))


def hold(
    engine: Any,
    clock: Stopwatch,
    coming: Iterator[Any],
    requests: int,
    steps: int,
    stepped: Callable[[int], None],
    *,
    hot: bool = False,
) -> None:
    """Runs the engine for the warm-up and so many steps with always so many of the requests that come.

    stepped: called after each schedule() with the number of the step, which is timed if that is not negative; what
        ``clock`` counted is the step's own, and is forgotten afterwards.
    hot: leaves the caches as the step left them.
    """
    flushed, number, began_s = np.zeros(FLUSH_BYTES // 8), -WARM_UP, engine._clock.now_s()

    def after_step(_output: Any) -> None:
        nonlocal number
        stepped(number)
        if not hot:
            flushed.sum()
        clock.clear()
        number += 1
        if number >= steps:
            raise _AllTimed
        arrival_s = engine._clock.now_s() - began_s
        missing = requests - len(engine.scheduler.requests) - len(engine._arriving)
        for request in itertools.islice(coming, missing):
            engine._arriving.append((arrival_s, replace(request, arrival_s=arrival_s)))

    engine.on_step = after_step
    try:
        engine.run([replace(request, arrival_s=0.0) for request in itertools.islice(coming, requests)])
    except _AllTimed:
        pass
