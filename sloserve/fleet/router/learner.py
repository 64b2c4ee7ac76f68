"""The nets of a router's training and their gradient steps by Double DQN. This is the only module that imports torch.

Source: Quality-of-Service Aware LLM Serving, Sec. 4.2: two layers of 256, learning rate 1e-4, target network every 500
iterations, Double Q-learning. Differs: the best next choice is among the feasible models; batch size is not in the
paper.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network
from sloserve.fleet.router.training_settings import TrainingSettings


class Learner:
    """The policy that one training learns. ``network`` is the policy learned up to now.

    Args:
        models: Names of the models, smallest first.
        settings: Settings of the training.
    """

    def __init__(self, models: tuple[str, ...], settings: TrainingSettings) -> None:
        torch.set_num_threads(1)  # the net is so small that a second thread waits more than it helps
        torch.manual_seed(settings.seed)
        schema = Schema(len(models))
        self._settings = settings
        self._about = {"schema": schema.as_text(), "models": ",".join(models)}
        self._online, self._target = (_net(len(schema.names), settings.hidden, len(models)) for _ in range(2))
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=settings.learning_rate, fused=True)
        self._gradients = 0
        self._sums: list[Any] = []
        self._num_summed = 0

    @property
    def network(self) -> Network:
        """The present policy, in plain numbers."""
        parts = [x.detach().numpy().copy() for x in self._online.parameters()]
        if self._num_summed:
            parts = [(x.numpy() / self._num_summed).astype(np.float32) for x in self._sums]
        layers = tuple((weights.T, biases) for weights, biases in zip(parts[::2], parts[1::2], strict=True))
        return Network(layers, dict(self._about))

    def begin_at(self, network: Network) -> None:
        """Begin at the weights of ``network`` instead of at random."""
        parts = [torch.from_numpy(part.copy()) for weights, biases in network.layers for part in (weights.T, biases)]
        with torch.no_grad():
            for mine, part in zip(self._online.parameters(), parts, strict=True):
                mine.copy_(part)
        self._target.load_state_dict(self._online.state_dict())

    def average(self) -> None:
        """Let the present weights count in the mean that becomes the policy."""
        parts = [x.detach().double() for x in self._online.parameters()]
        self._sums = [a + b for a, b in zip(self._sums, parts, strict=True)] if self._sums else parts
        self._num_summed += 1

    def values(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the present value of each model for each request, ``[n, models]``."""
        with torch.no_grad():
            found: NDArray[np.float32] = self._online(torch.from_numpy(states)).numpy()
        return found

    def learn(
        self,
        states: NDArray[np.float32],
        models: IntArray,
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        next_states: NDArray[np.float32],
        next_allowed: BoolArray,
    ) -> None:
        """Take one gradient step on a batch of transitions; ``discounts`` are for what comes after the next arrival."""
        settings, after = self._settings, torch.from_numpy(next_states)
        with torch.no_grad():
            barred = torch.from_numpy(~next_allowed)
            best = self._online(after).masked_fill(barred, -torch.inf).argmax(dim=1, keepdim=True)
            future = self._target(after).gather(1, best)[:, 0]
            wanted = torch.from_numpy(rewards) + torch.from_numpy(discounts) * future
        chosen = torch.from_numpy(models)[:, None]
        loss = nn.functional.smooth_l1_loss(self._online(torch.from_numpy(states)).gather(1, chosen)[:, 0], wanted)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._gradients += 1
        if self._gradients % settings.target_every == 0:
            self._target.load_state_dict(self._online.state_dict())


_LEAST_DISCOUNT = 1e-30
"""Least discount: it is never 0, which a log's discounts have where nothing is known of what comes after."""


def discounts_after(gap_s: FloatArray, limit_s: FloatArray | float, settings: TrainingSettings) -> NDArray[np.float32]:
    """Return the discount of what comes after the next arrival, which is ``gap_s`` seconds away."""
    fading: FloatArray = np.exp(-gap_s / (settings.horizon * limit_s))
    found: NDArray[np.float32] = np.clip(fading, _LEAST_DISCOUNT, settings.gamma).astype(np.float32)
    return found


def _net(inputs: int, hidden: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
