"""A small workload in, every decision of a policy out: a change of behaviour shows as a diff of ``logs/``.

``pytest tests/golden --update-golden`` writes the logs anew (the option is known only where this folder is named). A
line is a step that decided something: its number, who was admitted, evicted by the plan, preempted by vLLM for want of
KV, paused, and the order of service; what is empty is left out.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from tests.conformance import golden_forms

pytestmark = pytest.mark.vllm

LOGS = Path(__file__).parent / "logs"
SETTINGS = EngineSettings(kv_blocks=28, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256)


def small_workload() -> list[WorkloadRequest]:
    """24 requests in half a second on four slots: chats, jobs with a lax deadline, and some without any."""
    rng = np.random.default_rng(5)
    kinds = (
        ("interactive", Targets(ttft_s=0.3, tpot_s=0.03)),
        ("batch", Targets(e2e_s=6.0)),
        ("background", Targets()),
    )
    return [
        WorkloadRequest(
            f"{name[:5]}{i}",
            round(float(arrival_s), 3),
            int(rng.integers(10, 100)),
            int(rng.integers(5, 60)),
            DEFAULT_CLASSES.slo(name, targets),
            priority=DEFAULT_CLASSES[name].rank,
        )
        for i, arrival_s in enumerate(np.sort(rng.uniform(0.0, 0.5, 24)))
        for name, targets in [kinds[int(rng.integers(3))]]
    ]


class Recorder:
    """Notes each step's decisions; a step that only goes on as before leaves no line."""

    def __init__(self, engine: Any) -> None:
        self._scheduler = engine.scheduler
        self._evicted: list[str] = []
        self._preempted: list[str] = []
        self._last: tuple[str, ...] = ()
        self._step = 0
        self.lines: list[str] = []
        stock = self._scheduler._preempt_request

        # A plan evicts without a time stamp, vLLM preempts with one.
        def preempt(request: Any, timestamp: float | None, **how: Any) -> None:
            (self._evicted if timestamp is None else self._preempted).append(request.request_id)
            stock(request, timestamp, **how)

        self._scheduler._preempt_request = preempt
        engine.on_step = self.note

    def note(self, output: Any) -> None:
        self._step += 1
        arrived = {new.req_id for new in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.resumed_req_ids)
        paused = [request.request_id for request in self._scheduler.slo_paused]
        found = (
            words([i for i in output.num_scheduled_tokens if i in arrived]),
            words(self._evicted),
            words(self._preempted),
            words(paused),
            words(r.request_id for r in self._scheduler.running),
        )
        if found != self._last and output.total_num_scheduled_tokens:
            names = ("admit", "evict", "preempt", "pause", "order")
            said = " ".join(f"{name}={ids}" for name, ids in zip(names, found, strict=True) if ids)
            self.lines.append(f"{self._step} {said}")
            self._last = ("", "", "", "", found[-1])
        self._evicted.clear()
        self._preempted.clear()


def words(ids: Iterable[str]) -> str:
    return ",".join(ids)


@pytest.mark.parametrize(("log_name", "policy"), golden_forms())
def test_decisions(log_name: str, policy: str, update_golden: bool) -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    engine = VirtualEngine(SETTINGS, load_profile("h100-llama3-8b"), {"sloserve": {"policy": policy}})
    recorder = Recorder(engine)
    log = engine.run(small_workload())
    ends = [f"{r.request.request_id} {r.outcome} {r.token_times_s.size} {r.num_preemptions}" for r in log.requests]
    text = "\n".join([*recorder.lines, "", "request outcome tokens preemptions", *ends]) + "\n"
    path = LOGS / f"{log_name}.txt"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


def test_every_log_is_of_a_registered_policy() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == {name for name, _ in golden_forms()}
