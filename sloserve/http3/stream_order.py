"""What is known of the streams of one connection, and their order by a scheduler.

The module does not deal with packets: it takes offsets of a stream's bytes and times, and returns a key to sort by.
"""

import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from sloserve.http3.listener_figures import Deadlines
from sloserve.http3.stream_schedulers import Key, Scheduler, StreamState, TenantStreams

_SPARE = 64
"""The number of finished streams that may be remembered in addition to twice the live ones."""


@dataclass(slots=True)
class _Due:
    """Deadlines of parts of a stream: the part that ends at ``ends[i]`` is due at ``times_s[i]``.

    ``unsent`` has end, deadline and tally of the parts that are to be counted, and have not left.
    """

    ends: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    last_s: float = math.inf
    unsent: deque[tuple[int, float, Deadlines]] = field(default_factory=deque)

    def add(self, end: int, time_s: float) -> None:
        self.ends.append(end)
        self.times_s.append(time_s)
        self.last_s = time_s

    def at(self, offset: int, acked: int) -> float:
        """Return when the part that holds ``offset`` is due; parts up to ``acked`` are forgotten."""
        done = bisect_right(self.ends, acked)
        if done:
            del self.ends[:done], self.times_s[:done]
        i = bisect_right(self.ends, offset)
        return self.times_s[i] if i < len(self.ends) else self.last_s

    def left(self, highest_offset: int, now_s: float) -> None:
        """Record that all bytes up to this offset have left once."""
        while self.unsent and self.unsent[0][0] <= highest_offset:
            _, deadline_s, tally = self.unsent.popleft()
            if now_s <= deadline_s:
                tally.met += 1
            else:
                tally.missed += 1


class StreamOrder:
    """The streams of one connection under one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._states: dict[int, StreamState] = {}
        self._due: dict[int, _Due] = {}
        self._turns = itertools.count(1)
        self._anonymous = TenantStreams()
        self._tenants: WeakValueDictionary[str, TenantStreams] = WeakValueDictionary()
        self._waiting: set[TenantStreams] = set()
        self._level = 0

    def set(
        self,
        stream_id: int,
        deadline_s: float | None,
        urgency: int | None,
        incremental: bool | None,
        tenant: str | None,
    ) -> None:
        """Set what the scheduler may know of a stream; ``None`` leaves a value as it is."""
        state = self._state(stream_id)
        if deadline_s is not None:
            state.deadline_s = deadline_s
            self._due.pop(stream_id, None)
        if urgency is not None:
            state.urgency = urgency
        if incremental is not None:
            state.incremental = incremental
        if tenant is not None:
            state.tenant = self._tenants.setdefault(tenant, TenantStreams())

    def waiting(self, stream_ids: Iterable[int]) -> None:
        """Set which streams have something to send.

        A tenant that had nothing to send starts level with the tenant that was served least. What it did not use before
        is no credit, which would shut out all others until they were even.
        """
        waiting = {self._state(stream_id).tenant for stream_id in stream_ids}
        for tenant in waiting - self._waiting:
            tenant.served_bytes = max(tenant.served_bytes, self._level)
        self._level = max(self._level, min((tenant.served_bytes for tenant in waiting), default=0))
        self._waiting = waiting

    def due(self, stream_id: int, end: int, deadline_s: float, tally: Deadlines | None = None) -> None:
        """Set when the bytes of the stream up to ``end`` that no earlier call named are due.

        Args:
            stream_id: Number of the stream.
            end: Offset behind the last byte.
            deadline_s: When the bytes are due, in seconds.
            tally: Counter of whether they leave by then.
        """
        due = self._due.setdefault(stream_id, _Due())
        due.add(end, deadline_s)
        if tally is not None:
            due.unsent.append((end, deadline_s, tally))

    def key(self, stream_id: int, next_offset: int, acked: int) -> Key:
        """Return the key by which to sort the stream.

        Args:
            stream_id: Number of the stream.
            next_offset: Offset of the byte that the stream would send next.
            acked: Offset up to which the stream has arrived.
        """
        state = self._state(stream_id)
        due = self._due.get(stream_id)
        if due is not None:
            state.deadline_s = due.at(next_offset, acked)
        return self._scheduler(state)

    def served(self, stream_id: int, sent_bytes: int, highest_offset: int = 0, now_s: float = 0.0) -> None:
        """Record that the stream sent ``sent_bytes`` new bytes, up to ``highest_offset``."""
        due = self._due.get(stream_id)
        if due is not None:
            due.left(highest_offset, now_s)
        state = self._state(stream_id)
        state.turn = next(self._turns)
        state.tenant.served_bytes += sent_bytes

    def forget(self, live: Collection[int]) -> None:
        """Drop streams that are not ``live``, from time to time."""
        if len(self._states) > 2 * len(live) + _SPARE:
            for table in (self._states, self._due):
                for gone in [stream_id for stream_id in table if stream_id not in live]:
                    del table[gone]

    def _state(self, stream_id: int) -> StreamState:
        state = self._states.get(stream_id)
        if state is None:
            state = self._states[stream_id] = StreamState(stream_id, self._anonymous, next(self._turns))
        return state
