"""Trains a router from logs of choices, without a simulated system, by Double DQN on what was logged.

A choice decides what the next requests find: a large model that is busy cannot serve a request that needs it more. A
regression of each request's own reward (a contextual bandit) learns greedy again, which does not see that. So the
values are of sequences, as in the simulation: the reward and the discounted value of the next request's state.
Since values are learned for each state and choice, and the log has all that decided, no choice needs a weight to be
right; choices that exploration made are drawn more often, so that the net sees enough of them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray
from sloserve.core.errors import ConfigError
from sloserve.fleet.router.choice_records import LoggedChoices
from sloserve.fleet.router.learner import Learner, discounts_after
from sloserve.fleet.router.network import Network
from sloserve.fleet.router.off_policy import PolicyEstimate, estimate
from sloserve.fleet.router.training_settings import TrainingSettings

LEARNED_SHARE: Final = 0.7
"""Share of each run that is learned from: the first part. The rest is for the estimate."""
MOST_WEIGHT: Final = 20.0
"""How many times as often as a certain choice an unlikely one is drawn, at most."""
FEWEST: Final = 1000
"""Fewest choices of each part with a known outcome and next state: 20 blocks of the bootstrap."""
AVERAGE_EVERY: Final = 50
"""Gradient steps between weights that are averaged."""


def split(choices: LoggedChoices) -> tuple[LoggedChoices, LoggedChoices]:
    """Return the part to learn from, and the part for the estimate.

    Runs without exploration are learned from, but not estimated from: they do not show what another choice brings.

    Raises: ConfigError if no run has exploration.
    """
    explored = choices.explored
    if not explored.any():
        raise ConfigError(
            "--from-logs: no run of the logs has exploration, so that nothing is known about models that were not "
            "chosen; set `explore` above 0 in the router's file and log again"
        )
    learned: BoolArray = np.zeros(choices.run.size, np.bool_)
    for run in np.unique(choices.run):
        of = np.flatnonzero(choices.run == run)
        learned[of[: int(LEARNED_SHARE * of.size)]] = True
    return choices.where(learned), choices.where(~learned & explored)


def require_enough(learned: LoggedChoices, held_out: LoggedChoices) -> None:
    """Raise ConfigError if one of the parts that ``split`` returns has too few choices with a known outcome."""
    known = min(int((np.isfinite(part.reward) & part.followed).sum()) for part in (learned, held_out))
    if known < FEWEST:
        least = round(FEWEST / (1.0 - LEARNED_SHARE))
        raise ConfigError(
            f"--from-logs: {learned.run.size} choices to learn from and {held_out.run.size} for the estimate are too "
            f"few; give logs with about {least} or more choices with a known outcome, and with `explore` above 0"
        )


def train(
    choices: LoggedChoices,
    models: tuple[str, ...],
    settings: TrainingSettings,
    start: Network | None = None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Network:
    """Return the policy that is learned from ``choices``.

    Args:
        choices: Choices to learn from.
        models: Names of the models, smallest first.
        settings: Settings of the training.
        start: Policy with the weights at which the training begins; ``None`` for random ones.
        progress: Called now and then with the steps done.

    Raises: ConfigError if the outcome or the next state of no choice is known.
    """
    learner, rng = Learner(models, settings), np.random.default_rng(settings.seed)
    if start is not None:
        learner.begin_at(start)
    states = choices.states.astype(np.float32)
    rewards = (choices.reward - settings.centre).astype(np.float32)
    discounts = discounts_of(choices, settings)
    known = np.flatnonzero(np.isfinite(rewards) & choices.followed)
    if not known.size:
        raise ConfigError("--from-logs: no choice has a known outcome and a next choice in its run; give more logs")
    chances = np.cumsum(np.minimum(1.0 / choices.propensity[known], MOST_WEIGHT))
    next_allowed = choices.allowed.copy()
    next_allowed[choices.fixed] = False
    next_allowed[choices.fixed, choices.chosen[choices.fixed]] = True
    steps = max(settings.steps // settings.steps_a_gradient, 1)
    for step in range(steps):
        at = known[np.searchsorted(chances, rng.random(settings.batch) * chances[-1], side="right")]
        learner.learn(
            states[at],
            choices.chosen[at],
            rewards[at],
            discounts[at].astype(np.float32),
            states[at + 1],
            next_allowed[at + 1],
        )
        if step >= (1.0 - settings.averaged) * steps and step % AVERAGE_EVERY == 0:
            learner.average()
        progress(step * settings.steps_a_gradient)
    return learner.network


def discounts_of(choices: LoggedChoices, settings: TrainingSettings) -> FloatArray:
    """Return the discount of what comes after each choice: 0 for the last choice of a run."""
    found = np.zeros(choices.run.size)
    gap_s = np.maximum(np.diff(choices.at_s), 0.0)
    found[:-1] = discounts_after(gap_s, choices.limit_s[:-1], settings)
    found[~choices.followed] = 0.0
    return found


def judge(choices: LoggedChoices, network: Network, settings: TrainingSettings) -> PolicyEstimate:
    """Return what ``network`` is worth, from choices that it was not trained on."""
    values = network.values(choices.states)
    return estimate(choices, values, discounts_of(choices, settings), centre=settings.centre, seed=settings.seed)
