"""The command ``sloserve train-router --from-logs``: it trains on a gateway's choices, and refuses a worse policy."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from sloserve.core import json_text
from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.core.progress_bar import progress
from sloserve.fleet.router.choice_records import read_choices
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.off_policy import PolicyEstimate
from sloserve.fleet.router.settings import read_router
from sloserve.fleet.router.training_settings import TrainingSettings

FEWEST_SUPPORTED: Final = 20
"""Fewest choices that must show what the policy, or greedy, brings where both differ."""


def train_from_logs(
    file: Path,
    out: Path,
    training: TrainingSettings,
    logs: Sequence[Path],
    *,
    start: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train on logs of choices, and write the policy to ``out`` if it should not be worse than greedy.

    Args:
        file: The router's file.
        out: Path of the policy file.
        training: Settings of the training.
        logs: Paths of the logs.
        start: Path of the policy with the weights at which the training begins; ``None`` for random weights.
        as_json: Whether to print the estimate as an object; text then goes to standard error.

    Raises:
        ConfigError: A file cannot be read, there are too few choices or none of a run that explored, torch is missing,
            ``out`` cannot be written, or the estimate does not show that the policy is at least as good as greedy.
    """
    settings = read_router(file)
    models = tuple(settings.models)
    schema = Schema(len(models)).as_text()
    if not out.resolve().parent.is_dir():  # known before minutes of training
        raise ConfigError(f"--out: no folder {out.parent} to write {out.name} into")
    choices = read_choices(logs, schema, models)
    before = None if start is None else load_network(start, schema, models)
    try:
        from sloserve.fleet.router.train_logs import judge, require_enough, split, train
    except ImportError as error:
        raise ConfigError(
            f"training needs torch ({error}); it comes with vLLM, or {install_command('router')}"
        ) from None
    learned, held_out = split(choices)
    require_enough(learned, held_out)
    console, began = Console(stderr=as_json), time.process_time()
    with progress("training", Console(stderr=True), training.steps) as bar:
        network = train(learned, models, training, before, lambda done: bar.update(done, training.steps))
    Console(stderr=True).print(f"trained in {time.process_time() - began:.0f} s of processor time")
    found = judge(held_out, network, training)
    _report(console, found, choices.lines_left_out)
    if as_json:
        print(json_text.dumps(asdict(found), indent=2))
    _require_good(out, network, found)
    about = {"seed": str(training.seed), "steps": str(training.steps), "choices": str(learned.run.size)}
    try:
        Network(network.layers, {**network.about, **about, "over_greedy": str(found.over_greedy)}).save(out)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None
    console.print(f"{out}: {out.stat().st_size / 1024:.0f} KiB", soft_wrap=True)


def _require_good(out: Path, network: Network, found: PolicyEstimate) -> None:
    """Raise ConfigError unless the policy can be loaded and the estimate shows that it is as good as greedy."""
    more = "give more logs, or logs with a higher `explore`, or stay with greedy"
    if not network.is_loadable or not np.isfinite([found.over_greedy.mean, found.over_greedy.low]).all():
        raise ConfigError(
            f"{out} is not written: the policy has numbers that are not finite in half precision; train with another "
            "--seed, or from another --start"
        )
    if found.differing > 0.0 and found.supported < FEWEST_SUPPORTED:
        raise ConfigError(
            f"{out} is not written: of the choices in which the policy and greedy differ, {found.supported} show what "
            f"one of them brings, and {FEWEST_SUPPORTED} are needed; {more}"
        )
    if found.over_greedy.low < 0.0:
        raise ConfigError(
            f"{out} is not written: the policy may be worse than greedy, its mean quality in time by "
            f"{-found.over_greedy.low:.4f}; {more}"
        )


def _report(console: Console, found: PolicyEstimate, lines_left_out: int) -> None:
    if lines_left_out:
        console.print(f"{lines_left_out} lines are not whole records of this router and were left out")
    console.print(f"estimated on {found.requests} choices that were not learned from, with 95 % intervals:")
    console.print(f"  mean weighted quality in time       {found.logged:.4f}")
    console.print(f"  the policy minus the logged policy  {found.over_logged}")
    console.print(f"  the policy minus greedy             {found.over_greedy}")
    console.print(f"  choices in which both differ        {found.differing:.1%}")
