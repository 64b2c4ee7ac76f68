"""How many requests an instance takes: more than its engine runs at once, and some of them streams alone."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnginePlaces:
    """How many requests are given to an engine that runs ``max_num_seqs`` of them at once.

    queued: in multiples of ``max_num_seqs``; above 1, so that the engine's scheduler has requests to choose from.
    streams: further places for streams alone, in the same multiples: a batch fills all that it may have, and a stream
    that found no place would wait before the engine, where no policy can put it first.
    """

    max_num_seqs: int
    queued: float = 1.25
    streams: float = 0.25

    @property
    def for_streams(self) -> int:
        """Those that lines of batches leave to streams."""
        return math.ceil(self.streams * self.max_num_seqs)

    @property
    def all(self) -> float:
        """inf where there is no limit."""
        most = self.queued * self.max_num_seqs
        return most if most == math.inf else round(most) + self.for_streams

    def left(self, in_flight: int, *, durable: bool = False) -> int:
        """How many more requests it takes, or, if they are ``durable``, how many more lines; at least 0."""
        left = max(self.all - in_flight - (self.for_streams if durable else 0), 0)
        return _UNBOUND if left == math.inf else int(left)


_UNBOUND = 1 << 30
