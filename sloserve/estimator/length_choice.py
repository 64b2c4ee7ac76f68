"""Which predictor of output lengths, by its name in a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sloserve.core.errors import ConfigError
from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_gaussian import GaussianLength
from sloserve.estimator.length_given import OracleLength, RangeLength
from sloserve.estimator.length_learned import LearnedLength, load_length_model
from sloserve.estimator.length_rest import LengthEstimator

PREDICTORS = ("empirical", "gaussian", "range", "oracle", "learned")


@dataclass(frozen=True)
class LengthChoice:
    """predictor: one of PREDICTORS. error: relative error put on what an oracle knows. model: file of a learned one.

    ranges: class name -> (least, most) output tokens, for ``range``; other classes are predicted as by ``empirical``,
    as are requests that tell an oracle nothing.
    """

    predictor: str = "empirical"
    error: float = 0.0
    model: str | None = None
    ranges: Mapping[str, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.predictor not in PREDICTORS:
            raise ConfigError(f"length predictor {self.predictor!r} is unknown; known: {', '.join(PREDICTORS)}")
        if (self.model is not None) != (self.predictor == "learned"):
            raise ConfigError(f"length predictor {self.predictor!r}: model is to be given for learned, and only there")
        if (self.ranges is not None) != (self.predictor == "range"):
            raise ConfigError(f"length predictor {self.predictor!r}: ranges are to be given for range, and only there")
        if self.error and self.predictor != "oracle":
            raise ConfigError(f"length predictor {self.predictor!r}: error is to be given for oracle only")


def make_length_estimator(choice: LengthChoice, class_names: Sequence[str] = (), *, seed: int = 0) -> LengthEstimator:
    """A new predictor; ``class_names`` are the names of the class ids. Raises: ConfigError for an impossible choice."""
    try:
        if choice.predictor == "gaussian":
            return GaussianLength()
        if choice.predictor == "oracle":
            return OracleLength(choice.error, seed=seed)
        if choice.predictor == "range":
            return RangeLength(_by_id(choice.ranges or {}, class_names))
        if choice.model is not None:
            return LearnedLength(load_length_model(Path(choice.model)), class_names)
        return EmpiricalLength()
    except ValueError as error:
        raise ConfigError(f"length predictor {choice.predictor!r}: {error}") from None


def _by_id(ranges: Mapping[str, tuple[int, int]], class_names: Sequence[str]) -> dict[int, tuple[int, int]]:
    unknown = sorted(set(ranges) - set(class_names))
    if unknown:
        raise ValueError(f"no class is named {unknown[0]!r}; known: {', '.join(class_names)}")
    return {class_names.index(name): (lower, upper) for name, (lower, upper) in ranges.items()}
