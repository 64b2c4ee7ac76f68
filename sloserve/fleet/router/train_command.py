"""The command ``sloserve train-router``: it trains a policy, judges it beside simpler rules, and draws the results."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sloserve import __version__
from sloserve.core import json_text
from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.core.progress_bar import progress
from sloserve.fleet.router.arrivals import Phases
from sloserve.fleet.router.environment import System
from sloserve.fleet.router.evaluation import THRESHOLDS, WINDOW, Served, at_rates, unpredictable, windows
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.routing import Rule, always, learned, masked_greedy
from sloserve.fleet.router.settings import read_router, system_of
from sloserve.fleet.router.training_settings import TrainingSettings

NUM_RATES = 8
REPLICAS = 2
LIMITS = 3.0
CHANGING_LIMITS = 30.0
"""Length of the arrivals at each rate, and at changing rates, in multiples of a request's guarantee."""
JUDGED_SEED = 1000
"""Seed of the requests by which policies are judged; trainings have lower seeds."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The earnings of each rule.

    Args:
        by_rate: Requests served at each of ``rates``, by rule.
        changing: Requests served under rates that change, by rule.
    """

    rates: tuple[float, ...]
    by_rate: Mapping[str, list[Served]]
    changing: Mapping[str, Served]


def train_and_report(
    file: Path,
    out: Path,
    training: TrainingSettings,
    *,
    evaluate: Path | None,
    plots: Path | None,
    as_json: bool = False,
) -> None:
    """Train on the system that ``file`` describes and write the policy to ``out``, or judge ``evaluate`` alone.

    Args:
        file: The router's file.
        out: Path of the policy file.
        training: Settings of the training.
        evaluate: Path of a policy to judge in place of training.
        plots: Folder for plots, if any are drawn.
        as_json: Whether to print what the tables show as an object; the tables then go to standard error.

    Raises:
        ConfigError: The file is malformed, settings are impossible, torch is missing, or ``out`` cannot be written.
    """
    settings = read_router(file)
    try:
        system, phases = system_of(settings)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    console = Console(stderr=as_json)
    if evaluate is None:
        if not out.resolve().parent.is_dir():  # known before minutes of training
            raise ConfigError(f"--out: no folder {out.parent} to write {out.name} into")
        _train(system, phases, out, training)
        console.print(f"{out}: {out.stat().st_size / 1024:.0f} KiB", soft_wrap=True)
    network = load_network(evaluate or out, Schema(len(system.models)).as_text(), system.models)
    judged = judge(system, phases, rules(system, network))
    console.print(_rates_table(judged))
    console.print(_windows_table(judged))
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        draw(system, judged, plots)
        console.print(f"wrote {plots / 'rates.png'}, {plots / 'changing.png'}", soft_wrap=True)
    if as_json:
        print(json_text.dumps(_as_json(judged), indent=2))


def _train(system: System, phases: Phases, out: Path, settings: TrainingSettings) -> None:
    try:
        from sloserve.fleet.router.train import Trainer
    except ImportError as error:
        raise ConfigError(
            f"training needs torch ({error}); it comes with vLLM, or {install_command('router')}"
        ) from None
    trainer = Trainer(system, phases, settings)
    steps = settings.steps
    about = {"seed": str(settings.seed), "steps": str(steps), "system": json.dumps(describe(system))}
    began = time.process_time()

    def save(done: int) -> None:
        network = trainer.network
        if not network.is_loadable:
            raise ConfigError(
                f"--out: {out} is not written: the policy has numbers that are not finite in half precision; train "
                "with another --seed"
            )
        try:
            Network(network.layers, {**network.about, **about, "trained": str(done)}).save(out)
        except OSError as error:
            raise ConfigError(f"--out: cannot write {out}: {error.strerror}") from None

    with progress("training", Console(stderr=True), steps) as bar:
        trainer.run(lambda done: bar.update(done, steps), save)
    save(steps)
    Console(stderr=True).print(f"trained in {time.process_time() - began:.0f} s of processor time")


def describe(system: System) -> dict[str, object]:
    """Return what a policy was trained on, for its file."""
    speeds = {
        model: [round(1e3 * speed.base_s, 6), round(1e3 * speed.seq_s, 6), speed.max_num_seqs]
        for model, speed in zip(system.models, system.speeds, strict=True)
    }
    return {
        "devices": system.devices,
        "token_ms": dict(zip(system.tasks, (1e3 * system.token_s).round(6).tolist(), strict=True)),
        "output_tokens": system.output_tokens,
        "interference": system.interference,
        "base_ms, seq_ms, max_num_seqs": speeds,
    }


