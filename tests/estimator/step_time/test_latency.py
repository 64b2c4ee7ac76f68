"""Step latency: the published formulas, the rule for mixed steps, and positive finite times on any load."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.step_time.latency import DecodeLine, Hinge, StepLatency, StepLoad
from tests.estimator.step_time.forms import BILINEAR, DISTSERVE, HINGE

FORMS: list[StepLatency] = [HINGE, DISTSERVE, BILINEAR]


def ms(form: StepLatency, load: StepLoad) -> float:
    return form.step_s(load) * 1000.0


def test_load_of_chunks_sums_what_the_forms_read() -> None:
    load = StepLoad.of(prefills=[(512, 0), (256, 1024)], decode_contexts=[100, 50, 7])
    assert load == StepLoad(768, 2, 3, 157, 512 * 512 + 256 * (256 + 2048))
    assert load.tokens == 771


def test_chunks_of_one_prompt_sum_to_the_whole_prompts_attention() -> None:
    chunks = [StepLoad.of(prefills=[(300, done)]) for done in range(0, 1200, 300)]
    whole = StepLoad.of(prefills=[(1200, 0)])
    assert sum(c.prefill_attention_tokens2 for c in chunks) == whole.prefill_attention_tokens2


@pytest.mark.parametrize("form", FORMS)
def test_a_step_without_tokens_costs_nothing(form: StepLatency) -> None:
    assert form.step_s(StepLoad()) == 0.0


def test_hinge_uses_the_decode_only_set_without_prefill() -> None:
    assert ms(HINGE, StepLoad.of(decode_contexts=[500] * 40)) == pytest.approx(9.0 + 2e-4 * 20_000 + 0.03 * 40)


def test_hinge_charges_tokens_beyond_the_free_ones() -> None:
    assert ms(HINGE, StepLoad.of(prefills=[(100, 0)])) == pytest.approx(10.0 + 2e-6 * 100**2)
    mixed = StepLoad.of(prefills=[(150, 0)], decode_contexts=[1000] * 10)
    assert ms(HINGE, mixed) == pytest.approx(10.0 + 0.05 * 60 - 0.02 * 10 + 1e-4 * 10_000 + 2e-6 * 150**2)


def test_hinge_charges_a_prefix_at_the_attention_kernels_own_rate() -> None:
    with_prefix = ms(HINGE, StepLoad.of(prefills=[(200, 5000)]))
    assert with_prefix - ms(HINGE, StepLoad.of(prefills=[(200, 0)])) == pytest.approx(1e-6 * 2 * 200 * 5000)


def test_distserve_switches_sets_at_the_threshold() -> None:
    assert ms(DISTSERVE, StepLoad.of(decode_contexts=[10] * 94)) == pytest.approx(23.5 + 6e-4 * 940 + 0.06 * 94)
    assert ms(DISTSERVE, StepLoad.of(decode_contexts=[10] * 95)) == pytest.approx(20.2 + 5e-4 * 950 + 0.12 * 95)


def test_bilinear_is_the_papers_equations_on_equal_lengths() -> None:
    assert ms(BILINEAR, StepLoad.of(prefills=[(700, 0)] * 4)) == pytest.approx(
        0.1 * 4 * 700 + 5.7 * 4 + 0.01 * 700 + 43.67
    )
    decode = 0.0002 * 4 * 900 + 0.275 * 4 + 0.00088 * 900 + 15.85
    assert ms(BILINEAR, StepLoad.of(decode_contexts=[900] * 4)) == pytest.approx(decode)


@pytest.mark.parametrize(("form", "shared_ms"), [(DISTSERVE, 22.0), (BILINEAR, 15.85)])
def test_a_mixed_step_pays_the_smaller_constant_once(form: StepLatency, shared_ms: float) -> None:
    prefill = StepLoad.of(prefills=[(512, 0)])
    decode = StepLoad.of(decode_contexts=[300] * 8)
    mixed = StepLoad.of(prefills=[(512, 0)], decode_contexts=[300] * 8)
    assert ms(form, mixed) == pytest.approx(ms(form, prefill) + ms(form, decode) - shared_ms)


chunk_lists = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 200_000)), max_size=12)
context_lists = st.lists(st.integers(1, 200_000), max_size=300)


@given(chunks=chunk_lists, contexts=context_lists, form=st.sampled_from(FORMS))
def test_any_step_with_tokens_takes_positive_finite_time(
    chunks: list[tuple[int, int]], contexts: list[int], form: StepLatency
) -> None:
    load = StepLoad.of(chunks, contexts)
    step_s = form.step_s(load)
    assert math.isfinite(step_s)
    assert step_s > 0.0 if load.tokens else step_s == 0.0


@given(chunks=chunk_lists, contexts=context_lists, form=st.sampled_from([DISTSERVE, BILINEAR]))
def test_a_mixed_step_costs_no_less_than_either_part(
    chunks: list[tuple[int, int]], contexts: list[int], form: StepLatency
) -> None:
    both = form.step_s(StepLoad.of(chunks, contexts))
    parts = [StepLoad.of(chunks), StepLoad.of(decode_contexts=contexts)]
    assert both >= max(form.step_s(part) for part in parts) - 1e-12
    assert both <= sum(form.step_s(part) for part in parts) + 1e-12


@pytest.mark.parametrize("seq_ms", [-0.06, -0.2])
def test_hinge_refuses_a_set_that_could_cost_less_than_nothing(seq_ms: float) -> None:
    with pytest.raises(ValueError, match="a negative time"):
        Hinge(
            free_tokens=100,
            base_ms=10.0,
            token_ms=0.05,
            seq_ms=seq_ms,
            context_token_ms=0.0,
            attention_token2_ms=0.0,
            prefix_attention_token2_ms=0.0,
            decode=HINGE.decode,
        )


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_coefficients_are_checked_when_a_form_is_built(value: float) -> None:
    with pytest.raises(ValueError, match="base_ms"):
        DecodeLine(base_ms=value, context_token_ms=0.0, seq_ms=0.0)
