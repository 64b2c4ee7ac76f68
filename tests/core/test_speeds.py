"""Speeds of readers and listeners come out as Andes states them, one by one and on average."""

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.speeds import READING, SPEAKING, DigestSpeeds, tokens_per_s


@pytest.mark.parametrize(("speeds", "mean", "fastest"), [(READING, 4.8, 5.459), (SPEAKING, 3.3, 4.661)])
def test_digest_speeds_average_what_andes_states(speeds: DigestSpeeds, mean: float, fastest: float) -> None:
    assert sum(share for _, share, _ in speeds.groups) == pytest.approx(1.0)
    drawn = speeds.at(np.random.default_rng(0).random(50_000))
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.max() == pytest.approx(fastest, abs=0.001)
    assert np.unique(drawn).size == np.unique(speeds.tds()).size


@pytest.mark.parametrize("speeds", [READING, SPEAKING])
def test_a_group_is_found_by_name(speeds: DigestSpeeds) -> None:
    assert [speeds.of(name) for name, _, _ in speeds.groups] == pytest.approx(speeds.tds().tolist())
    with pytest.raises(ConfigError, match=f"no speed of 'Latin'; groups are {speeds.groups[0][0]}, "):
        speeds.of("Latin")


def test_words_per_minute_become_tokens_per_second() -> None:
    assert tokens_per_s(200.0) == pytest.approx(READING.of("25-44"))
    assert tokens_per_s(150.0, SPEAKING.tokens_per_word) == pytest.approx(SPEAKING.of("English"))
    assert tokens_per_s(60.0, tokens_per_word=2.0) == 2.0


@pytest.mark.parametrize(("words", "ratio"), [(0.0, 1.0), (-1.0, 1.0), (60.0, 0.0), (float("nan"), 1.0)])
def test_a_pace_that_is_none_is_refused(words: float, ratio: float) -> None:
    with pytest.raises(ConfigError, match="is not above 0"):
        tokens_per_s(words, ratio)
