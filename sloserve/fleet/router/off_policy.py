"""Estimates from a log of choices how much better a policy is than greedy, and than the policy that was logged.

A choice changes what the next requests find, so that a request's own outcome is not what its choice is worth: a policy
that keeps the large model free for others would look worse than greedy. What is estimated is therefore the advantage of
a choice: its reward and the value of the state that it leaves, minus the same of the other choice. By the performance
difference lemma the mean advantage over the states that were logged is the difference of the policies' mean rewards.

The estimator is doubly robust in the choice, with weights normalised by their mean: a net's values, corrected by what
was measured where the logged choice was the policy's. The value of the next state is the net's alone. The interval is
from a bootstrap of blocks, since requests that follow each other share their fate.

Source: Dudik et al., "Doubly Robust Policy Evaluation and Learning", 2011; Kakade and Langford, "Approximately Optimal
Approximate Reinforcement Learning", 2002, for the lemma.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.fleet.router.choice_records import LoggedChoices

BLOCK: Final = 50
"""Number of requests of a block of the bootstrap."""
SAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """An estimate, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """What a policy is worth, from choices that it was not trained on.

    Args:
        requests: Number of choices.
        logged: Mean weighted quality in time that was measured.
        over_logged: Mean quality in time of the policy minus the logged policy's.
        over_greedy: Mean quality in time of the policy minus greedy's.
        differing: Share of the choices in which the policy differs from greedy.
        supported: Number of choices with a known outcome in which both differ and the policy's model was chosen, or
            greedy's, whichever are fewer.
    """

    requests: int
    logged: float
    over_logged: MeanInterval
    over_greedy: MeanInterval
    differing: float
    supported: int


def preferred(choices: LoggedChoices, values: FloatArray) -> IntArray:
    """Return the model of highest value for each choice; conversations stay on their model."""
    best = np.where(choices.allowed, values, -np.inf).argmax(axis=1)
    return np.where(choices.fixed, choices.chosen, best).astype(np.int64)


def estimate(
    choices: LoggedChoices, values: FloatArray, discounts: FloatArray, *, centre: float, seed: int = 0
) -> PolicyEstimate:
    """Return what the policy that takes the model of highest value is worth.

    Args:
        choices: Choices that the policy was not trained on.
        values: Values that the policy gives each model for each choice, ``[n, models]``.
        discounts: Discount of what comes after the next choice, ``[n]``; 0 for the last choice of a run.
        centre: Number that was subtracted from each reward in training.
        seed: Seed of the bootstrap.
    """
    rows = np.arange(choices.chosen.size)
    policy, greedy = preferred(choices, values), np.where(choices.fixed, choices.chosen, choices.best)
    following = np.append(values[rows, policy][1:], 0.0) * discounts
    errors = choices.reward - centre + following - values[rows, choices.chosen]
    known = np.isfinite(choices.reward) & (discounts > 0.0)
    errors[~known] = 0.0  # where reward or next state is not known, nothing is corrected
    of_policy = _weights(policy == choices.chosen, choices)
    of_greedy = _weights(greedy == choices.chosen, choices)
    value = values[rows, policy]
    over_greedy = value - values[rows, greedy] + (of_policy - of_greedy) * errors
    over_logged = value - values[rows, choices.chosen] + (of_policy - 1.0) * errors
    differing = policy != greedy
    rng = np.random.default_rng(seed)
    return PolicyEstimate(
        requests=rows.size,
        logged=float(np.nanmean(choices.reward)),
        over_logged=_interval(over_logged, rng),
        over_greedy=_interval(over_greedy, rng),
        differing=float(differing.mean()),
        supported=min(int((differing & known & (one == choices.chosen)).sum()) for one in (policy, greedy)),
    )


def _weights(same: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], choices: LoggedChoices) -> FloatArray:
    weights = np.where(same, 1.0 / choices.propensity, 0.0)
    return np.asarray(weights / max(weights.mean(), 1e-12), np.float64)


def _interval(numbers: FloatArray, rng: np.random.Generator) -> MeanInterval:
    starts = np.arange(0, numbers.size, BLOCK)
    sums, counts = np.add.reduceat(numbers, starts), np.diff(np.append(starts, numbers.size))
    drawn = rng.integers(starts.size, size=(SAMPLES, starts.size))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return MeanInterval(float(numbers.mean()), float(low), float(high))
