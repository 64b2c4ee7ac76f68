"""The LoRA adapters that the requests of an engine use."""

from collections import Counter


class AdaptersInUse:
    """Adapters that waiting and running requests and sessions name, by request."""

    def __init__(self) -> None:
        self._adapter_of: dict[str, int] = {}
        self._requests: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._requests)

    def of(self, request_id: str) -> int | None:
        """Return the adapter of a request; ``None`` for the model itself."""
        return self._adapter_of.get(request_id)

    def add(self, request_id: str, adapter: int | None) -> None:
        """Count the adapter of a request, once."""
        if adapter is not None and request_id not in self._adapter_of:
            self._adapter_of[request_id] = adapter
            self._requests[adapter] += 1

    def drop(self, request_id: str) -> None:
        """Forget a request, whether it names an adapter or not."""
        adapter = self._adapter_of.pop(request_id, None)
        if adapter is not None:
            self._requests[adapter] -= 1
            if not self._requests[adapter]:
                del self._requests[adapter]
