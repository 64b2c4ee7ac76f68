"""Generators: the published statistics come out, and one seed gives one workload."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads import length_models
from sloserve.sim.workloads.arrival_processes import ArrivalProcess, Bursts, Gamma, OnOff, Poisson, generate
from sloserve.sim.workloads.length_models import IndependentLengths, TokenCount
from sloserve.sim.workloads.seeding import stream

SHORT = IndependentLengths(length_models.fixed(10), length_models.uniform(1, 4))


@pytest.mark.parametrize(
    ("count", "mean", "minimum", "maximum"),
    [  # EconoServe, Table 2
        (length_models.alpaca().prompt, 19.31, 9, 2470),
        (length_models.alpaca().output, 58.41, 13, 292),
        (length_models.sharegpt().prompt, 161.31, 16, 3200),
        (length_models.sharegpt().output, 337.99, 19, 991),
        (length_models.multiround().prompt, 3 * 161.31, 16, 1024),
        (length_models.bookcorpus().prompt, 1952.11, 18, 2048),
        (length_models.bookcorpus().output, 681.2, 32, 1041),
    ],
)
def test_lengths_have_the_published_statistics(count: TokenCount, mean: float, minimum: int, maximum: int) -> None:
    assert count.mean == pytest.approx(mean, abs=1e-6)
    assert (count.minimum, count.maximum) == (minimum, maximum)
    drawn = count.draw(50_000, np.random.default_rng(1))
    assert drawn.dtype == np.int64
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert minimum <= drawn.min() <= minimum + 20
    assert drawn.max() <= maximum


def test_replies_that_reason_have_a_median_of_1500_tokens_and_a_long_tail() -> None:
    replies = length_models.reasoning().output
    steps = np.cumsum(replies.probability)
    median, late = (replies.minimum + int(np.searchsorted(steps, level)) for level in (0.5, 0.99))
    assert 1_450 <= median <= 1_550
    assert late > 10_000 and replies.maximum == 30_000


def test_most_bookcorpus_prompts_are_full_chunks() -> None:
    assert length_models.bookcorpus().prompt.probability[-1] == pytest.approx(0.9055, abs=0.001)


@given(st.integers(1, 100), st.integers(2, 3000), st.floats(0.01, 0.95), st.floats(0.3, 2.5))
def test_truncated_lognormal_hits_its_mean_anywhere_inside_its_range(
    minimum: int, width: int, place: float, log_std: float
) -> None:
    mean = minimum + place * width
    count = length_models.truncated_lognormal(mean, minimum, minimum + width, log_std)
    assert count.mean == pytest.approx(mean, rel=1e-6)
    assert count.probability.sum() == pytest.approx(1.0)


def test_impossible_lengths_are_refused() -> None:
    for mean, minimum, maximum in ((5, 5, 9), (9, 5, 9), (3, 5, 9), (3, 0, 9)):
        with pytest.raises(ValueError, match="is not inside"):
            length_models.truncated_lognormal(mean, minimum, maximum)
    with pytest.raises(ValueError, match="is not between"):
        length_models.chunks(100.0, 18, 2048)
    with pytest.raises(ValueError, match="starts at 1"):
        length_models.uniform(0, 3)


def test_fixed_and_uniform() -> None:
    rng = np.random.default_rng(0)
    assert set(length_models.fixed(7).draw(50, rng).tolist()) == {7}
    assert set(length_models.uniform(3, 5).draw(500, rng).tolist()) == {3, 4, 5}


@pytest.mark.parametrize(("process", "cv"), [(Poisson(), 1.0), (Gamma(3.0), 3.0), (Gamma(0.5), 0.5)])
def test_renewal_processes_have_their_rate_and_cv(process: ArrivalProcess, cv: float) -> None:
    gaps = np.diff(process.draw(200_000, np.random.default_rng(2)))
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_bursts_come_together_at_the_mean_rate() -> None:
    arrivals = Bursts(4).draw(10, np.random.default_rng(0))
    assert arrivals.tolist() == [2.0] * 4 + [6.0] * 4 + [10.0] * 2


def test_on_off_carries_its_share_in_bursts() -> None:
    arrivals = OnOff(burst_size=50, burst_share=0.4).draw(20_000, np.random.default_rng(3))
    _, together = np.unique(arrivals, return_counts=True)
    assert (together == 50).sum() * 50 / 20_000 == pytest.approx(0.4, rel=0.05)
    assert arrivals[-1] == pytest.approx(20_000, rel=0.03)
    assert np.all(np.diff(arrivals) >= 0)


def test_impossible_processes_are_refused() -> None:
    for cv in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="cv"):
            Gamma(cv)
    with pytest.raises(ValueError, match="bursts of 0"):
        OnOff(0, 0.5)
    with pytest.raises(ValueError, match="burst_share"):
        OnOff(5, 1.0)


def test_one_seed_is_one_trace_at_every_rate() -> None:
    one, again = (generate("g", Poisson(), SHORT, 500, 4, 2.0, "chat") for _ in range(2))
    faster = generate("g", Poisson(), SHORT, 500, 4, 6.0, "chat")
    other = generate("g", Poisson(), SHORT, 500, 5, 2.0, "chat")
    assert np.array_equal(one.arrival_s, again.arrival_s)
    assert np.array_equal(one.output_tokens, faster.output_tokens)
    assert np.allclose(one.arrival_s, 3.0 * faster.arrival_s)
    assert not np.array_equal(one.output_tokens, other.output_tokens)
    assert one.arrival_s[0] == 0.0
    assert set(one.task) == {"chat"}


def test_bad_counts_and_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        generate("g", Poisson(), SHORT, 0, 1, 1.0)
    with pytest.raises(ConfigError, match="positive number"):
        generate("g", Poisson(), SHORT, 5, 1, 0.0)


def test_streams_are_apart() -> None:
    draws = {stream(seed, name).random() for seed in (0, 1) for name in ("arrivals", "lengths")}
    assert len(draws) == 4
    assert stream(0, "arrivals").random() in draws
    with pytest.raises(ValueError, match="non-negative"):
        stream(-1, "arrivals")
