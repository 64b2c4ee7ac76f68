"""How many requests an instance takes: more than its engine runs at once, and some of them streams alone."""

import math
from dataclasses import dataclass
from typing import Final

_QUEUED: Final = 1.25
"""An engine is given so many times what it runs at once, so that its scheduler has requests to choose from."""
_FOR_STREAMS: Final = 0.25
"""Beside these, so many times as many places are there for streams alone: a batch fills all that it may have, and a
stream that found no place would wait before the engine, where no policy can put it first."""


@dataclass(frozen=True, slots=True)
class Places:
    """Of an engine that runs ``max_num_seqs`` requests at once."""

    max_num_seqs: int

    @property
    def for_streams(self) -> int:
        """Those that lines of batches leave to streams."""
        return math.ceil(_FOR_STREAMS * self.max_num_seqs)

    @property
    def all(self) -> int:
        return round(_QUEUED * self.max_num_seqs) + self.for_streams

    def left(self, in_flight: int, *, durable: bool = False) -> int:
        """How many more requests it takes, or, if they are ``durable``, how many more lines; at least 0."""
        return max(self.all - in_flight - (self.for_streams if durable else 0), 0)
