"""Marks of the requests that a plan may preempt or pause: two columns of the request table."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows, State
from sloserve.engine.adapters_in_use import AdaptersInUse
from sloserve.engine.port import EngineRequest, RequestReader
from sloserve.scheduler.policy import NO_SLOTS


class PreemptionMarks:
    """The columns ``preemptable`` and ``pausable`` of the requests with a row, and the reasons for their values.

    A plan may touch a request unless the engine cannot skip it, it is protected, or its LoRA adapter is needed. The
    reasons are kept apart: where one ends, another still holds.

    Args:
        rows: Rows of the requests.
        reader: Reads the engine's requests.
        request_at: The request in each slot, ``None`` in a free one.
    """

    def __init__(self, rows: Rows, reader: RequestReader, request_at: list[Any]) -> None:
        self._rows, self._reader, self._request_at = rows, reader, request_at
        self._adapters = AdaptersInUse()
        self._protected: set[int] = set()
        self._loras_short = False

    def arrived(self, request: EngineRequest) -> None:
        """Count the adapter of a request, which may get no row."""
        self._adapters.add(request.request_id, self._reader.lora_id(request))

    def dropped(self, request_id: str, slot: int | None) -> None:
        """Forget a request with its slot; ``None`` for a request without a row."""
        self._adapters.drop(request_id)
        if slot is not None:
            self._protected.discard(slot)

    def mark(self, slot: int) -> None:
        """Set whether a plan may preempt or pause the request in ``slot``."""
        held = slot in self._protected or (self._loras_short and self.lora_of(slot) is not None)
        may_be_skipped = not held and self._reader.may_be_skipped(self._request_at[slot])
        self._rows.preemptable[slot] = self._rows.pausable[slot] = may_be_skipped

    def protect(self, slots: IntArray) -> None:
        """Forbid all further plans to preempt or pause these requests."""
        self._protected.update(slots.tolist())
        self._rows.preemptable[slots] = self._rows.pausable[slots] = False

    @property
    def has_protected(self) -> bool:
        return bool(self._protected)

    def protected_running(self) -> IntArray:
        """Return the slots of the protected requests that run, oldest first."""
        if not self._protected:
            return NO_SLOTS
        slots = np.array(list(self._protected), np.int64)
        slots = slots[self._rows.state[slots] == int(State.RUNNING)]
        oldest_first: IntArray = slots[np.argsort(self._rows.seq[slots])]
        return oldest_first

    def guard_loras(self, max_loras: int | None, slots: Iterable[int]) -> None:
        """Forbid preempting or pausing requests with a LoRA adapter while more adapters are in use than fit.

        Call it at each step. An adapter is in use if a waiting or running request or a session names it. vLLM counts a
        running request's adapter only when it schedules the request. Another adapter could therefore take the place of
        a paused request's, both would run in the next step, and the engine would crash. vLLM may also skip a preempted
        request.

        Args:
            max_loras: Most adapters that a step may use; ``None`` without adapters.
            slots: Slots of all requests with a row.
        """
        short = max_loras is not None and len(self._adapters) > max_loras
        if short != self._loras_short:
            self._loras_short = short
            for slot in slots:
                self.mark(slot)

    @property
    def is_short_of_loras(self) -> bool:
        """Whether more LoRA adapters are in use than fit, by the last :meth:`guard_loras`."""
        return self._loras_short

    def lora_of(self, slot: int) -> int | None:
        """Return the LoRA adapter of the request in ``slot``; ``None`` for the model itself."""
        return self._adapters.of(self._request_at[slot].request_id)
