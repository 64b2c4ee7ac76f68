"""Counts of the running rows, followed from what each step schedules and brings, instead of read from all requests.

A request's counts lie in a Python object of its own: to read the counts of a thousand requests costs more than to plan
for them. Nearly every step adds the same to all: one token computed and in flight for each that decodes, and one token
of output when its results are in. Where a step may have done anything else, all rows are read again.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sloserve.core.arrays import IntArray
from sloserve.core.kernels import StepCounts as Followed
from sloserve.core.rows import READ_COLUMNS, Rows, State
from sloserve.engine.port import RequestReader

CHECK_VARIABLE: Final = "SLOSERVE_CHECK_COUNTS"
"""Variable of the environment that, if set, has counts read as well as followed; both must be equal."""
CHECKS: Final = bool(os.environ.get(CHECK_VARIABLE))


class CountsDiffer(BaseException):
    """What was followed is not what a request says: a fault of this module. No containment of exceptions hides it."""


class StepCounts:
    """Keeps ``computed_tokens``, ``in_flight_tokens`` and ``output_tokens`` of running rows, as far as they are kept.

    Knows what follows from a step if all running requests are in it, and each but a few prompts has one token.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows, self._followed = rows, Followed(int(State.RUNNING))
        self.keep()

    def keep(self) -> None:
        """Take note of a change of the columns that are kept."""
        kept = self._rows.kept & READ_COLUMNS
        self._by_schedule = [name for name in ("computed_tokens", "in_flight_tokens") if name in kept]
        self._in_flight = self._by_schedule[-1:] if "in_flight_tokens" in kept else []
        self._output = ["output_tokens"] if "output_tokens" in kept else []
        self.lost()

    def lost(self) -> None:
        """Record that counts change by something that is not reported here.

        All counts are read until a step is reported again.
        """
        self._followed.lost()

    def left(self, request_id: str, slot: int | None) -> None:
        """Record that a request has lost its KV, or its row too, and then has no ``slot``.

        A step in flight may bring it a token or not.
        """
        self._followed.left(request_id, -1 if slot is None else slot)

    def scheduled(self, step: Any, tokens_of: dict[str, int], total: int, prompts: dict[str, int]) -> None:
        """Record that a step was scheduled; the rows have the states after it.

        Args:
            step: The step.
            tokens_of: Tokens that it computes of each request, by id.
            total: Sum of these tokens.
            prompts: Slots of all running requests that did not decode before it, by id; not all need be in it.
        """
        rows = self._rows
        self._followed.scheduled(
            step,
            tokens_of=tokens_of,
            total=total,
            prompts=prompts,
            state=rows.state,
            seq=rows.seq,
            grow=self._columns(self._by_schedule),
        )

    def produced(self, step: Any, sampled: list[list[int]], index_of: dict[str, int]) -> None:
        """Take in the results of a step.

        Args:
            step: The step.
            sampled: New tokens of each of its requests, none for a request with a prompt that is not computed yet.
            index_of: Index of each request in ``sampled``, by id.
        """
        rows = self._rows
        self._followed.produced(
            step,
            sampled=sampled,
            index_of=index_of,
            state=rows.state,
            seq=rows.seq,
            shrink=self._columns(self._in_flight),
            grow=self._columns(self._output),
        )

    def to_read(self, running: IntArray) -> IntArray:
        """Return the slots of ``running`` that must be read now; afterwards all are known.

        Args:
            running: Slots of all running requests.
        """
        slots = self._followed.to_read(self._rows.state)
        return running if slots is None else slots

    def _columns(self, names: Sequence[str]) -> list[IntArray]:
        return [getattr(self._rows, name) for name in names]


def check_columns(
    reader: RequestReader, request_at: list[Any], slots: IntArray, columns: Mapping[str, IntArray]
) -> None:
    """Raise CountsDiffer if the columns do not hold what the requests say.

    Args:
        reader: Reads the engine's requests.
        request_at: Request in each slot.
        slots: Slots of the requests to check.
        columns: Columns, by name.
    """
    said = {name: column.copy() for name, column in columns.items()}
    reader.read(request_at, slots, said)
    for name, column in columns.items():
        differ = slots[column[slots] != said[name][slots]]
        if differ.size:
            where = f"{name} of {[request_at[slot].request_id for slot in differ.tolist()]}"
            raise CountsDiffer(f"{where}: {column[differ].tolist()} counted, {said[name][differ].tolist()} read")
