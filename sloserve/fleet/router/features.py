"""The inputs of a learned policy: numbers without units, the same in training and in serving.

The schema names every number in order. A policy is loaded only where its schema is the one that would be computed, so
that a change here, or another number of models, makes old policies unloadable instead of wrong.

Source: Quality-of-Service Aware LLM Serving, Sec. 4.2: batch size at each model, task, estimated request rate. Differs:
the task is its row of the quality table; replicas of a model are summed up as the least loaded one and the mean; the
predicted time is there, as a share of the time that the request has, and the share that the network takes.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray

VERSION = 1
_BATCH_SCALE = 0.2
_LATEST = 4.0
"""Times beyond this many limits look all the same."""
_LEAST_LIMIT_S = 1e-3


@dataclass(frozen=True, slots=True)
class Schema:
    """Names and order of the features of a router over ``models`` models, smallest first."""

    models: int

    @property
    def names(self) -> tuple[str, ...]:
        by_model = ("least_batch", "mean_batch", "predicted_share", "quality")
        each = tuple(f"{name}/{model}" for name in by_model for model in range(self.models))
        return (*each, "load", "network_share", "weight")

    def as_text(self) -> str:
        """Return one line that two equal schemas have in common."""
        return f"v{VERSION}:" + ",".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawFeatures:
    """Inputs of the features of n requests, in units of their own.

    Args:
        least: Number of requests at the least loaded replica, ``[n, models]``.
        mean: Mean number of requests at the replicas, ``[n, models]``.
        predicted_s: Predicted seconds until the last token, ``[n, models]``.
        quality: Quality of the models for the request's task, ``[n, models]``.
        limit_s: Seconds from arrival to the last token, network included.
        rate_per_s: Rate of all requests, in requests per second.
        replicas: Number of replicas of the model that has most.
        weight: Weight of the request's class.
    """

    least: FloatArray
    mean: FloatArray
    predicted_s: FloatArray
    quality: FloatArray
    rate_per_s: FloatArray
    replicas: FloatArray
    limit_s: FloatArray
    network_s: FloatArray
    weight: FloatArray


def features(raw: RawFeatures) -> FloatArray:
    """Return the features of n requests, ``[n, len(names)]``."""
    limit_s = np.maximum(raw.limit_s, _LEAST_LIMIT_S)
    left_s = np.maximum(limit_s - raw.network_s, _LEAST_LIMIT_S)
    load = np.log1p(raw.rate_per_s * limit_s / raw.replicas)  # requests a replica would hold if each took its time
    shares = (load * _BATCH_SCALE, np.minimum(raw.network_s / limit_s, 1.0), np.log(raw.weight))
    return np.concatenate(
        (
            np.log1p(raw.least) * _BATCH_SCALE,
            np.log1p(raw.mean) * _BATCH_SCALE,
            np.minimum(raw.predicted_s / left_s[:, None], _LATEST),
            raw.quality,
            np.stack(shares, axis=1),
        ),
        axis=1,
    )
