"""Fits recover the coefficients that made the steps, hold them non-negative, and are scored on steps not fitted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.step_time.fit import MeasuredStep, fit_bilinear, fit_distserve, fit_hinge, held_out, score
from sloserve.estimator.step_time.latency import BatchFit, Bilinear, DecodeLine, DistServe, Hinge, StepLatency, StepLoad

HINGE = Hinge(
    free_tokens=96,
    base_ms=10.0,
    token_ms=0.05,
    seq_ms=-0.02,
    context_token_ms=1e-4,
    attention_token2_ms=2e-6,
    prefix_attention_token2_ms=1e-6,
    prefill_ms=0.3,
    decode=DecodeLine(base_ms=9.0, context_token_ms=2e-4, seq_ms=0.03),
)
DISTSERVE = DistServe(
    prefill_base_ms=22.0,
    prefill_token_ms=0.14,
    prefill_attention_token2_ms=8e-6,
    small_batch_below=95,
    decode_small=DecodeLine(base_ms=23.5, context_token_ms=6e-4, seq_ms=0.06),
    decode_large=DecodeLine(base_ms=20.2, context_token_ms=5e-4, seq_ms=0.12),
)
BILINEAR = Bilinear(
    prefill=BatchFit(alpha_ms=0.1, beta_ms=5.7, gamma_ms=0.01, delta_ms=43.67),
    decode=BatchFit(alpha_ms=0.0002, beta_ms=0.275, gamma_ms=0.00088, delta_ms=15.85),
)

LOADS = [
    *(StepLoad.of(decode_contexts=[c] * n) for n in (1, 4, 16, 64, 80, 96, 128, 256) for c in (100, 1000, 4000)),
    *(StepLoad.of([(n, 0)] * k) for n in (32, 64, 128, 512, 2048) for k in (1, 2, 5)),
    *(StepLoad.of([(n, f)]) for n in (64, 512, 1024) for f in (1024, 8192)),
]
MIXED = [StepLoad.of([(n, 0)], [c] * b) for n in (16, 64, 256, 1024) for b in (1, 8, 64) for c in (200, 900)]


def measured(form: StepLatency, loads: list[StepLoad], noise: float = 0.0) -> list[MeasuredStep]:
    rng = np.random.default_rng(0)
    return [MeasuredStep(load, form.step_s(load) * (1.0 + noise * rng.standard_normal())) for load in loads]


def test_hinge_is_recovered_with_its_threshold_and_its_negative_seq_ms() -> None:
    form = fit_hinge(measured(HINGE, LOADS + MIXED))
    assert form.free_tokens == 96
    assert (form.base_ms, form.token_ms, form.seq_ms) == pytest.approx((10.0, 0.05, -0.02))
    assert (form.attention_token2_ms, form.prefix_attention_token2_ms) == pytest.approx((2e-6, 1e-6))
    assert (form.context_token_ms, form.prefill_ms, form.decode.seq_ms) == pytest.approx((1e-4, 0.3, 0.03))


@pytest.mark.parametrize("form", [HINGE, DISTSERVE, BILINEAR], ids=lambda form: form.form)
def test_drafts_are_counted_once(form: Hinge | DistServe | Bilinear) -> None:
    """An engine with three drafts a step: the fit knows what its steps take, and what they would without drafts."""
    fit = {"hinge": fit_hinge, "distserve": fit_distserve, "bilinear": fit_bilinear}[form.form]
    drafted = [replace(load, draft_tokens=(2 + i % 2) * load.decode_seqs) for i, load in enumerate(LOADS + MIXED)]
    found = fit(measured(form, drafted))
    assert score(found, measured(form, drafted)).mape_percent < 3.0
    plain = [load for load in LOADS if load.decode_seqs]
    assert score(found, measured(form, plain)).mape_percent < 6.0


def test_bilinear_and_distserve_are_recovered() -> None:
    # Their prefill knows no prefix, and both were measured on steps of one kind.
    bilinear = fit_bilinear(measured(BILINEAR, LOADS + MIXED))
    assert bilinear.decode.beta_ms == pytest.approx(0.275)
    assert bilinear.prefill.alpha_ms == pytest.approx(0.1)
    distserve = fit_distserve(measured(DISTSERVE, LOADS + MIXED))
    assert distserve.small_batch_below == 95
    assert distserve.decode_large.seq_ms == pytest.approx(0.12)
    assert distserve.prefill_attention_token2_ms == pytest.approx(8e-6)


@pytest.mark.parametrize("fit", [fit_hinge, fit_bilinear, fit_distserve])
def test_noise_leaves_the_predictions_near_and_no_coefficient_negative(fit) -> None:  # type: ignore[no-untyped-def]
    form = fit(measured(HINGE, LOADS + MIXED, noise=0.3))  # the dataclasses refuse what is negative
    assert all(0.0 < form.step_s(load) < 60.0 for load in LOADS + MIXED)


def test_score_of_a_perfect_and_of_a_biased_form() -> None:
    steps = measured(HINGE, LOADS)
    assert score(HINGE, steps).r2 == pytest.approx(1.0)
    slower = [MeasuredStep(s.load, s.duration_s * 1.25) for s in steps]
    assert score(HINGE, slower).mape_percent == pytest.approx(20.0)
    assert score(HINGE, slower).r2 < 1.0
    with pytest.raises(ValueError, match="at least two"):
        score(HINGE, steps[:1])


@given(count=st.integers(10, 60), share=st.sampled_from([0.2, 0.25, 0.5]), seed=st.integers(0, 9))
def test_parts_are_disjoint_and_the_extremes_are_fitted(count: int, share: float, seed: int) -> None:
    steps = [MeasuredStep(StepLoad(decode_seqs=i + 1), 0.01 * (i * 7 % count + 1)) for i in range(count)]
    fitted, out = held_out(steps, share, seed)
    assert len(fitted) + len(out) == count and not set(fitted) & set(out)
    assert abs(len(out) - share * count) <= 2
    assert {s.duration_s for s in fitted} >= {min(s.duration_s for s in steps), max(s.duration_s for s in steps)}


def test_too_few_steps_say_which_kind_is_missing() -> None:
    with pytest.raises(ValueError, match="0 steps with prefill; a fit needs at least 6"):
        fit_hinge(measured(HINGE, LOADS[:24]))
    with pytest.raises(ValueError, match="0 steps without prefill"):
        fit_bilinear(measured(HINGE, LOADS[24:]))
