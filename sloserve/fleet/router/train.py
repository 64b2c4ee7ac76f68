"""Trains a router by Double DQN, on many simulated systems at once.

A request's reward is known when it ends, many arrivals after its model was chosen. So the state and the choice are
recorded when it arrives, the reward when it ends, and only transitions with a known reward are learned from.

Source: Quality-of-Service Aware LLM Serving, Sec. 4.2: two layers of 256, learning rate 1e-4, target network every 500
iterations, Double Q-learning, epsilon-greedy, discount 0.99. Differs: the future is discounted by time too, since a
choice matters for as long as its request runs, however few others arrive meanwhile; rewards are centred; choices, and
the best next choice, are among the feasible models (``masked=False`` is the paper's); batch size, exploration and size
of the memory are not in the paper.
"""

from collections.abc import Callable

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.fleet.router.arrivals import Changing, Phases
from sloserve.fleet.router.environment import Environment, System
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.learner import Learner, discounts_after
from sloserve.fleet.router.network import Network
from sloserve.fleet.router.replay import ReplayMemory
from sloserve.fleet.router.routing import allowed_by, features_of
from sloserve.fleet.router.training_settings import TrainingSettings

Progress = Callable[[int], None]
"""A callback that receives, now and then, how many steps are done."""


class Trainer:
    """One training. ``run`` does all of it; ``network`` is the policy learned up to now."""

    def __init__(self, system: System, phases: Phases, settings: TrainingSettings) -> None:
        self._system, self._settings = system, settings
        self._rng = np.random.default_rng(settings.seed)
        arrivals = Changing(phases, settings.systems, np.random.default_rng((settings.seed, 1)))
        self._world = Environment(system, arrivals, settings.systems, np.random.default_rng((settings.seed, 2)))
        self._learner = Learner(system.models, settings)
        inputs, outputs = len(Schema(len(system.models)).names), len(system.models)
        self._replay = ReplayMemory(settings.systems, settings.memory // settings.systems, inputs, outputs)

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
                self._learner.average()
            progress(min(done, settings.steps))
            if on_checkpoint is not None and done * 10 >= settings.steps * checkpoint:
                checkpoint += 1
                on_checkpoint(done)

    @property
    def network(self) -> Network:
        """The present policy, in plain numbers."""
        return self._learner.network

    def _route(self, systems: IntArray, share: float) -> None:
        seen = self._world.observe(systems)
        states = features_of(self._system, seen).astype(np.float32)
        allowed = allowed_by(self._system, seen)
        if not self._settings.masked:
            allowed[:] = True
        values: FloatArray = self._learner.values(states).astype(np.float64)
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
        discounts = discounts_after(found.gap_s, float(self._system.limit_s.mean()), settings)
        self._learner.learn(found.states, found.models, found.rewards, discounts, found.next_states, found.next_allowed)
