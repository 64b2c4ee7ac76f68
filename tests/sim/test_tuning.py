"""Tuning of static engine flags: what is tried, what is chosen, and that noise chooses nothing."""

from collections.abc import Mapping, Sequence

import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.tuning import Score, parse_axes, ranked, tune

SETTINGS = EngineSettings(10_000, max_num_seqs=256, max_num_batched_tokens=2048)


def score(attainment: float, throughput: float = 1000.0) -> Score:
    return Score((attainment, attainment + 0.01), (throughput, throughput))


class Stub:
    """Scores by name; everything else is as good as the default."""

    def __init__(self, scores: Mapping[str, Score]) -> None:
        self.scores = scores
        self.calls: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> Mapping[str, Score]:
        self.calls.append(list(names))
        return {name: self.scores.get(name, score(0.5)) for name in names}


def test_flags_are_tried_one_after_another_for_the_two_best() -> None:
    tokens, seqs = "@max_num_batched_tokens=", ":max_num_seqs="
    stub = Stub(
        {
            f"edf{tokens}1024": score(0.9),
            f"edf{tokens}512": score(0.8),
            f"edf{tokens}512{seqs}64": score(0.95),
        }
    )
    axes = parse_axes(["max_num_batched_tokens=128,512,1024,2048", "max_num_seqs=64,256"])
    stock, edf = tune(["stock", "edf"], axes, SETTINGS, stub)
    assert (stock.best, edf.best) == ("stock", f"edf{tokens}512{seqs}64")
    assert len(edf.tried) == 5
    assert stub.calls == [
        # 128 tokens are no engine with 256 requests, and 2048 is the default.
        ["stock", f"stock{tokens}512", f"stock{tokens}1024", "edf", f"edf{tokens}512", f"edf{tokens}1024"],
        ["stock@max_num_seqs=64", f"stock{tokens}512{seqs}64", f"edf{tokens}1024{seqs}64", f"edf{tokens}512{seqs}64"],
    ]


@pytest.mark.parametrize(
    ("other", "best"),
    [
        (score(0.52), "other"),
        (score(0.503), "default"),
        (score(0.503, 1050.0), "other"),
        (score(0.503, 1005.0), "default"),
        (score(0.4, 2000.0), "default"),
        (Score((0.8, 0.3), (1000.0, 1000.0)), "default"),
    ],
)
def test_targets_come_first_then_tokens_and_noise_changes_nothing(other: Score, best: str) -> None:
    assert ranked({"default": score(0.5), "other": other}, "default")[0] == best


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["max_seqs=1"], "engine option 'max_seqs' is unknown; known here: max_num_batched_tokens"),
        (["max_num_seqs=1,x"], "max_num_seqs: 'x' is not a whole number >= 1"),
        (["max_num_seqs"], "max_num_seqs: '' is not a whole number"),
        (["max_num_seqs=1", "max_num_seqs=2"], "max_num_seqs is given twice"),
    ],
)
def test_flags_that_make_no_sense_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_axes(texts)
