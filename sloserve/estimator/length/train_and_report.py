"""The command ``sloserve train-length``: reads examples, judges models on held-out ones, trains and saves one.

Where no model gains on held-out requests, none is saved.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sloserve.core import json_text
from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.estimator.length.examples import Examples, read_examples
from sloserve.estimator.length.held_out import CLASS, LEARNED, LEAST_JUDGED, Gain, Split, gains, held_out, without_gain
from sloserve.estimator.length.learned_length import LengthModel
from sloserve.estimator.length.training import LengthTrainingSettings, train

_COLUMNS = (
    # heading, field, factor
    ("10 %", "within_10", 100.0),
    ("25 %", "within_25", 100.0),
    ("MAE", "mae_tokens", 1.0),
    ("bias", "mean_bias_tokens", 1.0),
    ("<=p50", "cover_50", 100.0),
    ("<=p90", "cover_90", 100.0),
    ("pinball", "pinball_tokens", 1.0),
)
_LEGEND = (
    "10 %, 25 %: share off by at most that, in percent. In tokens: MAE of the median, bias of the mean, pinball loss.\n"
    "<=p50, <=p90: share within the predicted quantile, in percent. ±: half the range over the splits.\n"
    f"{CLASS}: the distribution of the task, which a server has without a model."
)
_TIMED = 50
"""Requests of which the cost of a prediction is the median."""


def train_and_report(
    data: Path, out: Path, *, text: bool, seeds: int, share: float, seed: int, as_json: bool = False
) -> None:
    """Train on ``data`` and write the model to ``out``; print the held-out accuracy over ``seeds`` splits.

    Args:
        data: File of examples.
        out: File to write the model into.
        text: Whether to use the texts of prompts.
        seeds: Number of splits.
        share: Share of the examples that is held out, 0..1.
        seed: Seed of the training and the first seed of the splits.
        as_json: Whether to print an object with a list of accuracies by predictor; the table then goes to standard
            error.

    Raises: ConfigError for a malformed file or impossible settings, when ``out`` cannot be written, and when a model
        predicts held-out requests no better than the distribution of their task.
    """
    if seed < 0:
        raise ConfigError(f"--seed: {seed} is below 0")
    if not out.resolve().parent.is_dir():  # known before minutes of training
        raise ConfigError(f"--out: no folder {out.parent} to write {out.name} into")
    examples = read_examples(data)
    settings = LengthTrainingSettings(text=text, seed=seed)
    console = Console(stderr=as_json)
    uses_text = text and examples.requests.prompt is not None
    console.print(
        f"{len(examples)} requests of {len(examples.tasks)} task(s), {'with' if uses_text else 'without'} text;"
        f" output tokens: mean {examples.lengths.mean():.1f}, median {np.median(examples.lengths):.0f}"
    )
    with progress("training", Console(stderr=True), (max(seeds, 0) + 1) * settings.boosts) as bar:
        splits = list(held_out(examples, settings, share=share, seeds=seeds, progress=bar.advance))
        found = gains(splits, examples)
        useless = without_gain(found)
        model = None
        if len(useless) < len(examples.tasks):
            model = replace(train(examples, settings, bar.advance), without_gain=useless)
    console.print(_table(splits, "the latest" if examples.requests.arrival_s is not None else "drawn"))
    console.print(_gains_text(found, useless), soft_wrap=True)
    if model is not None:
        _save(model, out, examples, console)
    if as_json:
        fields = {
            "file": None if model is None else str(out),
            "splits": [{name: asdict(accuracy) for name, accuracy in split.accuracy.items()} for split in splits],
            "gains": [asdict(one) | {"used": one.task not in useless} for one in found[1:]],
        }
        print(json_text.dumps(fields, indent=2))
    if model is None:
        raise ConfigError(
            f"no model is written: on held-out requests it predicts no better than the {CLASS} distribution, which a"
            f" server uses without a model; give more than {len(examples)} requests, or their prompt"
        )


def _save(model: LengthModel, out: Path, examples: Examples, console: Console) -> None:
    try:
        model.save(out)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    console.print(
        f"{out}: {model.forest.feature.size} nodes, {out.stat().st_size / 1024:.0f} KiB;"
        f" a prediction takes {_cost_us(model, examples):.0f} us of CPU on this machine",
        soft_wrap=True,
    )


def _cost_us(model: LengthModel, examples: Examples) -> float:
    """Return the median CPU time of predicting one request, in microseconds."""
    took = []
    for place in range(min(_TIMED, len(examples))):
        one = examples.requests.take([place])
        began = time.process_time()
        model.quantiles(one)
        took.append(time.process_time() - began)
    return 1e6 * float(np.median(took))


def _gains_text(found: Sequence[Gain], useless: frozenset[str]) -> str:
    """Return what the model gains for each task, one a line."""
    lines = [f"pinball loss of the model, relative to {CLASS} (95 % interval over held-out requests):"]
    for one in found[1:]:
        verdict = "gains nothing: a server will use the distribution of the class" if one.task in useless else "used"
        few = f"; fewer than {LEAST_JUDGED} requests, judged with all tasks" if one.requests < LEAST_JUDGED else ""
        lines.append(
            f"  {one.task or 'all requests'}: {100 * one.change:+.1f} % ± {100 * one.half_95:.1f}"
            f" ({one.requests} requests) {verdict}{few}"
        )
    return "\n".join(lines)


def _table(splits: Sequence[Split], which: str) -> Table:
    results = [split.accuracy for split in splits]
    title = f"held out: {results[0][LEARNED].requests} requests, {which}; mean of {len(results)} split(s)"
    table = Table(title=title, caption=_LEGEND, box=None, padding=(0, 1), title_justify="left", caption_justify="left")
    table.add_column("predictor", no_wrap=True)
    for heading, _, _ in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name in results[0]:
        cells = []
        for _, field, factor in _COLUMNS:
            values = [factor * getattr(result[name], field) for result in results]
            cells.append(f"{np.mean(values):.1f}±{(max(values) - min(values)) / 2.0:.1f}")
        table.add_row(name, *cells)
    return table
