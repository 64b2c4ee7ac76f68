"""Completion times: exact where lengths are certain and the engine is simple, plausible where they are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.estimator.arrival_queue import ExpectedArrivals
from benchmarks.estimator.completion_times import CompletionModel, TokenWaiting, token_moments
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.length import remaining
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.step_time.latency import BatchFit, Bilinear, StepLoad
from sloserve.estimator.step_time.profile import load_profile

PROFILE = load_profile("h100-llama3-8b")
STEP_S = 0.01


class Constant:
    """Every step takes 10 ms."""

    def step_s(self, load: StepLoad) -> float:
        return STEP_S if load.tokens else 0.0


def requests(n: int, prompt: float = 0.0, context: float = 0.0, mean: float = 100.0, sd: float = 0.0) -> RequestLengths:
    return RequestLengths(*(np.full(n, float(x)) for x in (prompt, context, mean, sd)))


NONE = requests(0)


def roomy(max_num_seqs: int = 8, steps_ahead: float = 0.0, idle_steps: float = 0.0) -> EngineSize:
    return EngineSize(max_num_seqs, 2048, 10**7, steps_ahead, idle_steps)


def test_a_request_alone_needs_its_own_steps() -> None:
    done = CompletionModel(Constant(), roomy()).predict(NONE, requests(1, prompt=100, mean=50))
    assert done.ttft.mean_s == pytest.approx(STEP_S, rel=0.1)
    assert done.e2e.mean_s == pytest.approx(50 * STEP_S, rel=0.01)
    assert done.e2e.sd_s == pytest.approx(0.0, abs=1e-6)


def test_waves_of_certain_lengths_come_one_after_another() -> None:
    """8 slots, 40 requests of 100 tokens: five waves of a second each."""
    done = CompletionModel(Constant(), roomy()).predict(NONE, requests(40, prompt=10, mean=100))
    waves_s = np.repeat(np.arange(5), 8) * 1.0
    # Cells are coarse beside such sharp ends, and coarser the further they lie ahead.
    assert np.abs(done.ttft.mean_s - waves_s).max() < 0.3
    assert np.abs(done.e2e.mean_s - waves_s - 1.0).max() < 0.3


def test_those_that_run_are_waited_for() -> None:
    running = requests(8, context=50, mean=200)
    done = CompletionModel(Constant(), roomy()).predict(running, requests(4, prompt=10, mean=100))
    assert done.running.mean_s == pytest.approx(2.0, rel=0.02)
    assert np.abs(done.ttft.mean_s - 2.0).max() < 0.2


def test_free_slots_are_taken_at_once_and_prompts_share_the_budget() -> None:
    """100 prompts of 1,000 tokens: about 2,000 tokens a step, so two requests come in with each."""
    done = CompletionModel(Constant(), roomy(max_num_seqs=100)).predict(NONE, requests(100, prompt=1000, mean=500))
    assert done.ttft.mean_s[99] == pytest.approx(100 * 1000 / 2000 * STEP_S, rel=0.1)
    assert np.all(np.diff(done.ttft.mean_s) > 0.0)


def test_a_small_kv_cache_admits_fewer() -> None:
    small = CompletionModel(Constant(), EngineSize(64, 2048, 64 * 200)).predict(NONE, requests(300, 400, 0, 100, 50))
    large = CompletionModel(Constant(), EngineSize(64, 2048, 10**7)).predict(NONE, requests(300, 400, 0, 100, 50))
    # 450 tokens on average a request: 28 fit where 64 slots are.
    assert small.ttft.mean_s[-1] / large.ttft.mean_s[-1] == pytest.approx(64 / 28.4, rel=0.25)


def test_pipeline_delays_are_counted() -> None:
    piped = CompletionModel(Constant(), roomy(steps_ahead=1.5)).predict(NONE, requests(1, prompt=10, mean=1))
    assert piped.ttft.mean_s == pytest.approx(2.5 * STEP_S, rel=0.05)


def test_uncertain_lengths_spread_and_skew() -> None:
    done = CompletionModel(PROFILE, roomy(64)).predict(requests(64, 0, 300, 200, 150), requests(300, 200, 0, 300, 200))
    # A place behind more uncertain lengths is less certain, and no more than their sum over the slots says.
    assert 0.0 < done.ttft.sd_s[0] < 0.2 < done.ttft.sd_s[100] < done.ttft.sd_s[299]
    assert 0.5 < done.ttft.sd_s[299] / (300**0.5 * 200 / 64 * 0.0095) < 1.5
    e2e = done.e2e
    assert np.all(e2e.sd_s > 200 * 0.007), "own length"
    assert np.all(e2e.quantile_s(0.5) < e2e.mean_s) and np.all(e2e.quantile_s(0.9) > e2e.mean_s)
    waiting = requests(300, 200, 0, 300, 200)
    wide = CompletionModel(PROFILE, roomy(64)).predict(NONE, waiting, relative_error=0.3)
    assert wide.ttft.sd_s[-1] > 0.3 * wide.ttft.mean_s[-1]


def test_arrivals_keep_the_batch_full_and_slow() -> None:
    """A hundred more requests keep coming: those that run meet longer steps than if they were the last."""
    running, waiting = requests(50, 0, 300, 300, 100), requests(1, 200, 0, 300, 100)
    model = CompletionModel(PROFILE, EngineSize(256, 2048, 400_000))
    alone = model.predict(running, waiting)
    busy = model.predict(running, waiting, ExpectedArrivals(50.0, 800.0, 300.0, 200.0))
    assert busy.e2e.mean_s[0] > 1.1 * alone.e2e.mean_s[0]
    assert busy.ttft.mean_s[0] == pytest.approx(alone.ttft.mean_s[0], rel=0.35)


@given(
    n=st.integers(0, 60),
    m=st.integers(0, 60),
    prompt=st.floats(1, 5000),
    mean=st.floats(1, 2000),
    cv=st.floats(0, 3),
    slots=st.integers(1, 64),
    kv=st.integers(1000, 10**6),
)
def test_any_queue_has_finite_times_in_order(
    n: int, m: int, prompt: float, mean: float, cv: float, slots: int, kv: int
) -> None:
    running = requests(min(n, slots), 0, min(prompt, kv / 2 / max(n, 1)), mean, mean * cv)
    done = CompletionModel(PROFILE, EngineSize(slots, 2048, kv)).predict(
        running, requests(m, prompt, 0, mean, mean * cv)
    )
    for times in (done.ttft, done.e2e, done.running):
        assert np.all(np.isfinite(times.mean_s)) and np.all(np.isfinite(times.sd_s))
        assert np.all(times.mean_s > 0.0) and np.all(times.sd_s >= 0.0)
        assert np.all(times.quantile_s(0.9) >= times.quantile_s(0.5))
    assert np.all(np.diff(done.ttft.mean_s) >= -1e-9)
    assert np.all(done.e2e.mean_s >= done.ttft.mean_s - 1e-9)


def test_other_latency_forms_serve_as_well() -> None:
    form = Bilinear(
        prefill=BatchFit(alpha_ms=0.1, beta_ms=5.7, gamma_ms=0.01, delta_ms=43.67),
        decode=BatchFit(alpha_ms=0.0002, beta_ms=0.275, gamma_ms=0.00088, delta_ms=15.85),
    )
    done = CompletionModel(form, roomy(4)).predict(NONE, requests(8, prompt=100, mean=20))
    assert 0.0 < done.e2e.mean_s[0] < done.e2e.mean_s[7]


def test_moments_of_a_predictors_distribution() -> None:
    predictor = EmpiricalLength(prior_weight=1e-6)
    lengths = np.random.default_rng(0).integers(1, 400, 500)
    for tokens in lengths.tolist():
        predictor.observe(0, tokens)
    so_far = np.array([0, 200])
    asked = remaining.KnownRequests(class_id=np.zeros(2, np.int64), output_tokens=so_far, max_tokens=np.full(2, 4096))
    mean, sd = token_moments(predictor.rest(asked))
    for i, k in enumerate(so_far.tolist()):
        beyond = lengths[lengths > k] - k
        assert mean[i] == pytest.approx(beyond.mean(), rel=0.01)
        assert sd[i] == pytest.approx(beyond.std(), rel=0.05)


def test_eq_2_divides_the_tokens_ahead() -> None:
    waiting = requests(3, prompt=4000, mean=100, sd=30)
    done = TokenWaiting(tokens_per_s=1000.0, prefill_s=0.05, decode_s=0.01).predict(waiting)
    assert done.ttft.mean_s == pytest.approx([0.05, 0.15, 0.25])
    assert done.ttft.sd_s == pytest.approx([0.0, 0.03, 0.03 * 2**0.5])
    assert done.e2e.mean_s == pytest.approx(done.ttft.mean_s + 1.0)
    assert len(done.running) == 0
