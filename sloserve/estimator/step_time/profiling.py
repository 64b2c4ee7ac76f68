"""From an engine to a profile: measures a grid in interleaved repetitions, fits, finds the knee, writes YAML."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.fit import (
    FitScore,
    MeasuredStep,
    fit_bilinear,
    fit_distserve,
    fit_hinge,
    held_out,
    score,
)
from sloserve.estimator.step_time.grid import EngineCapacity, Scenario, full_grid, small_grid
from sloserve.estimator.step_time.latency import Bilinear, DistServe, Hinge
from sloserve.estimator.step_time.measurements import Measurements, TimedStep
from sloserve.estimator.step_time.profile import Profile, load_profile

FITS: dict[str, Callable[[Sequence[MeasuredStep]], Hinge | DistServe | Bilinear]] = {
    "hinge": fit_hinge,
    "distserve": fit_distserve,
    "bilinear": fit_bilinear,
}
HELD_OUT_SHARE = 0.25
KNEE_SHARE = 0.9
"""Share of the highest throughput at which the knee is: beyond it tokens add latency and little throughput."""
DOUBTFUL_PERCENT = 25.0
"""Error in percent from which a profile is doubtful.

It is far above what fits of good grids have (benchmarks/estimator/latency_fit.py: 2 to 10 %).
"""


GRIDS = ("full", "small")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of ``sloserve profile``.

    Args:
        grid: Scenarios to measure: full, or small, to try the command out.
        repetitions: Repetitions of each scenario.
        form: Latency form to write.
        max_context_tokens: Most tokens of KV cache that a scenario of the full grid fills.

    Raises: ConfigError for an unknown name or a number below 1.
    """

    grid: str = "full"
    repetitions: int = 3
    form: str = "hinge"
    max_context_tokens: int = 131_072

    def __post_init__(self) -> None:
        for name, value, known in (("grid", self.grid, GRIDS), ("form", self.form, tuple(FITS))):
            if value not in known:
                raise ConfigError(f"--{name}: {value!r} is unknown; one of {', '.join(known)}")
        for name, number in (("repetitions", self.repetitions), ("max-context-tokens", self.max_context_tokens)):
            if number < 1:
                raise ConfigError(f"--{name}: {number} is not a whole number >= 1")

    def scenarios(self, limits: EngineCapacity) -> list[Scenario]:
        """Return the grid for an engine of these limits."""
        return small_grid(limits) if self.grid == "small" else full_grid(limits, self.max_context_tokens)


class ScenarioEngine(Protocol):
    """An engine that measures the steps of a scenario."""

    def measure(self, scenario: Scenario) -> list[TimedStep]: ...


def measure_grid(
    engine: ScenarioEngine,
    scenarios: Sequence[Scenario],
    repetitions: int,
    into: Measurements,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Measure what ``into`` does not hold yet.

    Each repetition goes through the whole grid in an order of its own, so that a machine that slows down for a while
    spoils single repetitions of many scenarios, which the medians drop, and not all repetitions of one.
    """
    total = repetitions * len(scenarios)
    done = 0
    for repetition in range(repetitions):
        order = np.random.default_rng([0, repetition]).permutation(len(scenarios))
        for i in order.tolist():
            scenario = scenarios[i]
            if not into.has(scenario.key, repetition):
                into.add(scenario.key, repetition, engine.measure(scenario))
            done += 1
            if on_progress is not None:
                on_progress(done, total)


def scores(steps: Sequence[MeasuredStep], seed: int = 0) -> dict[str, FitScore]:
    """Return the score of each form by name, fitted to three quarters of the steps and scored on the rest.

    Args:
        steps: The measured steps.
        seed: Seed that selects the rest.
    """
    fitted, out = held_out(steps, HELD_OUT_SHARE, seed=seed)
    return {name: score(fit(fitted), out) for name, fit in FITS.items()}


def knee_tokens(steps: Sequence[MeasuredStep]) -> int | None:
    """Return the tokens of a step from which throughput is within a tenth of the highest measured throughput.

    This is EconoServe's target forward size. Only steps that compute whole prompts and decode nothing count; between
    measured sizes throughput is interpolated. The result is ``None`` if fewer than two sizes were measured.
    """
    best: dict[int, float] = {}
    for step in steps:
        load = step.load
        if load.decode_seqs == 0 and load.prefill_attention_tokens2 <= load.prefill_tokens**2:
            best[load.tokens] = max(best.get(load.tokens, 0.0), load.tokens / step.duration_s)
    if len(best) < 2:
        return None
    sizes = sorted(best)
    throughput = np.maximum.accumulate([best[size] for size in sizes])
    wanted = KNEE_SHARE * throughput[-1]
    return int(np.ceil(np.interp(wanted, throughput, sizes))) if throughput[0] < wanted else sizes[0]


def make_profile(measured: Measurements, form: str) -> dict[str, Any]:
    """Return the fields of a profile; coefficients are fitted to all steps, the error is of a fit to three quarters.

    ``measured.subject`` holds the fields that are not measured by steps, by the profile's names.

    Raises: ConfigError for too few steps.
    """
    steps = measured.steps()
    try:
        fit = FITS[form](steps)
        found = scores(steps)[form]
    except ValueError as error:
        raise ConfigError(f"{measured.path}: {error}") from error
    loads = [s.load for s in steps]
    facts = {name: measured.subject[name] for name in Profile.model_fields if name in measured.subject}
    return {
        **facts,
        "link_bandwidth_gb_per_s": measured.median("link_bandwidth_gb_per_s"),
        "source": f"sloserve profile: {len(steps)} kinds of steps on the engine itself, medians of repetitions",
        "licence": "measured on this machine",
        "error": {
            "mape_percent": round(found.mape_percent, 2),
            "text": (
                f"On {found.steps} kinds of steps held out of {len(steps)}: R^2 {found.r2:.4f}; the coefficients are "
                "of a fit to all. Times are the engine's pace, scheduling included; API server and network are not"
            ),
        },
        "engine_overhead_ms": 0.0,
        "tfs_tokens": knee_tokens(steps),
        "start_s": measured.median("start_s"),
        "load_s": measured.median("load_s"),
        "grid": {
            "max_step_tokens": max(x.tokens for x in loads),
            "max_prefills": max(x.num_prefills for x in loads),
            "max_prefill_attention_tokens2": max(x.prefill_attention_tokens2 for x in loads),
            "max_decode_seqs": max(x.decode_seqs for x in loads),
            "max_decode_context_tokens": max(x.decode_context_tokens for x in loads),
        },
        "latency": asdict(fit),
    }


def doubts(profile: Profile) -> str | None:
    """Return why a measured profile should not be trusted, and what to do; ``None`` if it is as good as can be."""
    error = profile.error.mape_percent
    if error is None or error <= DOUBTFUL_PERCENT:
        return None
    return (
        f"the profile mispredicts steps that it has not seen by {error:.0f} %, more than {DOUBTFUL_PERCENT:.0f}: "
        "measure with more --repetitions, while nothing else uses the machine; a server without a profile learns step "
        "times itself"
    )


def write_profile(path: Path, fields: dict[str, Any]) -> Profile:
    """Write the profile, and read it back as a server will."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110), encoding="utf-8")
    return load_profile(path.absolute())
