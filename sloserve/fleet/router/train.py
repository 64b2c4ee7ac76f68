"""Trains a router by Double DQN, on many systems at once. This is the only module here that imports torch.

A request's reward is known when it ends, many arrivals after its model was chosen. So the state and the choice are
recorded when it arrives, the reward when it ends, and only transitions with a known reward are learned from.

Source: Quality-of-Service Aware LLM Serving, Sec. 4.2: two layers of 256, learning rate 1e-4, target network every 500
iterations, Double Q-learning, epsilon-greedy, discount 0.99. Differs: the future is discounted by time too, since a
choice matters for as long as its request runs, however few others arrive meanwhile; rewards are centred; choices, and
the best next choice, are among the feasible models (``masked=False`` is the paper's); batch size, exploration and size
of the memory are not in the paper.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from sloserve.core.arrays import IntArray
from sloserve.fleet.router.arrivals import Changing, Phases
from sloserve.fleet.router.environment import Environment, System
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.network import Network
from sloserve.fleet.router.replay import Replay
from sloserve.fleet.router.routing import allowed_by, features_of
from sloserve.fleet.router.training_settings import TrainingSettings

Progress = Callable[[int], None]
"""A callback that receives, now and then, how many steps are done."""


class Trainer:
    """One training. ``run`` does all of it; ``network`` is the policy learned up to now."""

    def __init__(self, system: System, phases: Phases, settings: TrainingSettings) -> None:
        torch.set_num_threads(1)  # the net is so small that a second thread waits more than it helps
        torch.manual_seed(settings.seed)
        self._system, self._settings = system, settings
        self._rng = np.random.default_rng(settings.seed)
        arrivals = Changing(phases, settings.systems, np.random.default_rng((settings.seed, 1)))
        self._world = Environment(system, arrivals, settings.systems, np.random.default_rng((settings.seed, 2)))
        self._schema = Schema(len(system.models))
        inputs, outputs = len(self._schema.names), len(system.models)
        self._online, self._target = (_net(inputs, settings.hidden, outputs) for _ in range(2))
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=settings.learning_rate, fused=True)
        self._replay = Replay(settings.systems, settings.memory // settings.systems, inputs, outputs)
        self._gradients = 0
        self._sums: list[Any] = []
        self._num_summed = 0

    def run(self, progress: Progress = lambda steps: None, on_checkpoint: Callable[[int], None] | None = None) -> None:
        """Train for all steps.

        Args:
            progress: Called now and then with the steps done.
            on_checkpoint: Called after each tenth of the steps, with the steps done.
        """
        settings, done, owed, checkpoint = self._settings, 0, 0.0, 1
        while done < settings.steps:
            systems = self._world.next_arrivals()
            tickets, rewards, _ = self._world.finished.take()
            self._replay.fill(tickets, rewards - settings.centre)
            if not systems.size:
                continue
            self._route(systems, done / settings.steps)
            done += systems.size
            owed += systems.size / settings.steps_a_gradient
            while owed >= 1.0:
                owed -= 1.0
                self._learn()
            if done >= (1.0 - settings.averaged) * settings.steps:
                self._average()
            progress(min(done, settings.steps))
            if on_checkpoint is not None and done * 10 >= settings.steps * checkpoint:
                checkpoint += 1
                on_checkpoint(done)

    @property
    def network(self) -> Network:
        """The present policy, in plain numbers."""
        parts = [x.detach().numpy().copy() for x in self._online.parameters()]
        if self._num_summed:
            parts = [(x.numpy() / self._num_summed).astype(np.float32) for x in self._sums]
        layers = tuple((weights.T, biases) for weights, biases in zip(parts[::2], parts[1::2], strict=True))
        about = {"schema": self._schema.as_text(), "models": ",".join(self._system.models)}
        return Network(layers, about)

    def _average(self) -> None:
        parts = [x.detach().double() for x in self._online.parameters()]
        self._sums = [a + b for a, b in zip(self._sums, parts, strict=True)] if self._sums else parts
        self._num_summed += 1

    def _route(self, systems: IntArray, share: float) -> None:
        seen = self._world.observe(systems)
        states = features_of(self._system, seen).astype(np.float32)
        allowed = allowed_by(self._system, seen)
        if not self._settings.masked:
            allowed[:] = True
        with torch.no_grad():
            values = self._online(torch.from_numpy(states)).numpy()
        settings = self._settings
        random = max(1.0 - share / settings.explored, settings.least_random)
        explores = self._rng.random(systems.size) < random
        values = np.where(explores[:, None], self._rng.random(values.shape), values)
        models = np.where(allowed, values, -np.inf).argmax(axis=1)
        tickets = self._replay.add(systems, states, models, allowed, self._world.now_s[systems])
        self._world.serve(systems, models, tickets)

    def _learn(self) -> None:
        settings = self._settings
        found = self._replay.sample(settings.batch, self._rng)
        if found is None:
            return
        fading = np.exp(-found.gap_s / (settings.horizon * self._system.limit_s.mean()))
        discounts = np.minimum(fading, settings.gamma).astype(np.float32)
        after = torch.from_numpy(found.next_states)
        with torch.no_grad():
            barred = torch.from_numpy(~found.next_allowed)
            best = self._online(after).masked_fill(barred, -torch.inf).argmax(dim=1, keepdim=True)
            future = self._target(after).gather(1, best)[:, 0]
            wanted = torch.from_numpy(found.rewards) + torch.from_numpy(discounts) * future
        chosen = torch.from_numpy(found.models)[:, None]
        loss = nn.functional.smooth_l1_loss(
            self._online(torch.from_numpy(found.states)).gather(1, chosen)[:, 0], wanted
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._gradients += 1
        if self._gradients % settings.target_every == 0:
            self._target.load_state_dict(self._online.state_dict())


def _net(inputs: int, hidden: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
