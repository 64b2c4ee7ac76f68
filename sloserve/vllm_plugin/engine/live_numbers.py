"""Numbers of the live requests, by which watchers know them, and facts of each that outlast a frame."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from vllm.v1.request import Request

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.requests import slots_found
from sloserve.core.stated import StatedSLO
from sloserve.vllm_plugin.engine.engine_stats import EngineStats

_NAN = float("nan")
STATIC = ("number", "class_id", "arrival_s", "ttft_due_s", "e2e_due_s", "pace_s", "prompt_tokens", "max_tokens")
"""Columns of a request's facts, which do not change while it lives.

``max_tokens`` is the most tokens of its output. It is infinite for a session: each of its inputs states another number.
"""
MISSED = len(STATIC)
"""Column behind these that says whether the request was seen after it had missed a deadline."""
_MOST_GONE = 64
_ROWS = 64
"""Rows of the array of numbers at first."""
_UNRECORDED = 10**9
"""Number after which requests are counted that a recording does not have, so that they share no number with its own."""


class LiveNumbers:
    """Facts of the live requests that outlast a frame, with the number of each.

    A request that is recorded has its number in the recording, by which ``sloserve explain`` finds it. Any other gets
    one when it is first seen.

    Args:
        recorded: Function that returns how to look up the number of a request in the recording; ``None`` without one.
    """

    def __init__(self, recorded: Callable[[], Callable[[str], int | None] | None]) -> None:
        self._recorded = recorded
        self.slot_of: dict[str, int] = {}
        self.values: FloatArray = np.zeros((_ROWS, MISSED + 1))
        self._free = list(range(_ROWS))
        self._next = 1

    def slots(self, requests: Sequence[Request], live: Collection[str], stats: EngineStats) -> IntArray:
        """Return the rows of ``values`` for ``requests``.

        Args:
            requests: The requests.
            live: Ids of all unfinished requests; the others are forgotten in time.
            stats: The figures of the scheduler.
        """
        if len(self.slot_of) > 2 * len(live) + _MOST_GONE:
            for gone in self.slot_of.keys() - live:
                self._free.append(self.slot_of.pop(gone))
        found = slots_found(self.slot_of, requests, "request_id")
        if found.size < len(requests):
            for request in [one for one in requests if one.request_id not in self.slot_of]:
                self.of(request, stats)
            found = slots_found(self.slot_of, requests, "request_id")
        return found

    def of(self, request: Request, stats: EngineStats) -> int:
        """Return the row of one request."""
        slot = self.slot_of.get(request.request_id)
        if slot is None:
            if not self._free:
                size = len(self.values)
                self.values = np.concatenate((self.values, np.zeros_like(self.values)))
                self._free = list(range(size, 2 * size))
            slot = self.slot_of[request.request_id] = self._free.pop()
            number = self._number(request.request_id)
            self.values[slot] = number, *_static(request, stats.slo_of.get(request.request_id)), 0.0
        return slot

    def _number(self, request_id: str) -> int:
        number_of = self._recorded()
        number = None if number_of is None else number_of(request_id)
        if number is not None:
            return number
        self._next += 1
        return self._next - 1 if number_of is None else _UNRECORDED + self._next - 1


def _static(request: Request, stated: StatedSLO | None) -> tuple[float, ...]:
    targets = None if stated is None else stated.slo.targets
    arrival_s = request.arrival_time

    def due_s(limit_s: float | None) -> float:
        return _NAN if limit_s is None else arrival_s + limit_s

    return (
        0.0 if stated is None else stated.class_id,
        arrival_s,
        _NAN if targets is None else due_s(targets.ttft_s),
        _NAN if targets is None else due_s(targets.e2e_s),
        _NAN if targets is None or targets.pace_s is None else targets.pace_s,
        request.num_prompt_tokens,
        math.inf if request.resumable else request.max_tokens,
    )
