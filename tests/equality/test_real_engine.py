"""Greedy outputs equal stock's on the real engine, whatever is planned: every policy, mode and feature, random plans.

The CPU engine runs vLLM's V1 model runner. Async scheduling is on in half of the engines, two steps deep as on a GPU.
Every policy is put to one of the engines. The others get every means that a plan has: what an engine makes of a plan
depends on the means and not on who planned.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.estimator.planning_cost import constant_cost
from sloserve.scheduler.registry import main_policies
from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started
from tests.equality.harness import STEP_S, Served, serve
from tests.equality.lora import ADAPTERS
from tests.equality.subjects import LORA_SUBJECTS, MEANS, SUBJECTS, Subject
from tests.equality.workloads import WORKLOADS, Job, without_targets
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

CONFIGS = [
    EngineConfig(async_scheduling=two_deep, prefix_caching=cache)
    for two_deep in (True, False)
    for cache in (True, False)
]
DEFAULT, *OTHERS = CONFIGS
OFTEN = [s for s in SUBJECTS if s.section.get("policy", "fcfs").partition(":")[0] in (*main_policies(), "chaos")]
"""Subjects of `make test`: the policies that users choose from, and chaos, which does all that a plan may do."""
ABORTED = [s for s in OFTEN if s.name in ("fcfs", "edf", "auto") or s.name.startswith("chaos")]
"""Of these those that requests are aborted under: the ways to plan of all others."""
LORA = EngineConfig(async_scheduling=True, prefix_caching=True, lora=True)

MIN_MARGIN = 1e-4
"""Another batch rounds differently and moves logits by about 1e-5: a token that leads by less could flip."""


class Bench:
    """An engine, and stock's outputs on it, each workload served once."""

    def __init__(self, engine: Engine, adapters: Path) -> None:
        self.engine = engine
        self._adapters = adapters
        self._stock: dict[str, Served] = {}

    def stock(self, workload: str) -> Served:
        if workload not in self._stock:
            self._stock[workload] = self.serve_stock(workload, margins=True)
        return self._stock[workload]

    def forget_stock(self) -> None:
        """What changed since makes it serve otherwise."""
        self._stock.clear()

    def serve_stock(self, workload: str, *, order: int = 1, margins: bool = False) -> Served:
        self.engine.use_stock()
        return serve(self.engine, WORKLOADS[workload](), ManualClock(), self._adapters, order=order, margins=margins)

    def serve(self, subject: Subject, workload: str) -> Served:
        clock = ManualClock()
        # A plan that costs what a share of one of plan_every steps' time covers is made anew every plan_every steps.
        cost_s = (subject.plan_every - 0.5) * STEP_S if subject.plan_every > 1 else 0.0
        costs = constant_cost(cost_s * 1e6)
        self.engine.use_sloserve({**subject.section, "plan_share": 1.0}, clock=clock, planning_costs=costs)
        jobs = [without_targets(j) if subject.limits else j for j in WORKLOADS[workload]()]
        return serve(self.engine, jobs, clock, self._adapters, token_s=subject.token_s)


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with started(request.param) as engine:
        yield Bench(engine, tmp_path_factory.mktemp("adapters"))


def check_equal(subject: Subject, workload: str, bench: Bench) -> Served:
    expected, served = bench.stock(workload), bench.serve(subject, workload)
    counters = bench.engine.scheduler.slo_counters
    for name, samples in served.outputs.items():
        if name in expected.outputs:
            assert samples == expected.outputs[name], f"{name} differs from stock's"
    assert subject.pauses is None or (served.paused_steps > 0) == subject.pauses
    # With more adapters than places nobody may be preempted, so that there a policy may find no one.
    assert counters["evictions"] > 0 or not subject.preempts or workload == "crowded-lora"
    assert (counters["plan_errors"] > 0) == subject.errs
    assert counters["limited_steps"] > 0 or not subject.limits or workload == "aborts"
    assert counters["malformed_slo"] == 0
    return served


class _Outputs:
    def test_outputs(self, bench: Bench, subject: Subject) -> None:
        check_equal(subject, "mixed", bench)


