"""Host memory of one host: which sleeping models hold how much of it."""

from collections.abc import Mapping


class HostMemory:
    """Host memory, shared by the instances of a host.

    Args:
        limit_bytes: Most bytes for weights of models that sleep.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[tuple[str, str], int] = {}

    @property
    def held(self) -> Mapping[tuple[str, str], int]:
        """Held bytes by instance and model."""
        return self._held

    def has_room(self, weights_bytes: int) -> bool:
        """Return whether ``weights_bytes`` more bytes fit. If the file gives no memory, nothing does."""
        return sum(self._held.values()) + weights_bytes <= self._limit_bytes

    def hold(self, instance: str, model: str, weights_bytes: int) -> None:
        self._held[instance, model] = weights_bytes

    def free(self, instance: str, model: str) -> None:
        self._held.pop((instance, model), None)
