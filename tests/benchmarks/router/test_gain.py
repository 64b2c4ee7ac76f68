"""What routers learn in is held to the model of vLLM's engine: the same requests on the same replicas."""

from dataclasses import replace

import pytest

from benchmarks.publish import RESULTS, RUNS, read_rows
from benchmarks.router import ceiling
from benchmarks.router.gain import system_called, through_engines
from sloserve.fleet.router.evaluation import at_rates
from sloserve.fleet.router.routing import masked_greedy


@pytest.mark.slow
def test_the_ceiling_of_one_model_is_that_of_its_largest_batch_in_time() -> None:
    system, _ = ceiling.system_called("paper")
    system = replace(system, speeds=tuple(replace(speed, prompt_token_s=0.0) for speed in system.speeds))
    batch = (40.0 - 25.0) / 5.0  # 25 ms and 5 ms a request, of 40 ms a token
    most = system.devices * batch / (system.output_tokens * 0.040)
    assert ceiling.ceiling(system, 1.0, (2,)) == pytest.approx(most, rel=0.002)
    assert ceiling.ceiling(system, 0.9, (0,)) == pytest.approx(0.0)  # its quality is 0.69


def test_the_ceilings_table_follows_from_its_runs() -> None:
    folder = RESULTS / "router-ceiling"
    assert ceiling.table(read_rows(folder / RUNS)) == (folder / "table.txt").read_text()


@pytest.mark.slow
def test_the_environments_latencies_are_those_of_the_engine_model() -> None:
    system = replace(system_called("opt")[0], interference=0.0)
    (served,) = at_rates(system, masked_greedy(system), (120.0,), replicas=1, seed=5, limits=1.5)
    reward, bias, error = through_engines("opt", served, system)
    assert served.reward.size > 200 and set(served.model.tolist()) == {1, 2}
    assert abs(bias) < 0.01 and error < 0.015  # 0.4 % and 0.9 %
    assert reward == pytest.approx(float(served.reward.mean()), abs=0.01)
