"""Steps are timed and their load is read as the engine ran them: two deep, prefill and decode mixed."""

from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.fcfs import FCFS
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot
from sloserve.vllm_plugin.engine.step_load import step_load

pytestmark = pytest.mark.vllm

ENGINE, ASSUMED = "h100-llama3-8b", "a100-llama2-7b"
SETTINGS = EngineSettings(kv_blocks=20_000, max_num_seqs=64, max_num_batched_tokens=2048)
LOADS = [
    StepLoad.of((), [600] * 16),
    StepLoad.of((), [900] * 32),
    StepLoad.of([(512, 0)], [600] * 12),
    StepLoad.of([(1200, 0)], [800] * 16),
]


def workload() -> list[WorkloadRequest]:
    slo = DEFAULT_CLASSES.slo(None, Targets(e2e_s=60.0))
    sizes = [(200 + 97 * i % 1500, 20 + 53 * i % 200) for i in range(150)]
    return [WorkloadRequest(f"r{i}", 0.08 * i, prompt, output, slo) for i, (prompt, output) in enumerate(sizes)]


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_a_wrong_profile_is_corrected_by_the_engines_own_steps(policy: str) -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    true, assumed = load_profile(ENGINE), load_profile(ASSUMED)
    engine = VirtualEngine(SETTINGS, true, {"sloserve": {"policy": policy, "profile": ASSUMED}})
    engine.run(workload())
    latency = engine.scheduler.step_clock.latency
    assert latency.observed > 300
    for load in LOADS:
        wrong = abs(assumed.step_s(load) / true.step_s(load) - 1.0)
        left = abs(latency.step_s(load) / true.step_s(load) - 1.0)
        assert left < 0.15 and left < wrong / 2
    figures = engine.scheduler.status()
    assert figures["step_error"] == pytest.approx(latency.relative_error)
    assert figures["step_factor_decode"] == pytest.approx(latency.fit.factors[2])


class Watching(FCFS):
    """Notes what it is told of the engine's steps."""

    needs = frozenset({"arrival_s"})

    def __init__(self) -> None:
        super().__init__()
        self.told: list[EngineFacts] = []

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.told.append(snapshot.engine)
        return Plan.IDENTITY


def test_without_a_profile_the_steps_are_learnt_and_their_ends_foreseen() -> None:
    """In flight when a step is planned is the one before it, of which nothing has passed yet, or nothing."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    true = load_profile(ENGINE)
    engine = VirtualEngine(SETTINGS, true, {"sloserve": {"policy": "edf"}})
    watching = Watching()
    engine.scheduler.policies.use(watching, None, "edf")
    loads: list[StepLoad] = []
    busy: list[float] = []

    def note(output: Any) -> None:
        loads.append(step_load(output))
        if watching.told:
            busy.append(watching.told[-1].busy_s)

    engine.on_step = note
    engine.run(workload())
    latency = engine.scheduler.step_clock.latency
    for load in LOADS:
        assert latency.step_s(load) == pytest.approx(true.step_s(load), rel=0.15)
    figures = engine.scheduler.status()
    assert 0.0 < figures["step_error"] < 0.1 and figures["step_factor_decode"] == 0.0
    assert 0.0 in busy and min(busy) >= 0.0
    assert len(watching.told) > 300
    in_flight = [x for x in busy[-200:] if x]
    assert len(in_flight) > 50 and max(in_flight) < 2.0 * max(true.step_s(load) for load in loads)


def test_the_clock_of_steps_is_told_when_each_has_been_launched() -> None:
    """vLLM asks for the bitmask of a grammar then; without this a launch is charged to the step before."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    engine = VirtualEngine(SETTINGS, load_profile(ENGINE), {"sloserve": {"policy": "edf"}})
    clock, told = engine.scheduler.step_clock, list[str]()
    scheduled, launched = clock.scheduled, clock.launched
    clock.scheduled = lambda *args: (told.append("scheduled"), scheduled(*args))
    clock.launched = lambda *args: (told.append("launched"), launched(*args))
    engine.run(workload()[:5])
    assert len(told) > 20 and told[::2] == ["scheduled"] * (len(told) // 2) and set(told[1::2]) == {"launched"}


def output_of(
    new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]], drafts: dict[str, int] | None = None
) -> SimpleNamespace:
    """Return a SchedulerOutput of (tokens, computed tokens) by request, and of draft tokens by request."""
    scheduled = {name: tokens for name, (tokens, _) in (cached | new).items()}
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=at) for name, (_, at) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_computed_tokens=[computed for _, computed in cached.values()]
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={name: [-1] * count for name, count in (drafts or {}).items()},
    )


@pytest.mark.parametrize(
    ("new", "cached", "drafts", "load"),
    [
        ({}, {}, {}, StepLoad.of(draft_tokens=0)),
        ({}, {"a": (1, 20), "b": (1, 30)}, {}, StepLoad.of((), [21, 31], 0)),
        ({"c": (16, 0)}, {"a": (1, 20), "b": (1, 30)}, {}, StepLoad.of([(16, 0)], [21, 31], 0)),
        ({"c": (1, 15)}, {"a": (1, 20)}, {}, StepLoad.of([(1, 15)], [21], 0)),
        ({"c": (16, 32)}, {"a": (1, 20), "b": (9, 64)}, {}, StepLoad.of([(16, 32), (9, 64)], [21], 0)),
        ({}, {"a": (7, 20), "b": (9, 64)}, {}, StepLoad.of([(7, 20), (9, 64)], (), 0)),
        ({}, {"a": (4, 20), "b": (3, 30)}, {"a": 3, "b": 2}, StepLoad.of((), [21, 31], 5)),
        ({}, {"a": (1, 20), "b": (4, 30)}, {"b": 3}, StepLoad.of((), [21, 31], 3)),
        (
            {"c": (16, 32)},
            {"a": (4, 20), "b": (9, 64), "d": (1, 7)},
            {"a": 3},
            StepLoad.of([(16, 32), (9, 64)], [21, 8], 3),
        ),
        ({"c": (4, 15)}, {"a": (4, 20)}, {"a": 3, "c": 3}, StepLoad.of((), [16, 21], 6)),  # padded like a decode
    ],
)
def test_the_load_of_a_step(
    new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]], drafts: dict[str, int], load: StepLoad
) -> None:
    assert step_load(output_of(new, cached, drafts)) == load
