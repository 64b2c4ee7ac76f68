"""One seed, many independent random streams: each use names its own, so one draw more here changes nothing there."""

import zlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of the stream ``name`` under ``seed`` (at least 0): the same pair gives the same numbers, always.

    Raises: ValueError for a negative seed.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))
