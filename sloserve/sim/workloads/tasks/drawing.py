"""What generators of tasks share: draws of lengths in whole blocks, and texts that no other task has."""

import math

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.tasks.plan import BLOCK, BlockIds, Text


class TaskDraws:
    """Draws the lengths of one workload.

    Args:
        name: Name of the random stream.
        seed: Seed of the workload.
        scale: Factor on all lengths in tokens, above 0; the shortest length is one block.

    Raises: ConfigError for a factor that is not a number above 0.
    """

    def __init__(self, name: str, seed: int, scale: float) -> None:
        if not 0.0 < scale < math.inf:
            raise ConfigError(f"--task-scale: {scale} is not a number above 0")
        self.rng = stream(seed, name)
        self._scale = scale
        self._ids = BlockIds()

    def lognormal(self, median: float, sigma: float, most: float = math.inf) -> float:
        """Return a lognormal number with this median and log-standard deviation, at most ``most``."""
        return float(min(self.rng.lognormal(math.log(median), sigma), most))

    def blocks(self, tokens: float) -> int:
        """Return the blocks of a text of ``tokens`` tokens before scaling, at least 1."""
        return max(1, round(self._scale * tokens / BLOCK))

    def text(self, tokens: float, *, shared: bool = False) -> Text:
        """Return new text of ``tokens`` tokens before scaling."""
        return Text(self.output(tokens), shared)

    def output(self, tokens: float) -> tuple[int, ...]:
        """Return the ids of the blocks of an output of ``tokens`` tokens before scaling."""
        return self._ids.take(self.blocks(tokens))
