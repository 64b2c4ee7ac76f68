"""LoRA adapters of a model engine's requests, of which only some run in one step."""

from sloserve.core.arrays import IntArray
from sloserve.sim.model.model_requests import ModelRequests


class Adapters:
    """The adapters that requests name, and the adapters of the step that is being scheduled.

    As vLLM does, a step passes over a waiting request if ``most`` other adapters are in it.

    Args:
        requests: The requests of the engine.
        most: Number of adapters that may run at once.
    """

    def __init__(self, requests: ModelRequests, most: int) -> None:
        self._handles, self._most = requests.handles, most
        self._numbers: dict[str, int] = {}
        self._in_step: set[int] = set()

    def of(self, index: int) -> int | None:
        """Return the number of a request's adapter; ``None`` for the model itself."""
        name = self._handles[index].workload.adapter
        return self._numbers.setdefault(name, len(self._numbers) + 1) if name else None

    def step_begins(self, running: IntArray) -> None:
        """Note the running requests that a step serves, by their indices."""
        self._in_step = {lora for index in running.tolist() if (lora := self.of(index)) is not None}

    def fits(self, index: int) -> bool:
        """Return whether the adapter of a waiting request may run in this step."""
        lora = self.of(index)
        return lora is None or lora in self._in_step or len(self._in_step) < self._most

    def admit(self, index: int) -> None:
        """Note a request that the step admits."""
        lora = self.of(index)
        if lora is not None:
            self._in_step.add(lora)
