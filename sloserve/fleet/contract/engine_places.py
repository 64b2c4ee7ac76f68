"""The number of requests that an instance takes: more than its engine runs at once, some of them for streams alone."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnginePlaces:
    """Number of requests that are given to an engine.

    Args:
        max_num_seqs: Requests that the engine runs at once.
        queued: Requests for it in multiples of ``max_num_seqs``; above 1, so that the engine's scheduler has requests
            to choose from.
        streams: Further places for streams alone, in the same multiples: a batch fills all that it may have, and a
            stream without a place would wait before the engine, where no policy can put it first.
    """

    max_num_seqs: int
    queued: float = 1.25
    streams: float = 0.25

    @property
    def for_streams(self) -> int:
        """Places reserved for streams; lines of batches may not use them."""
        return math.ceil(self.streams * self.max_num_seqs)

    @property
    def all(self) -> float:
        """Number of all places; inf if there is no limit."""
        most = self.queued * self.max_num_seqs
        return most if most == math.inf else round(most) + self.for_streams

    def left(self, in_flight: int, *, durable: bool = False) -> int:
        """Return how many more requests it takes, or, if they are ``durable``, how many more lines; at least 0."""
        left = max(self.all - in_flight - (self.for_streams if durable else 0), 0)
        return _UNBOUND if left == math.inf else int(left)


_UNBOUND = 1 << 30
