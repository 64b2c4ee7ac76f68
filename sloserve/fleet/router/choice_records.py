"""The log of choices: one line of JSON for each choice of a model and its outcome, after a line about the run.

A record has numbers, and names that the router's own file gives: nothing that a client wrote, no tenant, no key. Lines
that are not whole records, such as the torn end of a file after a crash, are counted and left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.errors import ConfigError

VERSION: Final = 1
MOST_LINE_BYTES: Final = 64 * 2**10
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Index = Annotated[int, msgspec.Meta(ge=0)]


class RunLine(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """The line before the choices of one run of a gateway.

    Args:
        version: Version of the format.
        run: Random name of the run.
        schema: Names of the features, as :meth:`sloserve.fleet.router.features.Schema.as_text` gives them.
        models: Names of the models, smallest first.
        policy: Name of the policy.
        explore: Share of the requests that explore.
    """

    version: int
    run: str
    schema: str
    models: list[str]
    policy: str
    explore: float


class ChoiceLine(msgspec.Struct, frozen=True, tag="choice", tag_field="kind"):
    """One choice and its outcome.

    Args:
        n: Number of the request at its gateway.
        at_s: Monotonic time of the choice in seconds; only differences mean anything.
        task: Task in the quality table; ``None`` if unknown.
        weight: Weight of the request's class.
        x: Features that a trained policy sees.
        allowed: Indices of the models that could serve it and should be in time.
        best: Index of the model that greedy would choose.
        chosen: Index of the chosen model.
        why: Reason for the choice.
        p: Probability with which the model was chosen.
        quality: Quality of the chosen model at the task.
        limit_s: Seconds that the request had.
        took_s: Seconds from arrival to the end of the response.
        in_time: Whether the response was complete and in time; ``None`` if that is not known, since the client left.
        tokens: Number of output tokens.
    """

    n: _Index
    at_s: float
    task: str | None
    weight: Annotated[float, msgspec.Meta(gt=0.0)]
    x: list[float]
    allowed: list[_Index]
    best: _Index
    chosen: _Index
    why: str
    p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    quality: _Share
    limit_s: Annotated[float, msgspec.Meta(gt=0.0)]
    took_s: Annotated[float, msgspec.Meta(ge=0.0)]
    in_time: bool | None
    tokens: _Index


_decode = msgspec.json.Decoder(RunLine | ChoiceLine).decode


@dataclass(frozen=True, slots=True, eq=False)
class LoggedChoices:
    """Choices in the order of their arrival, run after run; columns are ``[n]`` or ``[n, ...]``.

    Args:
        run: Number of the run.
        at_s: Time of the choice in seconds of the run's clock.
        states: Features.
        allowed: Models that were allowed, ``[n, models]``.
        best: Model that greedy would have chosen.
        chosen: Model that was chosen.
        propensity: Probability with which it was chosen.
        fixed: Whether no policy decided, since a conversation stayed on its model.
        reward: Weighted quality in time; not a number if it is unknown.
        limit_s: Seconds that the request had.
        lines_left_out: Number of lines that are not whole records of this router.
    """

    run: IntArray
    at_s: FloatArray
    states: FloatArray
    allowed: BoolArray
    best: IntArray
    chosen: IntArray
    propensity: FloatArray
    fixed: BoolArray
    reward: FloatArray
    limit_s: FloatArray
    lines_left_out: int = 0

    @property
    def followed(self) -> BoolArray:
        """Whether the run has a next choice, the features of which are the state that a choice leaves, ``[n]``."""
        return np.append(np.diff(self.run) == 0, np.zeros(min(self.run.size, 1), np.bool_))

    @property
    def explored(self) -> BoolArray:
        """Whether the choice belongs to a run in which each choice among several models could explore, ``[n]``."""
        certain = ~self.fixed & (self.allowed.sum(axis=1) > 1) & (self.propensity >= 1.0)
        return ~np.isin(self.run, self.run[certain])

    def where(self, kept: BoolArray) -> "LoggedChoices":
        """Return the choices that ``kept`` marks."""
        columns = (getattr(self, name)[kept] for name in self.__slots__ if name != "lines_left_out")
        return LoggedChoices(*columns)


def read_choices(files: Sequence[Path], schema: str, models: Sequence[str]) -> LoggedChoices:
    """Return the choices in log files.

    Runs of a router with other models, other features or another version are left out.

    Args:
        files: Paths of the files; files of several gateways may be read together.
        schema: Schema, as text, of the features that a policy sees.
        models: Names of the router's models.

    Raises:
        ConfigError: A file cannot be read, or no file has a choice of this router.
    """
    lines: dict[str, dict[int, ChoiceLine]] = {}
    others: list[tuple[Path, RunLine]] = []
    left_out = 0
    for path in files:
        try:
            with path.open("rb") as file:
                left_out += _read(path, file, lines, others, schema, list(models))
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the log of choices: {error.strerror}") from None
    by_run = [[of[n] for n in sorted(of)] for of in lines.values()]
    found = [one for of in by_run for one in of]
    if not found and others:
        of_file, other = others[0]
        raise ConfigError(
            f"{of_file}: its choices are among {', '.join(other.models)}, with the features {other.schema} (version "
            f"{other.version}); the router has {', '.join(models)}, with {schema} (version {VERSION}); give logs of "
            "this router"
        )
    if not found:
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: no choices; set `log` in the router's file and serve requests for `auto`")
    allowed = np.zeros((len(found), len(models)), np.bool_)
    for i, one in enumerate(found):
        allowed[i, one.allowed] = True
    rewards = [np.nan if c.in_time is None else c.weight * c.quality * c.in_time for c in found]
    return LoggedChoices(
        run=np.repeat(np.arange(len(by_run)), [len(of) for of in by_run]),
        at_s=np.array([c.at_s for c in found]),
        states=np.array([c.x for c in found]),
        allowed=allowed,
        best=np.array([c.best for c in found], np.int64),
        chosen=np.array([c.chosen for c in found], np.int64),
        propensity=np.array([c.p for c in found]),
        fixed=np.array([c.why == "conversation" for c in found]),
        reward=np.array(rewards, np.float64),
        limit_s=np.array([c.limit_s for c in found]),
        lines_left_out=left_out,
    )


def _read(
    path: Path,
    file: BinaryIO,
    lines: dict[str, dict[int, ChoiceLine]],
    others: list[tuple[Path, RunLine]],
    schema: str,
    models: list[str],
) -> int:
    """Add the choices of one file to ``lines``, and return how many lines were left out.

    Args:
        path: Path of the file.
        file: The open file.
        lines: Choices by run and number.
        others: Runs of other routers, with their files; runs of this file are added.
        schema: Schema of the features, as text.
        models: Names of the router's models.
    """
    into: dict[int, ChoiceLine] | None = None
    left_out, inputs = 0, schema.count(",") + 1
    while line := file.readline(MOST_LINE_BYTES):
        try:
            one = _decode(line) if line.endswith(b"\n") else None
        except msgspec.MsgspecError:
            one = None
        if isinstance(one, RunLine):
            if (one.version, one.schema, one.models) == (VERSION, schema, models):
                into = lines.setdefault(one.run, {})
            else:
                into = None
                others.append((path, one))
        elif one is not None and into is not None and _fits(one, inputs, len(models)):
            into[one.n] = one
        else:
            left_out += 1
    return left_out


def _fits(one: ChoiceLine, inputs: int, models: int) -> bool:
    indices = (*one.allowed, one.best, one.chosen)
    return len(one.x) == inputs and max(indices) < models and one.chosen in one.allowed and one.best in one.allowed
