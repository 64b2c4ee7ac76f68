"""Outputs of tasks equal stock's where KV of ended calls comes back from the host, and less is computed.

The KV cache holds two and a half of the five conversations, so that a call finds nothing of the call before unless the
host kept it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sloserve.engine.swap import retained
from sloserve.engine.swap.beside import BesideCopies
from tests.equality.copiers import LateCopier, copying_by
from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

CONFIGS = [EngineConfig(async_scheduling=two_deep, prefix_caching=True, host_blocks=160) for two_deep in (True, False)]
TASKS, CALLS, OUTPUT_TOKENS = 5, 4, 9
MOST_STEPS = 2000


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of the tiny engine are kept, too."""
    monkeypatch.setattr(retained, "LEAST_TOKENS", 64)


@pytest.fixture(scope="module", params=sampled(CONFIGS, CONFIGS[:1]), ids=str)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with started(request.param) as found:
        yield found


@dataclass
class Run:
    """What a run produced: the tokens of each call's output by its id, tokens that were computed, and preemptions."""

    outputs: dict[str, list[int]]
    computed_tokens: int
    preemptions: int = 0


def serve(engine: Engine, *, differs: bool = False, beside: Callable[[], object] = lambda: None) -> Run:
    """Serve the calls of all tasks: each follows when the call before has ended.

    Args:
        engine: The engine.
        differs: Whether a call repeats the prompt of the call before without the end of its output, as where a template
            leaves out what a model thought.
        beside: Called before each step.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    rng = np.random.default_rng(1)
    params = SamplingParams(
        temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )
    texts = {task: rng.integers(10, 200, (CALLS, 40)).tolist() for task in range(TASKS)}
    prompts = {task: rng.integers(10, 200, 90).tolist() for task in range(TASKS)}
    run = Run({}, 0)
    schedule = engine.scheduler.schedule

    def counted(*args: Any) -> Any:
        output = schedule(*args)
        run.computed_tokens += output.total_num_scheduled_tokens
        run.preemptions += len(output.preempted_req_ids or ())
        return output

    engine.scheduler.schedule = counted

    def call(task: int, number: int) -> None:
        engine.llm.add_request(f"{task}.{number}", {"prompt_token_ids": prompts[task]}, params.clone())

    for task in range(TASKS):
        call(task, 0)
    for _ in range(MOST_STEPS):
        beside()
        for output in engine.llm.step():
            task, number = map(int, output.request_id.split("."))
            tokens = list(output.outputs[0].token_ids)
            run.outputs[output.request_id] = tokens
            if number + 1 < CALLS:
                prompts[task] = [*prompts[task], *tokens[: 3 if differs else None], *texts[task][number][: 20 + task]]
                call(task, number + 1)
        if not engine.llm.has_unfinished_requests() and engine.idle():
            return run
    raise AssertionError(f"no end in sight: {sorted(run.outputs)} ended")


@pytest.mark.parametrize("policy", ["auto", "edf", "fcfs"])
@pytest.mark.parametrize("differs", [False, True], ids=["whole", "cut"])
def test_outputs_equal_stock_and_less_is_computed(engine: Engine, policy: str, differs: bool) -> None:
    engine.use_stock()
    stock = serve(engine, differs=differs)
    engine.use_sloserve({"policy": policy, "swapping": "cost"})
    ours = serve(engine, differs=differs)
    counters = engine.scheduler.slo_counters
    assert len(ours.outputs) == TASKS * CALLS and ours.outputs == stock.outputs
    assert counters["internal_errors"] == counters["plan_errors"] == counters["swap_failures"] == 0
    assert counters["swap_loads"] > 0 and counters["swap_stores_of_ended"] > 0
    refused = sum(n for name, n in counters.items() if name.startswith("swap_refused_"))
    assert counters["swap_stores"] + refused == ours.preemptions
    assert ours.computed_tokens < 0.9 * stock.computed_tokens


def test_copies_that_never_end_by_themselves_are_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made when a step waits for them, which is when it may write a block of theirs, and not before."""
    engine.use_stock()
    stock = serve(engine)
    engine.use_sloserve({"policy": "auto"})
    begins = BesideCopies.begins
    monkeypatch.setattr(BesideCopies, "begins", lambda self, ends_s, *rest: begins(self, math.inf, *rest))
    with copying_by(LateCopier, 2) as copier:
        ours = serve(engine)
        assert copier.most_beside > 1 and ours.outputs == stock.outputs
        copier.await_store(10**6)
    counters = engine.scheduler.slo_counters
    assert counters["swap_loads"] > 0 and counters["internal_errors"] == counters["swap_failures"] == 0


def test_a_new_request_with_a_load_that_is_given_up_is_computed(engine: Engine) -> None:
    """The workers have never seen it, so that it cannot be resumed as a preempted request is."""
    engine.use_stock()
    stock = serve(engine)
    engine.use_sloserve({"policy": "auto"})
    swapping = engine.scheduler._swapping
    given_up: list[str] = []

    def gives_up() -> None:
        loads = [
            request_id
            for request_id in swapping.loads.ids
            if engine.scheduler.requests[request_id].num_preemptions == 0
        ]
        if loads and len(given_up) < 3:
            given_up.extend(loads)
            engine.scheduler.weights_changed()

    with copying_by(LateCopier, 3):
        ours = serve(engine, beside=gives_up)
    assert given_up and ours.outputs == stock.outputs
    assert engine.scheduler.slo_counters["internal_errors"] == 0


def test_kv_of_other_weights_does_not_come_back(engine: Engine) -> None:
    engine.use_sloserve({"policy": "auto"})
    first = serve(engine)
    assert engine.scheduler._swapping._connector.store.used_blocks > 0
    engine.scheduler.weights_changed()
    assert engine.scheduler._swapping._connector.store.used_blocks == 0
    engine.llm.reset_prefix_cache()
    assert serve(engine).outputs == first.outputs
