"""What routers learn in is held to the model of vLLM's engine: the same requests on the same replicas."""

from dataclasses import replace

import pytest

from benchmarks.router import system_called, through_engines
from sloserve.fleet.router.evaluation import at_rates
from sloserve.fleet.router.routing import masked_greedy


@pytest.mark.slow
def test_the_environments_latencies_are_those_of_the_engine_model() -> None:
    system = replace(system_called("opt")[0], interference=0.0)
    (served,) = at_rates(system, masked_greedy(system), (120.0,), replicas=1, seed=5, limits=1.5)
    reward, bias, error = through_engines("opt", served, system)
    assert served.reward.size > 200 and set(served.model.tolist()) == {1, 2}
    assert abs(bias) < 0.01 and error < 0.015  # 0.4 % and 0.9 %
    assert reward == pytest.approx(float(served.reward.mean()), abs=0.01)
