"""Weights of models that sleep: the copies that a host's memory holds, and the ones that it gives up for others."""

from collections import OrderedDict


class WeightCopies:
    """Copies by instance and model, the least recently used first. A copy exists only while its model sleeps."""

    def __init__(self, size_bytes: int) -> None:
        self._free = size_bytes
        self._copies: OrderedDict[tuple[str, str], int] = OrderedDict()

    def holds(self, instance: str, model: str) -> bool:
        """Return whether the model is warm for this instance."""
        return (instance, model) in self._copies

    def keep(self, instance: str, model: str, size_bytes: int, *, spare: str | None = None) -> bool:
        """Keep a copy, in place of the least recently used ones if need be; return ``False`` if it does not fit.

        The copy of the model ``spare`` for this instance stays: it is about to be read.
        """
        old = [key for key in self._copies if key != (instance, spare)]
        if size_bytes > self._free + sum(self._copies[key] for key in old):
            return False
        for key in old:
            if size_bytes <= self._free:
                break
            self._free += self._copies.pop(key)
        self._copies[instance, model] = size_bytes
        self._free -= size_bytes
        return True

    def fits(self, size_bytes: int) -> bool:
        """Return whether there is room for a copy without giving up another."""
        return size_bytes <= self._free

    def release(self, instance: str, model: str) -> None:
        """Free the copy of a model: its weights are on the device again."""
        self._free += self._copies.pop((instance, model), 0)
