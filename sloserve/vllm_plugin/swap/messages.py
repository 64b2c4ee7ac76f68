"""Messages between the two halves of the connector: orders for one step, and the outcomes of earlier orders."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


class Copy(NamedTuple):
    """Blocks of one request to copy: device block ``device_ids[i]`` to host block ``host_ids[i]``, or back.

    Args:
        number: Number of a store that may go on beside steps, above 0; 0 for any other copy.
    """

    request_id: str
    device_ids: list[int]
    host_ids: list[int]
    number: int = 0


@dataclass
class SwapOrders(KVConnectorMetadata):
    """Orders to a worker for one step.

    They are carried out in this order: all stores, in their order, before any block is written; then the loads.

    Args:
        awaited: Number of the last store that must be over when the step begins, with those before it; infinite for all
            of them. Stores with higher numbers go on beside the step.
        stored: Set by the worker once the stores are made; it may be given the same orders twice.
        loaded: Set by the worker once the loads are begun.
    """

    stores: list[Copy] = field(default_factory=list)
    loads: list[Copy] = field(default_factory=list)
    awaited: float = math.inf
    stored: bool = False
    loaded: bool = False


@dataclass
class CopyTraffic:
    """Bytes and seconds of copies in one direction, by one rank or by all of them at the same time."""

    bytes: int = 0
    seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        """Add a copy that ran after the others."""
        self.bytes += num_bytes
        self.seconds += seconds

    def beside(self, other: "CopyTraffic") -> "CopyTraffic":
        """Return this traffic together with another rank's at the same time."""
        return CopyTraffic(self.bytes + other.bytes, max(self.seconds, other.seconds))


@dataclass
class SwapReport(KVConnectorWorkerMetadata):
    """The ranks' report after a step.

    Args:
        failed_stores: Requests with KV that did not get to some rank's pool.
    """

    failed_stores: set[str] = field(default_factory=set)
    out: CopyTraffic = field(default_factory=CopyTraffic)
    back: CopyTraffic = field(default_factory=CopyTraffic)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "SwapReport":
        assert isinstance(other, SwapReport)
        return SwapReport(
            self.failed_stores | other.failed_stores, self.out.beside(other.out), self.back.beside(other.back)
        )

    def __bool__(self) -> bool:
        """Return whether it reports anything; vLLM leaves out an empty one."""
        return bool(self.failed_stores or self.out.bytes or self.back.bytes)
