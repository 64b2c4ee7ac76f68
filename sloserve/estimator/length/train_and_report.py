"""The command ``sloserve train-length``: reads examples, judges models on held-out ones, trains and saves one."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sloserve.core import json_text
from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.estimator.length.accuracy import Accuracy
from sloserve.estimator.length.examples import read_examples
from sloserve.estimator.length.training import LengthTrainingSettings, held_out, train

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
    "<=p50, <=p90: share within the predicted quantile, in percent. ±: half the range over the seeds."
)


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

    Raises: ConfigError for a malformed file or impossible settings, and when ``out`` cannot be written.
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
    with progress("training", Console(stderr=True), (max(seeds, 0) + 1) * len(settings.levels)) as bar:
        results = list(held_out(examples, settings, share=share, seeds=seeds, progress=bar.advance))
        model = train(examples, settings, bar.advance)
    console.print(_table(results))
    try:
        model.save(out)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    console.print(f"{out}: {model.forest.feature.size} nodes, {out.stat().st_size / 1024:.0f} KiB", soft_wrap=True)
    if as_json:
        splits = [{name: asdict(accuracy) for name, accuracy in result.items()} for result in results]
        print(json_text.dumps({"file": str(out), "splits": splits}, indent=2))


def _table(results: list[dict[str, Accuracy]]) -> Table:
    title = f"held out: {results[0]['learned'].requests} requests, mean of {len(results)} seed(s)"
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