def rules(system: System, network: Network) -> dict[str, Rule]:
    """Return the rules: each model alone, smallest first, then masked greedy and the policy."""
    alone: dict[str, Rule] = {model: always(i) for i, model in enumerate(system.models)}
    return {**alone, "greedy": masked_greedy(system), "policy": learned(system, network)}


def judge(system: System, phases: Phases, of: Mapping[str, Rule], *, replicas: int = REPLICAS) -> Judged:
    """Judge every rule on the same arrivals."""
    rates = tuple(float(f"{rate:.2g}") for rate in np.geomspace(*phases.rates, NUM_RATES))
    until_s = CHANGING_LIMITS * float(system.limit_s.mean())
    return Judged(
        rates,
        {
            name: at_rates(system, rule, rates, replicas=replicas, seed=JUDGED_SEED, limits=LIMITS)
            for name, rule in of.items()
        },
        {
            name: unpredictable(system, rule, phases, replicas=replicas, until_s=until_s, seed=JUDGED_SEED)
            for name, rule in of.items()
        },
    )


def _as_json(judged: Judged) -> dict[str, object]:
    """Return the results as an object.

    ``quality`` is the mean quality in time, of each rule at each rate. ``windows`` is the share of windows with at
    least each threshold of mean quality, by rule.
    """
    return {
        "rates_per_s": judged.rates,
        "quality": {name: [float(one.reward.mean()) for one in served] for name, served in judged.by_rate.items()},
        "changing": {name: float(served.reward.mean()) for name, served in judged.changing.items()},
        "windows": {
            name: {f"{threshold:.2f}": _share_of_windows(served, threshold) for threshold in THRESHOLDS}
            for name, served in judged.changing.items()
        },
    }


def _share_of_windows(served: Served, threshold: float) -> float:
    return float((windows(served) >= threshold - 1e-9).mean())


def _rates_table(judged: Judged) -> Table:
    table = Table(title="mean quality in time, by requests/s", box=None, padding=(0, 1), title_justify="left")
    table.add_column("rule", no_wrap=True)
    for rate in judged.rates:
        table.add_column(f"{rate:g}", justify="right", no_wrap=True)
    table.add_column("changing", justify="right", no_wrap=True)
    for name, served in judged.by_rate.items():
        cells = [f"{each.reward.mean():.3f}" for each in (*served, judged.changing[name])]
        table.add_row(name, *cells)
    return table


def _windows_table(judged: Judged) -> Table:
    title = f"changing rates: windows of {WINDOW} requests with at least this mean quality, in percent"
    table = Table(title=title, box=None, padding=(0, 1), title_justify="left")
    table.add_column("rule", no_wrap=True)
    for threshold in THRESHOLDS:
        table.add_column(f"{threshold:.2f}", justify="right", no_wrap=True)
    for name, served in judged.changing.items():
        table.add_row(name, *(f"{100.0 * _share_of_windows(served, threshold):.1f}" for threshold in THRESHOLDS))
    return table


def draw(system: System, judged: Judged, folder: Path) -> None:
    """Draw ``rates.png`` and ``changing.png``."""
    from sloserve.sim.report.router_plots import plot_changing, plot_rates

    models, policy = len(system.models), judged.by_rate["policy"]
    shares: dict[str, FloatArray] = {"all": np.array([each.shares(models) for each in policy])}
    for i, task in enumerate(system.tasks):
        shares[task] = np.array([each.where(np.flatnonzero(each.task == i)).shares(models) for each in policy])
    rewards = {name: [float(each.reward.mean()) for each in of] for name, of in judged.by_rate.items()}
    about = (
        f"{', '.join(system.models)} on {system.devices} devices, outputs of {system.output_tokens} tokens, "
        f"{len(judged.rates)} rates, simulated; sloserve {__version__}"
    )
    plot_rates(folder / "rates.png", judged.rates, rewards, shares, about)
    first = {name: of.where(np.flatnonzero(of.system == 0)) for name, of in judged.changing.items()}
    running: dict[str, tuple[FloatArray, FloatArray]] = {}
    windowed: dict[str, tuple[FloatArray, FloatArray]] = {}
    for name, of in first.items():
        count: FloatArray = np.arange(1, of.reward.size + 1).astype(np.float64)
        running[name] = count, np.asarray(np.cumsum(of.reward) / count, np.float64)
        last = windows(of)
        windowed[name] = np.asarray(count[count.size - last.size :], np.float64), last
    plot_changing(folder / "changing.png", first["policy"].rate_per_s, windowed, running, about)
