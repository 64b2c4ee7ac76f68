"""Copies of KV blocks by vLLM's own ``swap_blocks_batch``: one transfer for each run of bytes of each block.

It is used where the library of csrc/cuda cannot be used, and is its rival where it can. The engine waits until a store
is on the host, unless it goes on beside it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_copy import Region, block_bytes
from sloserve.engine.swap.host.cuda_library import EndedCopy
from sloserve.engine.swap.host.host_pool import HostPool


def descriptors(
    regions: Sequence[Region], pool: HostPool, device_ids: ArrayLike, host_ids: ArrayLike
) -> tuple[IntArray, IntArray, IntArray]:
    """Return addresses in the cache, addresses in the pool, and bytes, ``[n * len(regions)]`` each, block by block.

    Blocks of one run that touch go in one piece, within a slice of the pool.
    """
    device, host = np.asarray(device_ids, np.int64), np.asarray(host_ids, np.int64)
    order = np.argsort(host)
    device, host = device[order], host[order]
    size = block_bytes(regions)
    rows = np.array(regions, np.int64).reshape(-1, 3)
    offsets = np.cumsum(rows[:, 2]) - rows[:, 2]
    cache = rows[:, 0] + device[:, None] * rows[:, 1]
    packed = pool.address + host[:, None] * size + offsets
    if len(regions) == 1 and regions[0].stride == size and host.size:
        touches = (np.diff(host) == 1) & (np.diff(device) == 1) & (host[1:] % pool.slice_blocks != 0)
        first = np.flatnonzero(np.concatenate(([True], ~touches)))
        runs = np.diff(np.concatenate((first, [host.size])))
        return cache[first, 0], packed[first, 0], runs * size
    return cache.ravel(), packed.ravel(), np.tile(rows[:, 2], device.size)


class _Running(NamedTuple):
    ended: EndedCopy
    begin: Any
    end: Any


class OpTransfer:
    """Copies of one rank through the op. Two threads must not use it at once."""

    staging_bytes = 0

    def __init__(
        self, op: Callable[..., None], regions: Sequence[Region], pool: HostPool, cuda: Any, tensor: Any
    ) -> None:
        """Create the copies of one rank.

        Args:
            op: vLLM's ``swap_blocks_batch``.
            regions: Runs of bytes of which a block consists.
            pool: The host pool.
            cuda: The module ``torch.cuda``.
            tensor: The function ``torch.from_numpy``.
        """
        self._op, self._regions, self._pool, self._cuda, self._tensor = op, tuple(regions), pool, cuda, tensor
        self._out, self._in = cuda.Stream(), cuda.Stream()
        self._running: dict[bool, deque[_Running]] = {True: deque(), False: deque()}
        self._tickets = 0

    def store(self, device_ids: ArrayLike, host_ids: ArrayLike, *, beside: bool = False) -> int:
        """Begin to copy blocks to the host.

        Args:
            device_ids: Blocks of the cache.
            host_ids: Blocks of the pool, one for each.
            beside: Whether the engine's later work goes on beside the copy, until :meth:`await_store`.

        Returns: a ticket.
        Raises: what torch or vLLM raise.
        """
        ticket = self._begin(device_ids, host_ids, to_host=True)
        if not beside:
            self.await_store(ticket)
        return ticket

    def await_store(self, ticket: int) -> None:
        """Have the engine's later work wait until the blocks of a store, and of those before it, may be written."""
        for one in self._running[True]:
            if one.ended.ticket == ticket:
                self._cuda.current_stream().wait_event(one.end)

    def load(self, device_ids: ArrayLike, host_ids: ArrayLike) -> int:
        """Begin to copy blocks to the device; otherwise the same as :meth:`store`."""
        return self._begin(device_ids, host_ids, to_host=False)

    def ended(self) -> list[EndedCopy]:
        """Return the copies that are over, each of them once.

        Raises: RuntimeError if the GPU failed.
        """
        found = []
        for running in self._running.values():
            while running and running[0].end.query():
                one = running.popleft()
                found.append(one.ended._replace(link_s=one.begin.elapsed_time(one.end) * 1e-3))
        return found

    def close(self) -> None:
        """Wait for the copies that run."""
        self._out.synchronize()
        self._in.synchronize()

    def _begin(self, device_ids: ArrayLike, host_ids: ArrayLike, *, to_host: bool) -> int:
        cache, packed, sizes = (
            self._tensor(column) for column in descriptors(self._regions, self._pool, device_ids, host_ids)
        )
        stream = self._out if to_host else self._in
        stream.wait_stream(self._cuda.current_stream())
        for earlier in self._running[not to_host]:  # it may have a host block of this copy
            stream.wait_event(earlier.end)
        begin, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        with self._cuda.stream(stream):
            begin.record(stream)
            try:
                if to_host:
                    self._op(cache, packed, sizes)
                else:
                    self._op(packed, cache, sizes)
            except BaseException:
                stream.synchronize()  # what was begun of it must not go on
                raise
            end.record(stream)
        self._tickets += 1
        ended = EndedCopy(self._tickets, to_host, int(sizes.sum()), 0.0)
        self._running[to_host].append(_Running(ended, begin, end))
        return self._tickets
