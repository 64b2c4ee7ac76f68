"""Exploration: a small share of requests goes to another model that should be in time, so that a log tells its worth.

Which requests explore is a hash of the gateway's seed and the request's number: clients cannot choose it, two gateways
do not explore in step, and the same requests at the same gateway give the same choices.
"""

from hashlib import blake2b

_BYTES = 8


def explored(seed: bytes, number: int, share: float, options: int) -> int | None:
    """Return which of the ``options`` models a request explores, or ``None`` if it does not explore.

    Args:
        seed: Seed of the gateway, at most 64 bytes.
        number: Number of the request at the gateway.
        share: Share of the requests that explore.
        options: Number of models among which each is equally likely.
    """
    digest = blake2b(number.to_bytes(_BYTES, "little"), key=seed, digest_size=2 * _BYTES).digest()
    if int.from_bytes(digest[:_BYTES], "little") >= share * 2.0 ** (8 * _BYTES):
        return None
    return int.from_bytes(digest[_BYTES:], "little") % options


def propensity(share: float, options: int, *, is_preferred: bool) -> float:
    """Return the probability with which a model is chosen if ``share`` of the requests explores.

    Args:
        share: Share of the requests that explore.
        options: Number of models among which each is equally likely to be explored.
        is_preferred: Whether the model is the one that the policy prefers.
    """
    return (1.0 - share if is_preferred else 0.0) + share / options
