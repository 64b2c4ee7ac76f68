"""When an instance should complete a request, beside when an engine in virtual time does."""

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.spans import Phase
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway.gateway_instance import GatewayInstance
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.prediction import NOTHING, Pace, Work
from sloserve.fleet.gateway.prefixes import chained
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums
from sloserve.sim.model.engine import ModelEngine

PROFILE = load_profile("a100-opt-2.7b")
BUDGET, OUTPUT = 2048, 64
IDLE = RunningSums()
PACE = Pace(Serving(PROFILE, EngineSize(PROFILE.max_num_seqs, BUDGET, PROFILE.kv_capacity_tokens)))


def report(running: RunningSums = IDLE, name: str = "i", **given: ModelState) -> InstanceReport:
    models = given or {"m": ModelState.ACTIVE}
    return InstanceReport(name, "a100", Phase.SERVING, models, running=running, room=100)


@pytest.mark.slow
def test_prompts_that_come_meanwhile_count() -> None:
    """Without them the same requests are foreseen to take a quarter less than they do."""
    rng = np.random.default_rng(0)
    arrival_s = np.cumsum(rng.exponential(1 / 16, 120)) + 60.0
    prompts = rng.choice([512, 512, 512, 1800], 120)
    slo = DEFAULT_CLASSES.slo(None, Targets())
    requests = [
        WorkloadRequest(f"r{i}", float(arrival_s[i]), int(prompts[i]), OUTPUT, slo) for i in range(prompts.size)
    ]
    settings = EngineSettings(PROFILE.kv_blocks, max_num_batched_tokens=BUDGET, max_model_len=PROFILE.max_model_len)
    times = [one.token_times_s for one in ModelEngine(settings, PROFILE, None).run(requests).requests]
    instance, foreseen, blind = GatewayInstance(report(), "unix:a"), [], []
    for i, at_s in enumerate(arrival_s):
        running = _running(prompts, times, i, at_s)
        instance.reported(report(running), "unix:a", instance.sent, at_s)
        new = Work(1, float(prompts[i]), OUTPUT)
        foreseen.append(instance.times_s(PACE, new, ())[1])
        blind.append(PACE.times_s(running, NOTHING, new, 0.0, NOTHING)[1])
        instance.send(new, ())
    actual_s = np.array([of[-1] for of in times]) - arrival_s
    known = slice(30, 95)  # others come while they run
    assert abs(np.mean(foreseen[known] / actual_s[known]) - 1.0) < 0.1
    assert np.mean(blind[known] / actual_s[known]) < 0.8


def _running(prompts: np.ndarray, times: list[np.ndarray], before: int, at_s: float) -> RunningSums:
    """What an agent would say that its engine has."""
    given = [np.searchsorted(of, at_s, side="right") for of in times[:before]]
    there = [(int(prompts[j]), int(n)) for j, n in enumerate(given) if n < OUTPUT]
    begun = [prompt + n for prompt, n in there if n]
    left = sum(OUTPUT - n for _, n in there)
    return RunningSums(len(there), sum(prompt for prompt, n in there if not n), sum(begun), left)


def test_long_prompts_lately_count_until_another_model_comes_and_cached_ones_never() -> None:
    instances, running = Instances({("m", "a100"): PACE}), RunningSums(8, 0.0, 2400.0, 400.0)
    three = [report(running, name) for name in ("long", "short", "cached")]
    instances.reported(AgentReport("h", "unix:a", tuple(three)), "unix:a", 0, 0.0)
    prompt = chained("m", ((b"x", 2000),))
    for name, tokens, beginning in (("long", 2000, ()), ("short", 50, ()), ("cached", 2000, prompt)):
        for _ in range(200):
            instances.by_name[name].send(Work(1, tokens, 100), beginning).end()
    instances.reported(AgentReport("h", "unix:a", tuple(three)), "unix:a", instances.sent(), 1.0)
    new = Work(1, 100, 100)
    times_s = {name: one.times_s(PACE, new, ())[1] for name, one in instances.by_name.items()}
    assert times_s["long"] > 1.2 * times_s["short"] and times_s["cached"] < 1.01 * times_s["short"]
    chosen = instances.choose("m", "c", new, (), 1.0)
    assert chosen is not None and chosen.name != "long"
    busy = instances.by_name["long"]
    for models in ({"n": ModelState.ACTIVE}, {"m": ModelState.ACTIVE}):
        busy.reported(report(running, "long", **models), "unix:a", busy.sent, 1.0)
    assert busy.times_s(PACE, new, ())[1] <= times_s["short"]
