"""The engine of a recording for a replay: its sizes, its step times, and how they varied."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.engine.recording.reading import Recording
from sloserve.engine.virtual.drafts import Drafts, spread_of
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import PlanningCosts, planning_costs
from sloserve.estimator.step_time.fit import MIN_STEPS, FitScore, MeasuredStep, fit_hinge, score
from sloserve.estimator.step_time.latency import Hinge, StepLoad
from sloserve.estimator.step_time.profile import Error, Grid, Profile
from sloserve.sim.workloads.seeding import stream

MOST_FITTED: Final = 4000
"""Most steps to which step times are fitted: more of them change nothing and take longer."""
OUTLIER: Final = 3.0
"""A step that takes this many times as long as its load lets expect, or as little, is left out of the fit."""
NEAR_S: Final = 0.25
"""Seconds around a step within which the machine is taken to be as slow as it was."""
_BLOCK: Final = 1024


def measured_steps(recording: Recording) -> tuple[list[MeasuredStep], FloatArray]:
    """Return the steps of a recording with their loads and durations, and when each ended in epoch seconds.

    A step's time runs to its output. It runs from the output of the step before it as long as there were requests: what
    the engine does between two steps, such as taking in requests, slows it down as well. If the engine was idle, the
    time runs from the step's own scheduling. Where a step is scheduled after the output of the last one, the time of
    its plan is left out: another policy plans otherwise. Steps without tokens are left out.
    """
    found, end_s, before_s = [], [], float("-inf")
    is_async = bool(recording.head.engine["async_scheduling"])
    reached_s = np.sort([one.at_s if one.reached_s is None else one.reached_s for one in recording.arrived.values()])
    ended_s = np.sort([one.at_s for number, one in recording.ended.items() if number in recording.arrived])
    for step in recording.steps:
        had = np.searchsorted(reached_s, before_s, "right") > np.searchsorted(ended_s, before_s, "right")
        duration_s = step.end_s - (before_s if had else max(step.start_s, before_s))
        before_s = step.end_s
        if not is_async:
            duration_s -= step.plan_s
        load = StepLoad(
            step.prefill_tokens,
            step.num_prefills,
            step.decode_seqs,
            step.decode_context_tokens,
            step.prefill_attention_tokens2,
            step.draft_tokens or None,
        )
        if load.tokens and duration_s > 0.0:
            found.append(MeasuredStep(load, duration_s))
            end_s.append(step.end_s)
    return found, np.array(end_s)


@dataclass(frozen=True, slots=True, eq=False)
class FittedSteps:
    """Step times that were fitted to a recording.

    Args:
        profile: Profile of the recorded engine.
        score: How well the fit predicts the steps, outliers included.
        ratio: Measured time of each step over its fitted time, ``[steps]``.
        fitted_s: The fitted time of each step in seconds, ``[steps]``.
        end_s: When each of them ended in epoch seconds, ``[steps]``.
    """

    profile: Profile
    score: FitScore
    ratio: FloatArray
    fitted_s: FloatArray
    end_s: FloatArray


def fitted_steps(*recordings: Recording) -> FittedSteps:
    """Fit step times to the steps of engines of one model, each with a recording.

    Raises: ConfigError for too few steps with prompts, or without.
    """
    measured = [measured_steps(one) for one in recordings]
    ended_s = np.concatenate([found for _, found in measured])
    in_order = np.argsort(ended_s, kind="stable")  # steps of several engines lie beside each other
    of_all = [step for found, _ in measured for step in found]
    steps, end_s = [of_all[i] for i in in_order], ended_s[in_order]
    try:
        form = _fitted(steps)
    except ValueError as error:
        raise ConfigError(
            f"the recording has too few steps to learn their times from: {error.args[0].partition(';')[0]}; "
            f"record at least {MIN_STEPS} of each kind"
        ) from None
    fitted_s = np.array([form.step_s(step.load) for step in steps])
    ratio = np.array([step.duration_s for step in steps]) / fitted_s
    found = score(form, steps)
    return FittedSteps(_profile(recordings[0], form, steps, found), found, ratio, fitted_s, end_s)


def planning_costs_of(recording: Recording, policy: str) -> PlanningCosts:
    """Return what planning cost on the recorded machine: the shipped table, as many times as plans took longer.

    Args:
        recording: The recording.
        policy: The policy that ran; one that plans nothing leaves the table as it is.
    """
    line, table = planning_costs().of(policy).plan, planning_costs()
    planned = [step for step in recording.steps if step.plan_s]
    expected_s = sum(line.seconds(step.running, step.waiting) for step in planned)
    return table.times(sum(step.plan_s for step in planned) / expected_s) if expected_s else table


def _fitted(steps: Sequence[MeasuredStep]) -> Hinge:
    some = _spread(steps)
    form = fit_hinge(some)
    usual = [one for one in some if 1.0 / OUTLIER < one.duration_s / form.step_s(one.load) < OUTLIER]
    if len(usual) == len(some):
        return form
    try:
        return fit_hinge(usual)
    except ValueError:
        return form


def _spread(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return at most :data:`MOST_FITTED` steps: half with prompts and half without, evenly over the recording."""
    kinds = [step for step in steps if step.load.num_prefills], [step for step in steps if not step.load.num_prefills]
    half = MOST_FITTED // 2
    return [kind[i] for kind in kinds for i in np.unique(np.linspace(0, len(kind) - 1, half).astype(int)) if kind]