class _Aborts:
    def test_aborts(self, bench: Bench, subject: Subject) -> None:
        served = check_equal(subject, "aborts", bench)
        seen = {state for states in served.aborted.values() for state in states.split(",")}
        wanted = {"new", "waiting", "prefilling", "decoding"}
        wanted -= set() if subject.waits else {"waiting"}
        # A plan that is used again pauses few requests in few steps; which ones, differs between versions of vLLM.
        wanted |= {"paused"} if subject.pauses and subject.plan_every == 1 else set()
        wanted |= {"preempted"} if subject.name in ("chaos-preempt", "chaos-all") else set()
        assert wanted <= seen


@pytest.mark.parametrize("bench", [DEFAULT], indirect=True, ids=str)
@pytest.mark.parametrize("subject", sampled(SUBJECTS, OFTEN), ids=str)
class TestPolicies(_Outputs):
    pass


@pytest.mark.parametrize("bench", [DEFAULT], indirect=True, ids=str)
@pytest.mark.parametrize("subject", sampled(SUBJECTS, ABORTED), ids=str)
class TestAborts(_Aborts):
    pass


@pytest.mark.parametrize("bench", sampled(OTHERS, OTHERS[-1:]), indirect=True, ids=str)
@pytest.mark.parametrize("subject", sampled(MEANS, [s for s in MEANS if s.name == "chaos-all"]), ids=str)
class TestMeans(_Outputs, _Aborts):
    pass


@pytest.mark.parametrize("bench", [DEFAULT], indirect=True, ids=str)
@pytest.mark.parametrize("policy", ["econo", "econo:preempt=false"])
def test_econo_wastes_less_of_a_scarce_kv_cache(bench: Bench, policy: str) -> None:
    """Everybody ends with stock's text, fewer lose their KV, and less KV is computed twice."""
    stock, served = bench.stock("mixed"), bench.serve(Subject(policy, {"policy": policy}), "mixed")
    assert served.outputs == stock.outputs
    assert served.preemptions < stock.preemptions
    assert served.computed_tokens < stock.computed_tokens


@pytest.mark.parametrize("bench", sampled(CONFIGS, [DEFAULT, OTHERS[-1]]), indirect=True, ids=str)
class TestStock:
    @pytest.mark.parametrize("workload", ["mixed", "aborts"])
    def test_stock_equals_itself(self, bench: Bench, workload: str) -> None:
        """In another order, without margins, on a scheduler put in after others: none of this changes a token."""
        first, second = bench.stock(workload), bench.serve_stock(workload, order=-1)
        assert first.outputs.keys() == second.outputs.keys() or workload != "mixed"
        assert first.preemptions or workload != "mixed", "KV is not scarce"
        for name in first.outputs.keys() & second.outputs.keys():
            assert first.outputs[name] == second.outputs[name]

    def test_margins_are_beyond_rounding(self, bench: Bench) -> None:
        for name, margins in bench.stock("mixed").margins.items():
            # Where a grammar leaves only tokens that the model never says, all have logit 0 and the first is taken.
            tied = "json" in name
            assert min(m for m in margins if m > 0.0 or not tied) > MIN_MARGIN


@pytest.mark.parametrize("bench", [LORA], indirect=True, ids=str)
class TestLoRA:
    @pytest.mark.parametrize("workload", sampled(["lora", "crowded-lora"], ["lora"]))
    def test_stock_equals_itself(self, bench: Bench, workload: str) -> None:
        assert bench.serve_stock(workload, order=-1).outputs == bench.stock(workload).outputs

    @pytest.mark.parametrize("workload", sampled(["lora", "crowded-lora"], ["lora"]))
    @pytest.mark.parametrize(
        "subject",
        sampled(LORA_SUBJECTS, [s for s in LORA_SUBJECTS if s.name in ("edf", "chaos-all")]),
        ids=str,
    )
    def test_outputs(self, bench: Bench, subject: Subject, workload: str) -> None:
        check_equal(subject, workload, bench)

    def test_adapters_matter(self, bench: Bench) -> None:
        """Requests with the same prompt and another adapter differ, so that a mix-up of adapters would show."""
        jobs = [Job(f"a{a}", "Same prompt", 0, {"max_tokens": 12, "temperature": 0.0}, adapter=a) for a in ADAPTERS]
        bench.engine.use_stock()
        served = serve(bench.engine, jobs, ManualClock(), bench._adapters)
        assert len({tuple(samples[0]) for samples in served.outputs.values()}) == len(jobs)
