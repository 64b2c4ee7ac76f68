"""Many independent random streams from one seed.

Each use names its own stream, so one draw more here changes nothing there.
"""

import zlib

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the stream ``name`` under ``seed`` (at least 0).

    The same pair always gives the same numbers.

    Raises: ValueError for a negative seed.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))
