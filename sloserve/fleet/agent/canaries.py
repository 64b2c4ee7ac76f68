"""Canary prompts: the output of each model when it was first loaded, to detect an engine that computes garbage.

After a faulty sleep an engine generates wrong output, and its health does not show it.
"""

import logging
from collections.abc import Iterable, Mapping

from sloserve.core.errors import EngineError
from sloserve.fleet.agent.engine import Engine

logger = logging.getLogger(__name__)


class Canaries:
    """Recorded canary outputs, shared by the instances of a host."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[int]] = {}

    def of(self, models: Iterable[str]) -> dict[str, list[int]]:
        """Return the recorded outputs of these models, by model."""
        return {model: self._tokens[model] for model in models if model in self._tokens}

    def restore(self, recorded: Mapping[str, list[int]]) -> None:
        """Take over what an earlier agent has recorded."""
        self._tokens |= recorded

    async def record(self, engine: Engine, model: str) -> None:
        """Record the output of an engine that was just started, which is taken to be right. Raises: EngineError."""
        tokens = await engine.canary(model)
        if self._tokens.setdefault(model, tokens) != tokens:
            logger.warning("the output of model %s for the canary prompt differs from when it was first loaded", model)
            self._tokens[model] = tokens

    async def check(self, engine: Engine, model: str) -> None:
        """Compare the output of an engine that was woken or has read weights with the recorded one.

        Raises: EngineError if it is late or wrong.
        """
        if model not in self._tokens:
            await self.record(engine, model)
        elif await engine.canary(model) != self._tokens[model]:
            raise EngineError("its output for the canary prompt differs from when it was first loaded")
