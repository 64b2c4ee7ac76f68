"""Rules that choose models for many requests at once, for training and judging; ``choose.py`` serves live requests."""

from collections.abc import Callable

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.fleet.router.environment import Observation, System
from sloserve.fleet.router.features import RawFeatures, features
from sloserve.fleet.router.greedy import greedy
from sloserve.fleet.router.masks import feasible
from sloserve.fleet.router.network import Network

Rule = Callable[[Observation], IntArray]
"""A function that returns the index of each request's model, ``[n]``."""


def allowed_by(system: System, seen: Observation) -> BoolArray:
    """Return the models that are feasible for each request, ``[n, models]``."""
    return feasible(seen.predicted_s, system.limit_s[seen.task] - seen.network_s, system.error)


def features_of(system: System, seen: Observation) -> FloatArray:
    """Return the features of each request, ``[n, features]``."""
    every = np.ones(seen.task.size)
    raw = RawFeatures(
        least=seen.least,
        mean=seen.mean,
        predicted_s=seen.predicted_s,
        quality=seen.quality,
        rate_per_s=seen.rate_per_s,
        replicas=system.devices * every,
        limit_s=system.limit_s[seen.task],
        network_s=seen.network_s,
        weight=seen.weight,
    )
    return features(raw)


def always(model: int) -> Rule:
    """Return the rule that sends all requests to one model."""
    return lambda seen: np.full(seen.task.size, model)


def masked_greedy(system: System) -> Rule:
    """Return the rule of :mod:`sloserve.fleet.router.greedy`."""
    return lambda seen: greedy(seen.quality, seen.predicted_s, allowed_by(system, seen))


def learned(system: System, network: Network, *, masked: bool = True) -> Rule:
    """Return the rule that takes the model ``network`` values most, of the feasible models or of all."""

    def rule(seen: Observation) -> IntArray:
        values = network.values(features_of(system, seen))
        if masked:
            values = np.where(allowed_by(system, seen), values, -np.inf)
        return np.asarray(values.argmax(axis=1), np.int64)

    return rule
