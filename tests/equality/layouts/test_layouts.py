"""Greedy replies equal stock vLLM's whatever is planned, on models of every KV cache layout that runs on a CPU.

Windows, local chunks, Mamba and hybrids, with so little KV that stock preempts. ``make whole`` has every policy,
mode and model; ``make test`` a hybrid under two policies, and windows with swap space.
"""

import pytest

from sloserve.scheduler.registry import main_policies
from tests.equality.engine import ENGINE_WARNINGS, MAX_MODEL_LEN
from tests.equality.layouts.bench import MODES, SUBJECT, Case, differences
from tests.equality.subjects import Subject
from tests.equality.test_real_engine import MIN_MARGIN, Bench
from tests.whole import WHOLE

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

EXACT = ("gpt-oss", "gemma3", "llama4", "cohere2", "granite4", "nemotron-h", "falcon-h1", "mamba2")
"""Models that compute in float32, whose replies do not depend on what else is computed."""

CASES = [Case(model, mode) for model in EXACT for mode in MODES] if WHOLE else [Case("granite4")]
NAMES = (*main_policies(), "chaos-all", "chaos-nearly-all")
CHOSEN = [SUBJECT[name] for name in (NAMES if WHOLE else ("auto", "chaos-all"))]
cases = pytest.mark.parametrize("bench", CASES, indirect=True, ids=str)


def grows(bench: Bench) -> bool:
    """Whether a request ever holds more KV blocks than at its start: a Mamba state alone stays one."""
    return bench.engine.scheduler.block_size < MAX_MODEL_LEN or len(bench.engine.groups) > 1


@cases
def test_stock_equals_itself(bench: Bench) -> None:
    """In another order, preempted elsewhere; and its replies are such that a difference would show."""
    stock, again = bench.stock("short"), bench.serve_stock("short", order=-1)
    assert stock.preemptions > 1 or not grows(bench), "KV is not scarce"
    assert differences(again, stock) == []
    for name, margins in stock.margins.items():
        # Where a grammar leaves only tokens that the model never says, all have logit 0 and the first is taken.
        assert min(m for m in margins if m > 0.0 or "json" not in name) > MIN_MARGIN
    free = [stock.outputs[name][0] for name in stock.outputs if name.startswith("text")]
    assert len({tuple(reply) for reply in free}) == len(free)
    assert all(len(set(reply)) > len(reply) // 4 for reply in free)


@cases
@pytest.mark.parametrize("subject", CHOSEN, ids=str)
def test_outputs(bench: Bench, subject: Subject) -> None:
    stock, served = bench.stock("short"), bench.serve(subject, "short")
    counters = bench.engine.scheduler.slo_counters
    assert differences(served, stock) == []
    assert served.outputs.keys() == stock.outputs.keys()
    assert counters["plans"] > 0 or subject.name == "fcfs"
    assert counters["internal_errors"] == 0
    assert counters["evictions"] > 0 or not subject.name.startswith("chaos")
    assert served.paused_steps > 0 or not subject.pauses


@cases
def test_aborts(bench: Bench) -> None:
    """Under plans that preempt, pause and limit; the harness asserts that no KV block is lost."""
    served = bench.serve(SUBJECT["chaos-all"], "aborts")
    seen = {state for states in served.aborted.values() for state in states.split(",")}
    assert {"new", "waiting", "prefilling", "decoding"} <= seen
    assert differences(served, bench.stock("short")) == []
