"""The largest chunk within a time: never too large, monotone, and close to the largest where the form is monotone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.step_time.inverse import MOST_TOKENS
from sloserve.estimator.step_time.latency import BatchFit, Bilinear, DecodeLine, DistServe, Hinge, StepLatency, StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.estimator.step_time.recalibrate import Recalibrated
from tests.estimator.step_time.forms import BILINEAR, DISTSERVE, HINGE


def corrected(profile: Hinge | DistServe | Bilinear, decode: float, prefill: float) -> Recalibrated:
    """A correction whose factors have come to lie apart."""
    model = Recalibrated(profile)
    decodes, mixed = StepLoad.of((), [800] * 60), StepLoad.of([(1500, 0)])
    for _ in range(80):
        model.observe(decodes, decode * profile.step_s(decodes))
        model.observe(mixed, prefill * profile.step_s(mixed))
    return model


line = st.builds(
    DecodeLine,
    base_ms=st.floats(0.1, 40.0),
    context_token_ms=st.floats(0.0, 1e-3),
    seq_ms=st.floats(0.0, 0.2),
)
hinges = st.builds(
    Hinge,
    free_tokens=st.integers(0, 300),
    base_ms=st.floats(61.0, 80.0),
    token_ms=st.floats(0.0, 0.1).map(lambda ms: 0.2 + ms),
    seq_ms=st.floats(-0.2, 0.1),
    context_token_ms=st.floats(0.0, 1e-3),
    attention_token2_ms=st.floats(0.0, 1e-5),
    prefix_attention_token2_ms=st.floats(0.0, 1e-5),
    prefill_ms=st.floats(0.0, 1.0),
    decode=line,
)
distserves = st.builds(
    DistServe,
    prefill_base_ms=st.floats(0.1, 40.0),
    prefill_token_ms=st.floats(0.0, 0.3),
    prefill_attention_token2_ms=st.floats(0.0, 1e-5),
    small_batch_below=st.integers(1, 100),
    decode_small=line,
    decode_large=line,
)
batches = st.builds(
    BatchFit,
    alpha_ms=st.floats(0.0, 0.1),
    beta_ms=st.floats(0.0, 6.0),
    gamma_ms=st.floats(0.0, 0.1),
    delta_ms=st.floats(0.1, 50.0),
)
PROFILE = load_profile("h200-llama3-8b")
CORRECTED = [corrected(form, *by) for form in (HINGE, DISTSERVE, BILINEAR) for by in ((1.0, 1.6), (1.6, 1.0))]
forms = st.one_of(
    hinges, distserves, st.builds(Bilinear, prefill=batches, decode=batches), st.sampled_from([PROFILE, *CORRECTED])
)
chunks = st.tuples(st.integers(1, 4000), st.integers(0, 60_000))
seconds = st.floats(0.0, 2.0)
prefixes = st.integers(0, 100_000)
# As many sequences of the same context as there are: the one order of decodes that every form agrees on.
bases = st.builds(
    lambda prefills, seqs, context: StepLoad.of(prefills, [context] * seqs),
    st.lists(chunks, max_size=3),
    st.integers(0, 200),
    st.integers(1, 6000),
)


def with_chunk(base: StepLoad, chunk: int, prefix: int) -> StepLoad:
    return replace(
        base,
        prefill_tokens=base.prefill_tokens + chunk,
        num_prefills=base.num_prefills + 1,
        prefill_attention_tokens2=base.prefill_attention_tokens2 + chunk * (chunk + 2 * prefix),
    )


@given(forms, bases, seconds, prefixes)
def test_what_is_promised_fits(form: StepLatency, base: StepLoad, seconds: float, prefix: int) -> None:
    chunk = form.prefill_within(seconds, base, prefix)
    assert 0 <= chunk <= MOST_TOKENS
    if chunk:
        assert form.step_s(with_chunk(base, chunk, prefix)) <= seconds
        assert form.step_s(base) <= seconds


@given(forms, bases, seconds, prefixes, st.floats(0.0, 0.5), st.integers(0, 5000))
def test_more_time_and_less_prefix_never_make_it_smaller(
    form: StepLatency, base: StepLoad, seconds: float, prefix: int, more_s: float, longer: int
) -> None:
    chunk = form.prefill_within(seconds, base, prefix)
    assert form.prefill_within(seconds + more_s, base, prefix) >= chunk
    assert form.prefill_within(seconds, base, prefix + longer) <= chunk


@given(forms, bases, seconds, prefixes, st.none() | chunks, st.integers(0, 100), st.integers(0, 3000))
def test_more_beside_it_never_makes_it_larger(
    form: StepLatency,
    base: StepLoad,
    seconds: float,
    prefix: int,
    joins: tuple[int, int] | None,
    seqs: int,
    longer: int,
) -> None:
    each = -(-base.decode_context_tokens // base.decode_seqs) + longer if base.decode_seqs else longer
    more = replace(
        base if joins is None else with_chunk(base, *joins),
        decode_seqs=base.decode_seqs + seqs,
        decode_context_tokens=base.decode_context_tokens + seqs * each,
    )
    assert form.prefill_within(seconds, more, prefix) <= form.prefill_within(seconds, base, prefix)


@given(
    st.sampled_from([HINGE, DISTSERVE, BILINEAR, PROFILE, Recalibrated(PROFILE)]),
    st.integers(0, 94),
    st.integers(1, 3000),
    st.floats(0.02, 0.15),
    prefixes,
)
def test_it_is_the_largest_where_the_form_is_monotone(
    form: StepLatency, seqs: int, context: int, seconds: float, prefix: int
) -> None:
    """Beside decodes of one set, without other prompts. The hinge's free tokens hide decodes of negative cost."""
    base = StepLoad.of((), [context] * (0 if form is HINGE else seqs))
    low, high = 0, MOST_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        fits = form.step_s(with_chunk(base, middle, prefix)) <= seconds
        low, high = (middle, high) if fits else (low, middle - 1)
    if form.step_s(base) <= seconds:
        assert low - 1 <= form.prefill_within(seconds, base, prefix) <= low


@pytest.mark.parametrize("form", [HINGE, DISTSERVE, BILINEAR, PROFILE, Recalibrated(PROFILE)])
def test_without_time_nothing_fits(form: StepLatency) -> None:
    assert form.prefill_within(0.0, StepLoad(), 0) == form.prefill_within(-1.0, StepLoad(), 0) == 0


def test_a_long_prefix_leaves_less_room_in_the_same_step() -> None:
    decodes = StepLoad.of((), [500] * 100)
    assert PROFILE.prefill_within(0.051, decodes, 0) > 1800
    assert PROFILE.prefill_within(0.051, decodes, 60_000) < 700
