"""A batch's execution against the sums of the paper's Eq. 16 to 19, written out."""

import pytest

from sloserve.estimator.execution import execution
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile


@pytest.mark.parametrize("name", ["v100x2-qwen2.5-7b", "h100-llama3-8b", "a100-opt-13b"])
def test_execution_is_the_sum_over_steps(name: str) -> None:
    latency = load_profile(name).latency
    run = execution(latency, 4, 300, 57)
    decode_s = sum(latency.step_s(StepLoad.of(decode_contexts=[300 + k] * 4)) for k in range(1, 58))
    assert run.prefill_s == latency.step_s(StepLoad.of([(300, 0)] * 4))
    assert run.decode_s == pytest.approx(decode_s)
    assert run.e2e_s == pytest.approx(run.prefill_s + decode_s)
    assert run.tpot_s == pytest.approx(decode_s / 57)


def test_the_papers_prefill_and_decode_of_a_batch() -> None:
    """Eq. 14 and 15 with Table 2's coefficients, b = 2, input 500, output 1."""
    run = execution(load_profile("v100x2-qwen2.5-7b").latency, 2, 500, 1)
    assert run.prefill_s * 1e3 == pytest.approx(0.1 * 2 * 500 + 5.7 * 2 + 0.01 * 500 + 43.67)
    assert run.decode_s * 1e3 == pytest.approx(0.0002 * 2 * 501 + 0.275 * 2 + 0.00088 * 501 + 15.85)


def test_lengths_start_at_one() -> None:
    with pytest.raises(ValueError, match="each is at least 1"):
        execution(load_profile("h100-llama3-8b"), 1, 10, 0)
