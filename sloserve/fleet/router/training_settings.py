"""Settings of a router's training, without torch, so that the command line can check them."""

from dataclasses import dataclass

from sloserve.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of the training of a policy.

    Args:
        steps: Number of requests routed in training.
        systems: Number of systems trained on at once.
        memory: Number of transitions remembered.
        batch: Number of transitions in a gradient step.
        steps_a_gradient: Number of requests for each gradient step.
        learning_rate: Learning rate, as in the paper.
        target_every: Gradient steps between updates of the target network, as in the paper.
        gamma: Greatest discount of what comes after the next arrival.
        horizon: Time by which that is worth 1/e at most, in parts of the guarantee for a whole request; infinite for
            gamma alone.
        centre: Value subtracted from each reward.
        explored: Share of the steps in which exploration falls from all choices to ``least_random``.
        averaged: Share of the steps, the last ones, with weights that are averaged into the policy, since single ones
            differ by a hundredth of reward.
        masked: Whether only feasible models are chosen.
    """

    steps: int = 1_200_000
    seed: int = 0
    systems: int = 128
    memory: int = 400_000
    batch: int = 64
    steps_a_gradient: int = 16
    hidden: int = 256
    learning_rate: float = 1e-4
    target_every: int = 500
    gamma: float = 0.99
    horizon: float = 2.0
    centre: float = 0.8
    explored: float = 0.3
    least_random: float = 0.02
    averaged: float = 0.2
    masked: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.seed < 0 or self.memory < 100 * self.systems:
            raise ConfigError(
                f"steps {self.steps}, seed {self.seed}, memory {self.memory}: give steps >= 1, seed >= 0, "
                f"memory >= {100 * self.systems}"
            )
