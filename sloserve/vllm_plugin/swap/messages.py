"""What the two halves of the connector say to each other: orders for one step, and what became of earlier ones."""

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


class Copy(NamedTuple):
    """Blocks of one request to be copied: device block ``device_ids[i]`` to host block ``host_ids[i]``, or back."""

    request_id: str
    device_ids: list[int]
    host_ids: list[int]


@dataclass
class SwapOrders(KVConnectorMetadata):
    """What a worker does in one step, in this order: all stores, in their order, before any block is written; then the
    loads.

    stored, loaded: set by the worker, which may be given the same orders twice.
    """

    stores: list[Copy] = field(default_factory=list)
    loads: list[Copy] = field(default_factory=list)
    stored: bool = False
    loaded: bool = False


@dataclass
class Traffic:
    """What was copied in one direction by one rank, or by all of them at the same time."""

    bytes: int = 0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        """One copy after the other."""
        self.bytes += num_bytes
        self.seconds += seconds

    def beside(self, other: "Traffic") -> "Traffic":
        """With another rank's, at the same time."""
        return Traffic(self.bytes + other.bytes, max(self.seconds, other.seconds))


@dataclass
class SwapReport(KVConnectorWorkerMetadata):
    """What the ranks have to say after a step. failed_stores: requests whose KV did not get to some rank's pool."""

    failed_stores: set[str] = field(default_factory=set)
    out: Traffic = field(default_factory=Traffic)
    back: Traffic = field(default_factory=Traffic)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "SwapReport":
        assert isinstance(other, SwapReport)
        return SwapReport(
            self.failed_stores | other.failed_stores, self.out.beside(other.out), self.back.beside(other.back)
        )

    def __bool__(self) -> bool:
        """Whether it says anything; vLLM leaves out one that does not."""
        return bool(self.failed_stores or self.out.bytes or self.back.bytes)
