"""The model engine by itself: whatever a policy plans, every request ends with its tokens, and all KV comes back."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import constant_cost
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.model.model_port import ModelPort
from tests import bounded
from tests.properties.test_conservation import MODEL_LEN, expected_tokens, random_workload
from tests.sim.stepping import stepped

POLICIES = (None, "fcfs", "edf:preempt_margin_s=0.1", "sjf:preempt=true:length=oracle", "chaos", "chaos:pause=0.9")


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "most"), [(range(1), 12), pytest.param(range(6), 28, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_request_ends_once_with_its_tokens(policy: str | None, seeds: range, most: int) -> None:
    for seed in seeds:
        rng = np.random.default_rng([seed, 77])
        workload = random_workload(rng)[:most]
        settings = EngineSettings(
            kv_blocks=int(rng.integers(MODEL_LEN // 16, 30)),
            max_num_seqs=int(rng.integers(1, 6)),
            max_num_batched_tokens=int(rng.choice([16, 48, 200])),
            max_model_len=MODEL_LEN,
            enable_prefix_caching=bool(seed % 2),
            swap_space_gib=float(rng.choice([0.0, 0.02, 1.0])),
            link_gb_per_s=1.0,
            swapping="always",
        )
        config = None if policy is None else {"sloserve": {"policy": policy, "seed": seed}}
        engine = ModelEngine(settings, load_profile("h100-llama3-8b"), config)
        log = engine.run(workload)

        for r in log.requests:
            tokens = expected_tokens(r.request)
            assert (r.outcome, r.token_times_s.size) == (
                (Outcome.COMPLETED, tokens) if tokens > 0 else (Outcome.REJECTED, 0)
            )
            assert (np.diff(r.token_times_s) > 0).all() and (r.token_times_s >= r.request.arrival_s).all()
        scheduler = engine.scheduler
        assert scheduler.kv.free == settings.kv_blocks
        assert not scheduler.has_requests() and not scheduler.requests.blocks.any()
        assert scheduler.swap is None or not scheduler.swap.control.store.used_blocks
        assert int(log.steps.scheduled_tokens.max()) <= settings.max_num_batched_tokens


def test_prefixes_over_blocks_of_several_sizes_are_refused() -> None:
    groups = (KVGroups(1, 16), KVGroups(1, 32, window_tokens=64))
    settings = EngineSettings(100, kv_groups=groups, max_model_len=MODEL_LEN, enable_prefix_caching=True)
    with pytest.raises(ConfigError, match="groups of layers with blocks of 16 and 32 tokens share a prefix cache"):
        ModelEngine(settings, load_profile("h100-llama3-8b"), None)


@pytest.mark.slow
def test_an_experiment_names_it_and_runs_on_it() -> None:
    experiment = build_experiment(
        SimulateOptions(
            workload="alpaca-poisson", policy="stock,edf", rps="30", seeds=1, max_requests=8, engine="model"
        )
    )
    runs = list(run_experiment(experiment))
    assert [run.policy for run in runs] == ["stock", "edf"]
    assert all(r.outcome is Outcome.COMPLETED for run in runs for r in run.log.requests)


@pytest.mark.slow
def test_a_run_is_the_same_each_time_and_its_steps_add_up() -> None:
    """Steps never overlap, and each token was made by a step that ended in its instant."""
    workload = random_workload(np.random.default_rng(5))
    settings = EngineSettings(12, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=MODEL_LEN)
    logs = [ModelEngine(settings, load_profile("h100-llama3-8b"), None).run(workload) for _ in range(2)]
    steps = logs[0].steps
    assert (steps.end_s[:-1] <= steps.end_s[1:] - steps.duration_s[1:] + 1e-9).all()
    times_s = np.concatenate([r.token_times_s for r in logs[0].requests])
    assert np.isin(times_s, steps.end_s).all()
    for first, second in zip(logs[0].requests, logs[1].requests, strict=True):
        assert np.array_equal(first.token_times_s, second.token_times_s)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs:step_budget=true", "edf:step_budget=true"])
def test_a_step_with_a_budget_reads_the_engine_once(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its plan is fresh or reused: the plan and the budget of one step are made from the same facts."""
    reads: Counter[str] = Counter()

    def counted(name: str) -> None:
        call = getattr(ModelPort, name)

        def counting(*args: Any) -> Any:
            reads[name] += 1
            return call(*args)

        monkeypatch.setattr(ModelPort, name, counting)

    counted("facts")
    counted("read")
    settings = EngineSettings(40, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=MODEL_LEN)
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": {"policy": policy}})
    log = engine.run(random_workload(np.random.default_rng(5))[:10])
    steps = log.steps.end_s.size
    assert 0 < reads["read"] <= reads["facts"] <= steps
    if policy.startswith("fcfs"):  # of the requests nothing is read while all that run decode and none waits
        assert reads["facts"] < 0.5 * steps
    if policy.startswith("edf"):
        assert 0 < engine.scheduler.slo_counters["plans"] <= reads["facts"]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "plan_us"), [(None, 0.0), ("edf:preempt_margin_s=0.1", 0.0), ("edf", 20_000.0)])
