"""What drafts bring is learnt by class, place by place, and is never absurd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.drafting import PRIOR_ACCEPTANCE, Drafting

K = 3


def accepted(rng: np.random.Generator, chances: tuple[float, ...], n: int) -> np.ndarray:
    """Return how many drafts are accepted of each of ``n`` decodes."""
    passes = rng.random((n, len(chances))) < np.array(chances)
    return np.cumprod(passes, axis=1).sum(axis=1)


def test_before_any_step_the_prior_stands() -> None:
    facts = Drafting(2, K).facts
    expected = 1.0 + PRIOR_ACCEPTANCE + PRIOR_ACCEPTANCE**2 + PRIOR_ACCEPTANCE**3
    assert facts.tokens_per_step == pytest.approx(expected) and facts.of_class == pytest.approx([1.0] * 2)
    assert facts.accepted == pytest.approx([PRIOR_ACCEPTANCE] * K)


@pytest.mark.slow
def test_classes_and_places_are_told_apart() -> None:
    drafting, rng = Drafting(3, K), np.random.default_rng(0)
    of_class = ((0.9, 0.8, 0.7), (0.5, 0.4, 0.3))
    for _ in range(400):
        for class_id, chances in enumerate(of_class):
            tokens = 1 + accepted(rng, chances, 16)
            drafting.observe(np.full(16, class_id), np.full(16, K), tokens)
    facts = drafting.facts
    means = [1.0 + a + a * b + a * b * c for a, b, c in of_class]
    assert 1.0 + facts.promised * facts.of_class[:2] == pytest.approx(means, rel=0.02)
    assert 1.0 + facts.promised * facts.of_class[2] == pytest.approx(facts.tokens_per_step)  # none of it has decoded
    assert facts.tokens_per_step == pytest.approx(np.mean(means), rel=0.02)
    assert 0.0 < facts.error < 0.03
    both = [np.mean(pair) for pair in zip(*(np.cumprod(chances) for chances in of_class), strict=True)]
    assert np.cumprod(facts.accepted) == pytest.approx(both, rel=0.05)


@pytest.mark.slow
def test_a_change_is_followed() -> None:
    drafting, rng = Drafting(1, K), np.random.default_rng(0)
    for chance in (0.9, 0.3):
        for _ in range(1000):
            drafting.observe(np.zeros(32, np.int64), np.full(32, K), 1 + accepted(rng, (chance,) * K, 32))
    assert drafting.facts.tokens_per_step == pytest.approx(1.0 + 0.3 + 0.09 + 0.027, rel=0.05)


@pytest.mark.slow
def test_drafts_that_are_left_out_say_nothing_of_those_that_are_not() -> None:
    """The mean follows what decodes have of late, and how a class fares does not."""
    drafting, rng = Drafting(1, K), np.random.default_rng(0)
    for _ in range(300):
        drafting.observe(np.zeros(32, np.int64), np.full(32, K), 1 + accepted(rng, (0.8,) * K, 32))
    known = drafting.facts
    for _ in range(300):
        drafting.observe(np.zeros(32, np.int64), np.zeros(32, np.int64), np.ones(32, np.int64))
    none = drafting.facts
    assert none.accepted == pytest.approx(known.accepted, rel=0.02)
    assert none.of_class == pytest.approx(known.of_class, rel=0.02)
    assert known.tokens_per_step == pytest.approx(1.0 + 0.8 + 0.64 + 0.512, rel=0.02)
    assert none.tokens_per_step == pytest.approx(1.0, abs=0.01)


decodes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, K), st.integers(0, 99)), max_size=40)


@given(st.lists(decodes, max_size=20))
def test_figures_are_possible_whatever_is_observed(steps: list[list[tuple[int, int, int]]]) -> None:
    drafting = Drafting(2, K)
    for step in steps:
        columns = np.array(step, np.int64).reshape(-1, 3)
        drafting.observe(*columns.T)
        facts = drafting.facts
        assert 1.0 <= facts.tokens_per_step <= K + 1 and (facts.of_class >= 0.0).all()
        assert np.isfinite(facts.of_class).all() and 0.0 <= facts.promised <= K
        assert ((0.0 <= facts.accepted) & (facts.accepted <= 1.0)).all() and 0.0 <= facts.error < K
