"""Copiers of KV blocks between one rank's cache and its host pool.

Order is all that keeps KV whole, and a copier keeps it:

- A store reads what the engine's work so far wrote. The engine's later work comes after it: that may write the blocks.
  Of a store *beside* the engine's work that holds only from :meth:`Copier.await_store` on; until then the caller sees
  to it that nothing writes the blocks.
- A load comes after the engine's work so far, the forward pass that runs included: that may still write the blocks.
- If two copies have the same host block, the one that was asked for first is first.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sloserve.core.kernels.kv_copy import Region, block_bytes, copy_blocks
from sloserve.engine.swap.host.host_pool import HostPool


class Moved(NamedTuple):
    """A copy that has ended: bytes of this rank, and how long the link was taken up by it."""

    to_host: bool
    bytes: int
    seconds: float


class Copier(Protocol):
    """Copies of one rank. A ticket names a load until it is reported; a request's id, so one is there at a time."""

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int], *, beside: bool = False) -> int:
        """Copy blocks to the host. An error that shows later makes a load of these host blocks fail.

        Args:
            device_ids: Blocks of the cache.
            host_ids: Blocks of the pool, one for each.
            beside: Whether the engine's later work goes on beside the copy.

        Returns: a number of the store, for :meth:`await_store`.
        Raises: any error, and the host blocks hold nothing of use.
        """

    def await_store(self, number: int) -> None:
        """Have the engine's later work wait until the blocks of a store, and of those before it, may be written.

        Raises: any error, and no store runs any more.
        """

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        """Begin to copy blocks to the device.

        Raises: any error, and the load is neither done nor failed.
        """

    def finished(self) -> tuple[set[str], set[str]]:
        """Return the tickets of loads that are done, and of loads that failed, since the last call.

        Neither kind touches a block again.
        """

    def moved(self) -> list[Moved]:
        """Return the copies that have ended since the last call."""

    def drain(self, limit_s: float) -> bool:
        """Wait at most ``limit_s`` seconds until no copy runs; return whether none does.

        Tickets that ended meanwhile are still returned by :meth:`finished`.
        """

    def close(self) -> None:
        """End what runs. The pool may go afterwards."""


class CpuCopier:
    """On a CPU engine all is over when a call returns, the engine's own work too, so each copy is made at once."""

    def __init__(self, regions: Sequence[Region], num_blocks: int, pool: HostPool) -> None:
        self._regions, self._num_blocks, self._pool = tuple(regions), num_blocks, pool
        self._block_bytes = block_bytes(regions)
        self._done: set[str] = set()
        self._moved: list[Moved] = []

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int], *, beside: bool = False) -> int:
        self._copy(device_ids, host_ids, to_host=True)
        return 0

    def await_store(self, number: int) -> None:
        """Do nothing, since every store is over."""

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        self._copy(device_ids, host_ids, to_host=False)
        self._done.add(ticket)

    def _copy(self, device_ids: Sequence[int], host_ids: Sequence[int], *, to_host: bool) -> None:
        start_s = time.perf_counter()
        copy_blocks(
            self._regions,
            self._num_blocks,
            self._pool.address,
            self._pool.blocks,
            device_ids,
            host_ids,
            to_host=to_host,
        )
        self._moved.append(Moved(to_host, len(host_ids) * self._block_bytes, time.perf_counter() - start_s))

    def finished(self) -> tuple[set[str], set[str]]:
        done, self._done = self._done, set()
        return done, set()

    def moved(self) -> list[Moved]:
        moved, self._moved = self._moved, []
        return moved

    def drain(self, limit_s: float) -> bool:
        return True

    def close(self) -> None:
        """Do nothing, since no copy runs."""