def test_events_one_by_one_are_the_whole_run(policy: str | None, plan_us: float) -> None:
    """An engine that hears of each request when it arrives, not before, serves it as in a run that knew all."""
    workload = random_workload(np.random.default_rng(3))[:12]
    settings = EngineSettings(14, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=MODEL_LEN)

    def engine() -> ModelEngine:
        config = None if policy is None else {"sloserve": {"policy": policy}}
        return ModelEngine(
            settings, load_profile("h100-llama3-8b"), config, planning_costs=constant_cost(plan_us), noise=None
        )

    whole, parts = engine().run(workload), stepped(engine(), workload)
    assert np.array_equal(whole.steps.end_s, parts.steps.end_s)
    for ours, theirs in zip(parts.requests, whole.requests, strict=True):
        assert np.array_equal(ours.token_times_s, theirs.token_times_s)
        assert (ours.outcome, ours.num_preemptions, ours.stages) == (
            theirs.outcome,
            theirs.num_preemptions,
            theirs.stages,
        )


def test_a_request_given_late_counts_from_its_arrival_and_is_served_from_then_on() -> None:
    """Another instance, or a queue before the engine, had it first."""
    settings = EngineSettings(14, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=MODEL_LEN)
    workload = [WorkloadRequest("r", 2.0, 30, 4, DEFAULT_CLASSES.slo(None, Targets(ttft_s=1.0)))]
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": {"policy": "edf"}})
    engine.give(*workload, now_s=50.0)
    assert engine.at == 50.0
    with bounded.within("the end of all requests"):
        while engine.at < float("inf"):
            engine.advance()
    (log,) = engine.log(workload).requests
    assert log.token_times_s[0] > 50.0 and log.latency is not None and log.latency.ttft_s > 40.0
    assert log.stages is not None and log.stages.waiting_s == 48.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "edf"])
def test_an_aborted_request_gives_its_kv_back_at_once(policy: str | None) -> None:
    """Waiting, running, at the front end, ended long ago, or never seen."""
    workload = random_workload(np.random.default_rng(3))[:14]
    settings = EngineSettings(14, max_num_seqs=2, max_num_batched_tokens=48, max_model_len=MODEL_LEN)
    config = None if policy is None else {"sloserve": {"policy": policy}}
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), config)
    aborts = {r.request_id: r.arrival_s + 0.01 * (i % 5) for i, r in enumerate(workload) if i % 2}
    log = stepped(engine, workload, aborts)
    engine.abort("never seen", 1e6)
    assert engine.scheduler.kv.free == settings.kv_blocks
    outcomes = Counter(r.outcome for r in log.requests)
    assert outcomes[Outcome.ABORTED] >= 3 and outcomes[Outcome.LOST] == 0
    for r in log.requests:
        if r.outcome is Outcome.ABORTED:
            assert not (r.token_times_s > aborts[r.request.request_id]).any()
