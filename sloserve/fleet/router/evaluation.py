"""Measures what a rule earns: by rate under stable arrivals, and request by request under arrivals that change.

Source: Quality-of-Service Aware LLM Serving, Sec. 5.1.2 and 5.1.3, Fig. 4, 5, 6, Table 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.fleet.router.arrivals import Arrivals, Changing, Phases, Stable
from sloserve.fleet.router.environment import Environment, System
from sloserve.fleet.router.routing import Rule

STABLE_LIMITS = 8.0
"""Length of the arrivals at each rate, from an idle system, in multiples of a request's guarantee: the paper's 40 s, at
40 ms for each of 128 tokens (Sec. 5.1.2)."""
WINDOW = 20
THRESHOLDS = (1.0, 0.99, 0.98, 0.96, 0.94)
"""Thresholds of the least mean quality of a window of requests, as in Table 2."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Requests in the order of their arrival in each system; all columns are ``[n]``.

    Args:
        rate_per_s: Rate at which they arrived, in requests per second.
        reward: Reward of each request, without the weight.
        latency_s: Seconds without the network, infinite for a refused request.
        network_s: Seconds of the network.
        ticket: Number of the request in the order in which the rule chose models.
    """

    system: IntArray
    task: IntArray
    model: IntArray
    reward: FloatArray
    rate_per_s: FloatArray
    arrival_s: FloatArray
    device: IntArray
    latency_s: FloatArray
    network_s: FloatArray
    ticket: IntArray

    def where(self, chosen: FloatArray | IntArray) -> "Served":
        return Served(*(getattr(self, name)[chosen] for name in self.__slots__))

    def shares(self, models: int) -> FloatArray:
        """Return the share of the requests that went to each model."""
        return np.bincount(self.model, minlength=models) / max(self.model.size, 1)


def serve_all(system: System, rule: Rule, arrivals: Arrivals, systems: int, rng: np.random.Generator) -> Served:
    """Serve everything that arrives, to its end, and return it."""
    world = Environment(system, arrivals, systems, rng)
    rows, served = [], 0
    while not world.over:
        at = world.next_arrivals()
        if not at.size:
            continue
        seen, rates = world.observe(at), arrivals.rate_per_s.copy()
        models, arrival_s = rule(seen), world.now_s[at]
        device = world.serve(at, models, np.arange(served, served + at.size))
        rows.append((at, seen.task, models, rates[at], arrival_s, device, seen.network_s))
        served += at.size
    tickets, rewards, ended_s = world.finished.take()
    of, task, model, rate, arrival_s, device, network_s = (np.concatenate(column) for column in zip(*rows, strict=True))
    reward, latency_s = np.zeros(served), np.zeros(served)
    reward[tickets] = rewards / system.weights[task[tickets]]
    latency_s[tickets] = ended_s - arrival_s[tickets]
    order = np.lexsort((arrival_s, of))
    columns = (of, task, model, reward, rate, arrival_s, device, latency_s, network_s, np.arange(served))
    return Served(*(column[order] for column in columns))


def at_rates(
    system: System, rule: Rule, rates: Sequence[float], *, replicas: int, seed: int, limits: float = STABLE_LIMITS
) -> list[Served]:
    """Return what arrived at each rate, in ``replicas`` systems and within ``limits`` mean guarantees."""
    every = np.repeat(np.asarray(rates, np.float64), replicas)
    rng = np.random.default_rng((seed, 11))
    arrivals = Stable(every, limits * float(system.limit_s.mean()), rng)
    found = serve_all(system, rule, arrivals, every.size, np.random.default_rng((seed, 12)))
    return [found.where(found.system // replicas == i) for i in range(len(rates))]


def unpredictable(system: System, rule: Rule, phases: Phases, *, replicas: int, until_s: float, seed: int) -> Served:
    """Return what arrived in ``replicas`` systems with changing rates."""
    arrivals = Changing(phases, replicas, np.random.default_rng((seed, 21)), until_s)
    return serve_all(system, rule, arrivals, replicas, np.random.default_rng((seed, 22)))


def windows(served: Served) -> FloatArray:
    """Return the mean quality of every window of 20 requests that follow each other in one system."""
    found = []
    for system in np.unique(served.system):
        reward = served.reward[served.system == system]
        if reward.size >= WINDOW:
            found.append(np.convolve(reward, np.full(WINDOW, 1.0 / WINDOW), "valid"))
    return np.concatenate(found) if found else np.empty(0)
