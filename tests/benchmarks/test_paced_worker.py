"""A worker that waits instead of computing: every request gets its tokens, and what it cannot do is refused."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine_process import restored_process
from tests.equality.engine import ENGINE_WARNINGS

pytestmark = [pytest.mark.vllm, *map(pytest.mark.filterwarnings, ENGINE_WARNINGS)]

PACED = "benchmarks.paced_worker.PacedWorker"


def start() -> Any:
    """Return an engine whose policy plans before every step, however long planning takes on this machine."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from sloserve.estimator.planning_cost import constant_cost
    from sloserve.vllm_plugin import SLOScheduler
    from sloserve.vllm_plugin.server.tiny_model import resolve_model

    class EveryStepPlanned(SLOScheduler):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, planning_costs=constant_cost(0.0), **kwargs)

    arguments = {
        "model": resolve_model("builtin:tiny"),
        "worker_cls": PACED,
        "scheduler_cls": EveryStepPlanned,
        "additional_config": {"sloserve": {"profile": "h200-llama3-8b", "policy": "chaos"}},
        "enforce_eager": True,
        "disable_log_stats": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
    }
    return LLMEngine.from_engine_args(EngineArgs(**arguments))


@pytest.fixture
def engine() -> Iterator[Any]:
    with restored_process():
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        engine = start()
        yield engine
        engine.engine_core.shutdown()


def test_each_request_gets_its_tokens_whatever_is_preempted(engine: Any) -> None:
    from vllm import SamplingParams

    core = engine.engine_core.engine_core
    assert core.batch_queue_size == 2  # as on a GPU
    for i in range(8):
        params = SamplingParams(max_tokens=10 + i, ignore_eos=True, temperature=0.0)
        engine.add_request(str(i), {"prompt_token_ids": [5] * (300 + i)}, params)
    found: dict[str, list[int]] = {}
    for step in range(1000):
        if step == 20:  # as before a sleep that keeps requests: output in flight is dropped
            assert core.scheduler.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
        if not engine.has_unfinished_requests():
            break
    assert {id_: len(tokens) for id_, tokens in found.items()} == {str(i): 10 + i for i in range(8)}
    assert core.scheduler.slo_counters["evictions"] > 0


def test_a_step_begins_when_it_is_launched_and_the_one_before_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from benchmarks import paced_worker

    now_s, waited_until = [10.0], []
    monkeypatch.setattr(paced_worker, "step_load", lambda output: output)
    for kind in (paced_worker.PacedWorker, paced_worker.SyncPacedWorker):
        worker = object.__new__(kind)
        worker._free_s, worker._tokens = 0.0, {}
        worker._clock = SimpleNamespace(monotonic_s=lambda: now_s[0])
        worker._profile = SimpleNamespace(step_s=lambda output: 2.0)
        worker._result = lambda output: output
        worker.wait_until = waited_until.append
        now_s[0] = 10.0
        step = SimpleNamespace(finished_req_ids=(), total_num_scheduled_tokens=1)
        assert worker.execute_model(step) is None
        now_s[0] = 11.0  # what is done meanwhile, as by a GPU's host, takes nothing off its time
        first = worker.sample_tokens(None)
        if kind.is_async:
            assert worker.execute_model(step) is None
            second = worker.sample_tokens(None)
            assert waited_until == []
            assert (first.get_output(), second.get_output()) == (step, step)
            assert waited_until == [12.0, 14.0]
        else:
            assert first is step
            assert waited_until == [12.0, 14.0, 12.0]


def test_a_swap_of_models_takes_the_profiles_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import paced_worker
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.scheduler.virtual_queues.model_swap import model_swap

    worker = object.__new__(paced_worker.PacedWorker)
    worker._profile, worker._level = load_profile("h100-llama3-8b"), 0
    slept: list[float] = []
    monkeypatch.setattr(paced_worker.time, "sleep", slept.append)
    cost = model_swap(worker._profile)
    worker.sleep(level=1)
    worker.wake_up()
    worker.sleep(level=2)
    worker.wake_up(tags=["weights"])
    worker.reload_weights()
    worker.wake_up(tags=["kv_cache"])
    worker.reload_weights(weights_path="/models/other")  # in place
    assert slept == [cost.sleep_s, cost.wake_s, cost.sleep_s, cost.reload_s, cost.reload_s]


@pytest.mark.parametrize(
    ("section", "ranks", "message"),
    [({}, 1, "the settings name none"), ({"profile": "h100-llama3-8b"}, 2, "PacedWorker runs as one worker")],
)
def test_what_it_cannot_do_is_refused(section: dict[str, str], ranks: int, message: str) -> None:
    from vllm.config import VllmConfig

    from benchmarks.paced_worker import PacedWorker
    from sloserve.core.errors import ConfigError

    config = VllmConfig(additional_config={"sloserve": section})
    config.parallel_config.world_size = ranks
    with pytest.raises(ConfigError, match=message):
        PacedWorker(config, 0, 0, "")