def _profile(recording: Recording, form: Hinge, steps: Sequence[MeasuredStep], found: FitScore) -> Profile:
    facts, loads = recording.head.engine, [step.load for step in steps]
    return Profile(
        name="recording",
        hardware="the recorded engine's",
        model=str(facts["model"]),
        tensor_parallel=int(facts["tensor_parallel_size"]),
        vllm_version=str(facts["vllm"]),
        source="steps of a recording",
        licence="your own",
        error=Error(mape_percent=found.mape_percent, text="over all recorded steps, outliers included"),
        kv_bytes_per_token=1,
        kv_capacity_tokens=int(facts["kv_blocks"]) * int(facts["block_size"]),
        block_size=int(facts["block_size"]),
        link_bandwidth_gb_per_s=25.0,
        engine_overhead_ms=0.0,
        max_model_len=int(facts["max_model_len"]),
        max_num_seqs=int(facts["max_num_seqs"]),
        max_num_batched_tokens=int(facts["max_num_batched_tokens"]),
        grid=Grid(
            max_step_tokens=max(load.tokens for load in loads),
            max_prefills=max(1, *(load.num_prefills for load in loads)),
            max_prefill_attention_tokens2=max(1, *(load.prefill_attention_tokens2 for load in loads)),
            max_decode_seqs=max(1, *(load.decode_seqs for load in loads)),
            max_decode_context_tokens=max(1, *(load.decode_context_tokens for load in loads)),
        ),
        latency=form,
    )


def engine_settings(recording: Recording) -> EngineSettings:
    """Return the size and the limits of the recorded engine.

    Raises: ConfigError where the simulator has no model of what the engine had.
    """
    facts, steps = recording.head.engine, recording.steps
    drafts = None
    if facts["num_speculative_tokens"]:
        drafted, accepted = sum(one.draft_tokens for one in steps), sum(one.accepted_tokens for one in steps)
        drafts = _drafts(int(facts["num_speculative_tokens"]), drafted, accepted)
        # Older recordings do not say what drafts.
        drafts = replace(drafts, has_layers=bool(facts.get("draft_layers", True)))
    groups: Any = facts.get("kv_groups", ())
    return EngineSettings(
        kv_blocks=int(facts["kv_blocks"]),
        block_size=int(facts["block_size"]),
        max_num_seqs=int(facts["max_num_seqs"]),
        max_num_batched_tokens=int(facts["max_num_batched_tokens"]),
        max_model_len=int(facts["max_model_len"]),
        enable_prefix_caching=bool(facts["enable_prefix_caching"]),
        kv_groups=tuple(KVGroups(*one) for one in groups),
        max_loras=facts.get("max_loras"),
        async_scheduling=bool(facts["async_scheduling"]),
        drafts=drafts,
    )


def _drafts(num_tokens: int, drafted: int, accepted: int) -> Drafts:
    """Return drafts that are accepted as often as in the recording.

    A step of k drafts accepts the sum of the first k powers of the acceptance; the fit has the time of drafting.
    """
    mean = accepted / drafted * num_tokens if drafted else 0.0
    powers = np.arange(1, num_tokens + 1)
    chances = np.linspace(0.0, 1.0, 1001)
    acceptance = float(chances[np.searchsorted((chances[:, None] ** powers).sum(axis=1), mean).clip(0, 1000)])
    return Drafts(num_tokens, acceptance, spread_of(acceptance), round_share=0.0)


@dataclass(slots=True, eq=False)
class RecordedPace:
    """Factors on fitted step times, as the recorded machine had them.

    A step takes the factor of one of the recorded steps that began within :data:`NEAR_S` of it, so that the machine is
    as slow at each time as it was, and stalls when it stalled. Steps are drawn in proportion to their fitted times:
    then a replay of what ran takes as long as it did.

    Args:
        fitted: Fitted step times.
        epoch_s: Epoch seconds at which the replay begins.
        seed: Seed of the draws.
    """

    fitted: FittedSteps
    epoch_s: float
    seed: int
    _begin_s: FloatArray = field(init=False)
    _before_s: FloatArray = field(init=False)
    _drawn: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        fitted = self.fitted
        begin_s = fitted.end_s - fitted.ratio * fitted.fitted_s - self.epoch_s
        self._begin_s = np.maximum.accumulate(begin_s)
        self._before_s = np.concatenate([[0.0], np.cumsum(fitted.fitted_s)])

    def factor(self, step: int, now_s: float) -> float:
        """Return the factor of a step, see :class:`~sloserve.estimator.step_time.noise.StepFactors`."""
        first, last = np.searchsorted(self._begin_s, (now_s - NEAR_S, now_s + NEAR_S)).tolist()
        if first == last:  # the step that began last before, or the first of all
            return float(self.fitted.ratio[max(first - 1, 0)])
        before_s = self._before_s
        at_s = before_s[first] + self._chance(step) * (before_s[last] - before_s[first])
        place = int(np.searchsorted(before_s, at_s, side="right")) - 1
        return float(self.fitted.ratio[min(place, last - 1)])

    def _chance(self, step: int) -> float:
        while step >= len(self._drawn):
            self._drawn += stream(self.seed, f"pace/{len(self._drawn)}").random(_BLOCK).tolist()
        return self._drawn[step]
