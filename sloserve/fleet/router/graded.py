"""The router's quality table from graded outputs: how often each model was right at each task, and how sure that is.

The inputs are folders and ``samples_TASK_DATE.jsonl`` of lm-evaluation-harness with ``--log_samples``, where the model
is the folder's name, and JSON or JSONL with rows that name ``model`` and ``task`` and have the ``score`` of one output,
from 0 to 1, or ``correct`` of ``answers``. Quality is relative to the best model of the task, as the router's file has
it.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.core.json_lines import lines_of
from sloserve.fleet.router.settings import parse_router

SAMPLES: Final = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.:-]+)\.jsonl")
Z95: Final = 1.959964
"""Quantile of the normal distribution for a two-sided interval of 95 %."""
DIGITS: Final = 3
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Graded:
    """Graded outputs of one model at one task.

    Args:
        correct: Sum of their scores.
    """

    model: str
    task: str
    correct: float
    answers: int

    @property
    def accuracy(self) -> float:
        """The mean score."""
        return self.correct / self.answers

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %; for scores between 0 and 1 it is wider than need be."""
        return wilson(self.correct, self.answers)


def wilson(correct: float, answers: int) -> tuple[float, float]:
    """Return the score interval of a share.

    Source: Wilson, "Probable inference", 1927.
    """
    share, spread = correct / answers, Z95 * Z95 / answers
    middle = share + spread / 2.0
    reach = Z95 * math.sqrt(share * (1.0 - share) / answers + spread / (4.0 * answers))
    return max(0.0, (middle - reach) / (1.0 + spread)), min(1.0, (middle + reach) / (1.0 + spread))


@dataclass(frozen=True, slots=True)
class QualityFile:
    """A quality table.

    Args:
        cells: Graded outputs by task and model, models from the least accurate on.
    """

    models: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Graded]]

    def quality(self, task: str, model: str) -> float:
        """Return the accuracy relative to the best model's at the task."""
        return self.cells[task][model].accuracy / max(cell.accuracy for cell in self.cells[task].values())

    def undecided(self) -> list[tuple[str, str, str]]:
        """Return neighbours with overlapping intervals: task, lesser model, next better model."""
        found = []
        for task, row in self.cells.items():
            ranked = sorted(row.values(), key=lambda cell: cell.accuracy)
            pairs = zip(ranked, ranked[1:], strict=False)
            found += [(task, low.model, high.model) for low, high in pairs if low.interval[1] > high.interval[0]]
        return found

    def as_rows(self) -> list[Row]:
        """Return a row for each task and model, for JSON and tables."""
        return [
            {
                "task": task,
                "model": model,
                "answers": row[model].answers,
                "accuracy": row[model].accuracy,
                "low": row[model].interval[0],
                "high": row[model].interval[1],
                "quality": self.quality(task, model),
            }
            for task, row in self.cells.items()
            for model in self.models
        ]

    def as_yaml(self) -> str:
        """Return a router's file: models, smallest first as far as accuracy shows, and quality with intervals."""
        table = {task: {m: round(self.quality(task, m), DIGITS) for m in self.models} for task in self.cells}
        lines = ["# Made by `sloserve router-quality`; docs/router.md explains every key. Models: smallest first."]
        lines.append(yaml.safe_dump({"models": list(self.models)}, default_flow_style=True, width=10_000).strip("{}\n"))
        lines += [
            "",
            "# Accuracy relative to the best model of the task. Comments: accuracy, 95 % interval, answers.",
            "quality:",
        ]
        for task, row in self.cells.items():
            for model in self.models:
                low, high = row[model].interval
                lines.append(f"  # {model}: {row[model].accuracy:.3f} ({low:.3f}..{high:.3f}) of {row[model].answers}")
            text = yaml.safe_dump({task: table[task]}, default_flow_style=True, sort_keys=False, width=10_000)
            lines.append(f"  {text.strip()[1:-1]}")
        made = "\n".join(lines) + "\n"
        parse_router(made, "the table")
        return made


