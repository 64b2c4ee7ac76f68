"""A fault in any line of ours, while vLLM waits for it: nobody is lost, and it is counted.

Faults are raised by a trace function, at lines: so they come between any two changes that our code makes. Lines are
found by a run without faults; each then gets its turn. What must not fail, since nobody would catch it, is listed.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.containment import MOST_KINDS

pytestmark = pytest.mark.vllm

ROUNDS = 12
PACKAGE = Path(__file__).parents[2] / "sloserve"
FILES = frozenset(
    str(path)
    for room in ("engine/*.py", "vllm_plugin/engine/*.py", "core/rows.py", "lso/plan.py", "lso/aged_turns.py")
    for path in PACKAGE.glob(room)
    if path.name not in ("containment.py", "__init__.py")
)
UNCAUGHT = {
    # vLLM's entry points, which consist of contained calls and of vLLM's own; preemption by vLLM's own method.
    "schedule", "add_request", "update_from_output", "_preempt_request", "_free_request", "preempt",
    # The virtual engine's, not the plugin's.
    "on_preemption.<locals>.preempt_and_notify",
}  # fmt: skip
"""Our code that runs outside of a Containment: it calls containments and vLLM."""

Site = tuple[str, int]


class Fault(Exception):
    pass


class Tracer:
    """Calls ``at_line`` for each line of ours that runs inside a Containment; notes the names of what runs outside."""

    def __init__(self, at_line: Callable[[Site], None]) -> None:
        from sloserve.engine.containment import Containment
        from sloserve.vllm_plugin.virtual.engine import VirtualEngine

        self._at_line = at_line
        self._inside: CodeType = Containment.__call__.__code__
        self._engine = {VirtualEngine._dispatch.__code__, VirtualEngine._apply.__code__, VirtualEngine._add.__code__}
        self.outside: set[str] = set()

    def start(self, *args: Any) -> None:
        """Also to be called after a fault, which ends tracing."""
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        caller: FrameType | None = frame.f_back
        by_vllm = False
        while caller is not None:
            if caller.f_code is self._inside:
                return self._line
            if caller.f_code in self._engine:
                break
            by_vllm |= caller.f_code.co_name == "schedule" or caller.f_code.co_filename.endswith("async_scheduler.py")
            caller = caller.f_back
        if by_vllm:
            self.outside.add(frame.f_code.co_qualname.removeprefix("ContainedScheduler."))
        return None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._at_line((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def workload() -> list[WorkloadRequest]:
    rng = np.random.default_rng(5)
    return [
        WorkloadRequest(
            f"r{i}",
            0.02 * (i // 2),
            int(rng.integers(1, 90)),
            int(rng.integers(1, 40)),
            DEFAULT_CLASSES.slo(str(rng.choice(DEFAULT_CLASSES.names)), Targets(ttft_s=0.2, e2e_s=1.0)),
            priority=int(rng.integers(3)),
        )
        for i in range(36)
    ]


def serve(monkeypatch: pytest.MonkeyPatch, tracer: Tracer) -> Any:
    """Everybody gets all tokens, and vLLM is left as it was."""
    from vllm.lora.request import LoRARequest

    from sloserve.engine import policies_in_force as module
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.planning_cost import constant_cost
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    monkeypatch.setattr(module, "PLAN_AGAIN_S", 0.02)
    monkeypatch.setattr(module, "MOST_PLAN_AGAIN_S", 0.02)
    classes = {c.name: {"rank": c.rank, "aged_after_s": 0.2} for c in DEFAULT_CLASSES}
    section = {"policy": "chaos:illegal=0", "shadow_policy": "edf", "profile": "h100-llama3-8b", "classes": classes}
    profile = load_profile("h100-llama3-8b")
    size = EngineSettings(kv_blocks=16, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=192)
    engine = VirtualEngine(size, profile, {"sloserve": section}, planning_costs=constant_cost(500.0))
    scheduler = engine.scheduler
    scheduler.lora_config = type("Config", (), {"max_loras": 2})
    stock = scheduler.add_request

    def add_request(request: Any) -> None:
        number = int(request.request_id.removeprefix("r"))
        if number >= 24:
            request.lora_request = LoRARequest(f"l{number % 3}", 1 + number % 3, "/nowhere")
        stock(request)

    scheduler.add_request = add_request
    engine.on_step = tracer.start
    requests = workload()
    try:
        tracer.start()
        log = engine.run(requests)
    finally:
        sys.settrace(None)

    assert [r.request for r in log.requests] == requests
    assert [(r.outcome, r.token_times_s.size) for r in log.requests] == [
        (Outcome.COMPLETED, r.output_tokens) for r in requests
    ]
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 16
    assert not scheduler.requests and not scheduler.running and not scheduler.waiting
    assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs) == (48, 4)
    assert scheduler.scheduler_config.long_prefill_token_threshold == 0
    assert scheduler.planner is None or not len(scheduler.planner.table.rows)
    return log


@pytest.fixture(scope="module")
def sites() -> list[tuple[Site, int]]:
    """Each line that a run without faults comes to, and how often."""
    hits: Counter[Site] = Counter()

    def note(site: Site) -> None:
        hits[site] += 1

    tracer = Tracer(note)
    with pytest.MonkeyPatch.context() as patch:
        log = serve(patch, tracer)
    assert log.counters["evictions"] and log.counters["paused_steps"] and log.counters["reused_plans"]
    assert not log.counters.get("internal_errors") and not log.counters.get("plan_errors")
    assert tracer.outside <= UNCAUGHT, "this can take the engine down: call it through a Containment"
    return sorted(hits.items())


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_fault_in_any_line_loses_nobody(
    round_: int, sites: list[tuple[Site, int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    due = {site: 1 + hits // (2 + i % 3) for i, (site, hits) in enumerate(sites) if i % ROUNDS == round_}
    raised: list[Site] = []

    def fail(site: Site) -> None:
        if site in due:
            due[site] -= 1
            if due[site] <= 0:
                del due[site]
                raised.append(site)
                raise Fault(f"{site[0]}:{site[1]}")

    log = serve(monkeypatch, Tracer(fail))
    counters = log.counters
    assert len(raised) > 10
    assert counters["internal_errors"] > 0
    assert counters["plans"] > 20, "planning did not begin again"
    said = [r for r in caplog.records if r.getMessage().startswith("sloserve failed") and r.exc_info]
    assert all(isinstance(r.exc_info[1], Fault) for r in said if r.exc_info)
    assert 10 < len(said) <= 2 * (MOST_KINDS + 1), "each kind has its traceback, of planning and of counting"
