"""The worker's side of swapping in virtual time: when stored and loaded KV arrives. It imports no vLLM.

It works as the live copiers do. A step begins by packing what was preempted into staging memory on the device; what
does not fit waits for the link, and the step with it. A copy beside steps is packed too, but only the step that awaits
it waits for what does not fit. The copy to the host goes on while steps run. A load waits for the copy to the host of
what it reads and for the loads before it; the first step that starts after it unpacks it and reports it.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sloserve.engine.swap.link_clock import LinkClock
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.lso.plan import STAGING_BYTES
from sloserve.lso.swapping import STAGING_BYTES_PER_S

GIB = 2**30

Load = tuple[str, Sequence[int]]
"""The request that gets the loaded KV, and the host blocks that it is read from."""

Store = tuple[int, Sequence[int]]
"""The number of a copy to the host beside steps, 0 for any other copy, and the host blocks that it goes to."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a step finds of copies between device and host.

    Args:
        longer_s: Seconds that the step lasts longer.
        loaded: Ids of the requests with loads that are done, in their order.
        out: Bytes and seconds of the copies to the host that ended since the step before.
        back: Bytes and seconds of the copies to the device that ended since the step before.
    """

    longer_s: float = 0.0
    loaded: Sequence[str] = ()
    out: tuple[int, float] = (0, 0.0)
    back: tuple[int, float] = (0, 0.0)


NOTHING = Told()


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that runs.

    Args:
        request_id: Id of the request of a load, ``None`` for a store.
    """

    ends_s: float
    bytes: int
    request_id: str | None = None


class VirtualSwapWorker:
    """The copies of one engine. Times are seconds from the start of the run.

    ``bytes_out`` and ``bytes_in`` are the bytes that were sent over the link, to the host and back; ``loads`` is the
    number of loads, by request.

    Args:
        block_bytes: Bytes of one KV block, over all layers and ranks.
        bytes_per_s: Rate of the link, in each direction.
    """

    def __init__(self, block_bytes: int, bytes_per_s: float) -> None:
        self.block_bytes, self._bytes_per_s = block_bytes, bytes_per_s
        self._link = LinkClock(bytes_per_s)
        self._there_s: dict[int, float] = {}  # when the copy to each host block ends
        self._copies: list[_Copy] = []  # that have not been reported
        self._out_until_s = 0.0
        self._beside: deque[tuple[int, float]] = deque()  # numbers of copies, and when all is out of the cache
        self.bytes_out = self.bytes_in = 0
        self.loads: Counter[str] = Counter()

    @classmethod
    def of(cls, settings: EngineSettings, profile: Profile) -> "VirtualSwapWorker | None":
        """Return the worker of an engine of this size; ``None`` without swap space."""
        if not settings.swap_space_gib:
            return None
        gb_per_s = profile.link_bandwidth_gb_per_s if settings.link_gb_per_s is None else settings.link_gb_per_s
        return cls(settings.block_bytes(profile), 1e9 * gb_per_s)

    @property
    def next_s(self) -> float:
        """Return when the first of the loads under way will have arrived; infinite if there is none."""
        return min((copy.ends_s for copy in self._copies if copy.request_id is not None), default=math.inf)

    def step(self, stores: Iterable[Store], loads: Iterable[Load], start_s: float, awaited: float = math.inf) -> Told:
        """Take up the copies of a step that starts now; return what the step finds.

        Args:
            stores: The copies to the host.
            loads: The loads.
            start_s: Time at which the step starts, in seconds.
            awaited: Number of the last copy that the step waits for; copies with higher numbers go on beside it.
        """
        done = [copy for copy in self._copies if copy.ends_s <= start_s]
        if done:
            self._copies = [copy for copy in self._copies if copy.ends_s > start_s]
        back = [copy for copy in done if copy.request_id is not None]
        longer_s = sum(copy.bytes for copy in back) / STAGING_BYTES_PER_S
        while self._beside and self._beside[0][0] <= awaited:
            longer_s = max(longer_s, self._beside.popleft()[1] - start_s)
        for number, host_ids in stores:
            packed_s = longer_s + len(host_ids) * self.block_bytes / STAGING_BYTES_PER_S
            until_s = self._store(host_ids, start_s, longer_s)
            if number > awaited:
                self._beside.append((number, start_s + until_s))
                until_s = packed_s
            longer_s = until_s
        for request_id, host_ids in loads:
            self._load(request_id, host_ids, start_s)
        return Told(
            longer_s,
            [copy.request_id for copy in back if copy.request_id is not None],
            self._traffic([copy for copy in done if copy.request_id is None]),
            self._traffic(back),
        )

    def store(self, stores: Iterable[Store], now_s: float) -> float:
        """Take up copies to the host without a step; return when all copies to the host have ended."""
        for number, host_ids in stores:
            until_s = now_s + self._store(host_ids, now_s, 0.0)
            if number:
                self._beside.append((number, until_s))
        return self._out_until_s

    def _store(self, host_ids: Sequence[int], start_s: float, longer_s: float) -> float:
        """Take up one copy to the host; return the seconds that the step lasts longer if it waits for it.

        Args:
            host_ids: Host blocks of the copy.
            start_s: Time at which the step starts, in seconds.
            longer_s: Seconds that the step lasts longer so far.
        """
        size = len(host_ids) * self.block_bytes
        longer_s += size / STAGING_BYTES_PER_S
        ends_s = self._link.out(size, start_s + longer_s)
        self._there_s.update(dict.fromkeys(host_ids, ends_s))
        self._copies.append(_Copy(ends_s, size))
        self._out_until_s = ends_s
        self.bytes_out += size
        return max(longer_s, ends_s - start_s - STAGING_BYTES / self._bytes_per_s)

    def _load(self, request_id: str, host_ids: Sequence[int], start_s: float) -> None:
        size = len(host_ids) * self.block_bytes
        ends_s = self._link.in_(size, start_s, max((self._there_s[block] for block in host_ids), default=start_s))
        self._copies.append(_Copy(ends_s, size, request_id))
        self.bytes_in += size
        self.loads[request_id] += 1

    def _traffic(self, copies: Sequence[_Copy]) -> tuple[int, float]:
        size = sum(copy.bytes for copy in copies)
        return size, size / self._bytes_per_s