def quality_of(
    paths: Sequence[Path], *, names: Mapping[str, str], metric: str, filtered: str | None, models: Sequence[str]
) -> QualityFile:
    """Return the table of the grades in the files.

    Args:
        paths: Files and folders to read.
        names: Names of models in the router, by their names in the files; others keep theirs.
        metric: Score of lm-evaluation-harness that counts.
        filtered: Filter of lm-evaluation-harness that counts, or ``None`` if there is only one.
        models: Names of the models, smallest first; sorted by mean accuracy if empty.

    Raises:
        ConfigError: a file cannot be read, a value is no score, or a model has no grades at a task.
    """
    sums: dict[tuple[str, str], Graded] = {}
    for path in paths:
        for one in _read(path, metric, filtered):
            key = names.get(one.model, one.model), one.task
            before = sums.get(key, Graded(*key, 0.0, 0))
            sums[key] = Graded(*key, before.correct + one.correct, before.answers + one.answers)
    found, tasks = sorted({model for model, _ in sums}), sorted({task for _, task in sums})
    for model in models or found:
        for task in tasks:
            if (model, task) not in sums:
                raise ConfigError(
                    f"model {model!r} has no graded answers at task {task!r}; models with answers there: "
                    f"{', '.join(m for m, t in sums if t == task)}; grade it, or leave the task's files out"
                )
    if unknown := set(found) - set(models or found):
        raise ConfigError(f"--models leaves out {', '.join(sorted(unknown))}, which have graded answers; name them all")
    for task in tasks:
        if not any(sums[model, task].correct for model in found):
            raise ConfigError(f"task {task!r}: no model has a correct answer, so none is the best; leave the task out")
    ranked = sorted(found, key=lambda model: sum(sums[model, task].accuracy for task in tasks))
    order = tuple(models or ranked)
    return QualityFile(order, {task: {model: sums[model, task] for model in order} for task in tasks})


def _read(path: Path, metric: str, filtered: str | None) -> Iterator[Graded]:
    if path.is_dir():
        inside = sorted(file for file in path.rglob("samples_*.jsonl") if SAMPLES.fullmatch(file.name))
        if not inside:
            raise ConfigError(
                f"{path}: no samples_TASK_DATE.jsonl; run lm_eval with --log_samples --output_path {path}"
            )
        newest = {(file.parent, _task(file)): file for file in inside}
        for file in newest.values():
            yield from _samples(file, metric, filtered)
    elif SAMPLES.fullmatch(path.name):
        yield from _samples(path, metric, filtered)
    else:
        with reading("grades", path):
            yield from _plain(path)


def _task(path: Path) -> str:
    found = SAMPLES.fullmatch(path.name)
    assert found is not None
    return found[1]


def _samples(path: Path, metric: str, filtered: str | None) -> Iterator[Graded]:
    """Yield the samples of lm-evaluation-harness, one output a line, under each filter."""
    rows = list(_rows(path))
    kinds = sorted({str(row.get("filter")) for _, row in rows})
    if filtered is None and len(kinds) > 1:
        raise ConfigError(f"{path}: answers are graded under the filters {', '.join(kinds)}; choose one with --filter")
    rows = [(place, row) for place, row in rows if filtered is None or "filter" not in row or row["filter"] == filtered]
    if not rows:
        raise ConfigError(f"{path}: no graded answers under the filter {filtered!r}; there are: {', '.join(kinds)}")
    for place, row in rows:
        if metric not in row:
            scores = sorted(name for name, value in row.items() if name != "doc_id" and _is_score(value))
            raise ConfigError(f"{place}: no score {metric!r}; choose one with --metric: {', '.join(scores) or 'none'}")
        yield Graded(path.resolve().parent.name, _task(path), _score(place, metric, row[metric]), 1)


def _plain(path: Path) -> Iterator[Graded]:
    for place, row in _rows(path):
        for key in ("model", "task"):
            if not isinstance(row.get(key), str) or not row[key]:
                raise ConfigError(f"{place}: {key!r} is {row.get(key)!r}; allowed is a name")
        if "answers" in row or "correct" in row:
            correct, answers = (_whole(row.get(key)) for key in ("correct", "answers"))
            if correct is None or not answers or correct > answers:
                given = f"correct {row.get('correct')!r} of answers {row.get('answers')!r}"
                raise ConfigError(f"{place}: {given}; allowed is 5 of 8, for example")
            yield Graded(row["model"], row["task"], correct, answers)
        elif "score" in row:
            yield Graded(row["model"], row["task"], _score(place, "score", row["score"]), 1)
        else:
            raise ConfigError(f"{place}: neither 'score' of a graded answer nor 'correct' and 'answers'")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _is_score(value: Any) -> bool:
    return isinstance(value, bool | int | float) and 0.0 <= value <= 1.0


def _score(place: str, name: str, value: Any) -> float:
    if not _is_score(value):
        raise ConfigError(f"{place}: {name} is {value!r}; allowed is a number from 0 to 1, true or false")
    return float(value)


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield each row of a list, or of lines of one object each, with its place for messages."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    found: list[tuple[str, Any]] = []
    if text.lstrip().startswith("["):
        found = [(f"{path}, row {i + 1}", row) for i, row in enumerate(_parsed(str(path), text))]
    else:
        lines = ((f"{path}, line {i + 1}", line) for i, line in enumerate(lines_of(text)) if line.strip())
        found = [(place, _parsed(place, line)) for place, line in lines]
    if not found:
        raise ConfigError(f"{path}: no graded answers in it")
    for place, row in found:
        if not isinstance(row, dict):
            raise ConfigError(
                f"{place}: is {row!r}; allowed is an object, as {{'model': 'm', 'task': 't', 'score': 1}}"
            )
        yield place, row


def _parsed(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{place}: is not JSON: {error}") from None
