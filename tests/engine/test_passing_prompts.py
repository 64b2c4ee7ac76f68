"""A long prompt that has begun lets short ones pass in a whole engine, and loses nothing by it but time."""

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine

pytestmark = pytest.mark.slow

LONG_TOKENS = 20_000


def request(request_id: str, arrival_s: float, prompt_tokens: int, ttft_s: float | None) -> WorkloadRequest:
    return WorkloadRequest(request_id, arrival_s, prompt_tokens, 5, DEFAULT_CLASSES.slo(None, Targets(ttft_s=ttft_s)))


def served(policy: str, *workload: WorkloadRequest, seats: int = 8, kv_blocks: int = 4000) -> tuple[RunLog, int]:
    """The run, and how often a request was left out of a step."""
    settings = EngineSettings(
        kv_blocks, max_num_seqs=seats, max_num_batched_tokens=2048, max_model_len=LONG_TOKENS + 100
    )
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": {"policy": policy}})
    log = engine.run(list(workload))
    assert {one.outcome for one in log.requests} == {Outcome.COMPLETED}
    assert [one.token_times_s.size for one in log.requests] == [5] * len(workload)
    return log, log.counters.get("paused_steps", 0)


LONG = request("long", 0.0, LONG_TOKENS, 5.0)
CHATS = [request(f"chat{i}", 0.1 + 0.1 * i, 300, 0.3) for i in range(3)]


@pytest.mark.parametrize("policy", ["fcfs", "edf:preempt=false", "auto"])
def test_chats_pass_a_long_prompt(policy: str) -> None:
    without, pauses = served(f"{policy}:step_budget=false", LONG, *CHATS)
    assert not pauses and not without.requests[1].good
    log, pauses = served(f"{policy}:step_budget=true", LONG, *CHATS)
    assert pauses and all(one.good for one in log.requests)
    assert not any(one.num_preemptions for one in log.requests)
    # All it loses is the time of the chats' prompts, and a step's fixed time for each.
    assert float(log.requests[0].token_times_s[0] - without.requests[0].token_times_s[0]) < 0.1


def test_no_chat_passes_without_a_slot_or_blocks() -> None:
    for few in ({"seats": 1}, {"kv_blocks": LONG_TOKENS // 16 + 10}):
        log, pauses = served("fcfs:step_budget=true", LONG, *CHATS, **few)
        assert not pauses and not log.requests[1].good


def test_a_long_prompt_ends_beside_chats_without_end() -> None:
    """Each of the chats would be late behind it, and together they ask for nearly all of the engine."""
    chats = [request(f"chat{i}", 0.05 + 0.05 * i, 1200, 0.3) for i in range(200)]
    log, pauses = served("fcfs:step_budget=true", request("long", 0.0, LONG_TOKENS, None), *chats)
    assert pauses and np.mean([one.good for one in log.requests[1:]]) > 0.9
    assert float(log.requests[0].token_times_s[0]) < chats[-1].arrival_s


def test_a_step_that_chats_pass_in_begins_no_further_long_prompt() -> None:
    """Filled up with the next of 30 long prompts, such steps begin them all, and all of them wait: 2,072 times."""
    long = [request(f"long{i}", 0.0, LONG_TOKENS, None) for i in range(30)]
    chats = [request(f"chat{i}", 0.1 + 0.08 * i, 300, 0.3) for i in range(100)]
    log, pauses = served("edf:step_budget=true", *long, *chats, kv_blocks=40_000, seats=256)
    assert np.mean([one.good for one in log.requests if one.request.prompt_tokens == 300]) > 0.9
    assert 0 < pauses < 2 * len(chats)
    assert float(log.requests[0].token_times_s[0]) < 0.9


def test_a_long_prompt_with_a_target_keeps_it() -> None:
    """It has a third more than its time alone, which grows with what is computed of it, and lets chats have that."""
    alone, _ = served("fcfs:step_budget=true", LONG)
    target_s = 1.3 * float(alone.requests[0].token_times_s[0])
    chats = [request(f"chat{i}", 0.05 + 0.1 * i, 300, 0.2) for i in range(15)]
    log, pauses = served("fcfs:step_budget=true", request("long", 0.0, LONG_TOKENS, target_s), *chats)
    assert pauses and log.requests[0].good
