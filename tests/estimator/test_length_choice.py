"""Every predictor by its name, and all of them behind the one interface."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.length_choice import PREDICTORS, LengthChoice, make_length_estimator
from sloserve.estimator.length_examples import make_examples
from sloserve.estimator.length_rest import Requests
from sloserve.estimator.length_training import TrainingSettings, train

NAMES = ("interactive", "batch")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    path: Path = tmp_path_factory.mktemp("model") / "model.json"
    lengths = np.arange(1, 201)
    train(make_examples(lengths, prompt_tokens=lengths), TrainingSettings(levels=(0.1, 0.5, 0.9), trees=5)).save(path)
    return {"learned": {"model": str(path)}, "range": {"ranges": {"batch": (50, 60)}}, "oracle": {"error": 0.1}}


@pytest.mark.parametrize("name", PREDICTORS)
def test_one_interface(name: str, options: dict[str, dict[str, Any]]) -> None:
    predictor = make_length_estimator(LengthChoice(name, **options.get(name, {})), NAMES)
    predictor.observe(0, 30)
    asked = Requests(
        class_id=np.array([0, 1, 1]),
        output_tokens=np.array([0, 10, 5000]),
        max_tokens=np.array([1000, 1000, 5100]),
        stated_tokens=np.array([100, -1, -1]),
        seq=np.array([3, 4, 5]),
    )
    rest = predictor.rest(asked)
    median, p90, mean = rest.quantile(0.5), rest.quantile(0.9), rest.mean()
    for values in (median, p90, mean):
        assert values.shape == (3,) and (values >= 1).all() and (values <= [1000, 990, 100]).all()
    assert (median <= p90).all() and (rest.survival(median) <= 0.55).all()
    plain = predictor.remaining(asked.class_id, asked.output_tokens, asked.max_tokens)
    assert plain.shape == (3,) and (plain >= 1).all() and (plain <= [1000, 990, 100]).all()


def test_ranges_are_by_class_name() -> None:
    predictor = make_length_estimator(LengthChoice("range", ranges={"batch": (50, 60)}), NAMES)
    left = predictor.remaining(np.array([1]), np.array([0]), np.array([1000]))
    assert left.tolist() == [55.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"predictor": "guess"}, "unknown; known: empirical"),
        ({"predictor": "learned"}, "model is to be given"),
        ({"predictor": "range"}, "ranges are to be given"),
        ({"model": "x.json"}, "model is to be given for learned"),
        ({"error": 0.1}, "error is to be given for oracle"),
        ({"predictor": "oracle", "error": -1.0}, "error -1"),
        ({"predictor": "learned", "model": "absent.json"}, "absent.json: cannot read"),
        ({"predictor": "range", "ranges": {"chat": (1, 2)}}, "no class is named 'chat'"),
        ({"predictor": "range", "ranges": {"batch": (3, 2)}}, "3..2"),
    ],
)
def test_an_impossible_choice_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_length_estimator(LengthChoice(**given), NAMES)
