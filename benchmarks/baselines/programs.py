"""What a baseline knows of programs: an agent's task is a program, its calls come one after another or side by side.

The papers of this group number programs by an id that the client sends; here a program is a task of the request table.
A request that is no call of a task is a program of one call. What is remembered of programs is bounded: of more than
:data:`MOST_PROGRAMS` the program without news for the longest time is forgotten, as the request table forgets tasks.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sloserve.core.rows import Rows
from sloserve.core.tasks import MOST_TASKS

MOST_PROGRAMS: Final = MOST_TASKS
"""Programs that are remembered at a time."""

PROGRAM_COLUMNS: Final = frozenset({"task", "task_calls", "task_last", "arrival_s", "cached_tokens", "aborted"})
"""Columns that :class:`Programs` reads."""


@dataclass(slots=True, eq=False)
class Program:
    """One program.

    Args:
        key: Key of the program in :class:`Programs`.
        first_s: Arrival of its first call, in epoch seconds.
        calls: Calls that have arrived.
        in_flight: Calls that have arrived and not ended.
        tokens: Tokens of the prompt of its latest call, with those of its output once it has ended.
        ended_s: Time in epoch seconds at which its latest call ended; ``None`` while a call is in flight.
        served_s: Seconds of service that the policy counts for it.
        waited_s: Seconds for which its calls that have ended have waited, if the policy counts them.
    """

    key: int
    first_s: float
    calls: int = 0
    in_flight: int = 0
    tokens: int = 0
    ended_s: float | None = None
    served_s: float = 0.0
    waited_s: float = 0.0


class Programs:
    """All programs with a call in flight, and those whose next call is expected."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[int, Program] = OrderedDict()
        self.shared_tokens = 0
        """Tokens of a first prompt that the prefix cache had: those that programs share, as a system prompt."""

    def __iter__(self) -> Iterator[Program]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def by_key(self, key: int) -> Program | None:
        """Return the program of this key; ``None`` if it is not known."""
        return self._by_key.get(key)

    def of(self, rows: Rows, slot: int) -> Program:
        """Return the program of a request; a program that was forgotten begins anew."""
        key = _key(rows, slot)
        program = self._by_key.get(key)
        if program is None:
            program = self._by_key[key] = Program(key, float(rows.arrival_s[slot]))
            if len(self._by_key) > MOST_PROGRAMS:
                self._by_key.popitem(last=False)
        return program

    def arrived(self, rows: Rows, slot: int) -> Program:
        """Note a call that arrived, and return its program."""
        program = self.of(rows, slot)
        self._by_key.move_to_end(program.key)
        program.calls += 1
        program.in_flight += 1
        program.ended_s = None
        return program

    def finished(self, rows: Rows, slot: int, tokens: int, now_s: float) -> Program:
        """Note a call that ended, and return its program; the program is forgotten if no further call is expected.

        Args:
            rows: The request table.
            slot: Slot of the call.
            tokens: Tokens of its prompt and its output.
            now_s: The present time in epoch seconds.
        """
        program = self.of(rows, slot)
        self._by_key.move_to_end(program.key)
        if program.calls == 1:
            self.shared_tokens = int(rows.cached_tokens[slot])
        program.tokens = tokens
        program.in_flight = max(program.in_flight - 1, 0)
        if program.in_flight == 0:
            program.ended_s = now_s
            if is_over(rows, slot, program):
                self.forget(program)
        return program

    def forget(self, program: Program) -> None:
        """Forget a program of which no further call is expected."""
        self._by_key.pop(program.key, None)


def is_over(rows: Rows, slot: int, program: Program) -> bool:
    """Return whether no further call is expected after the call in ``slot``, as far as its client says."""
    stated = int(rows.task_calls[slot])
    is_last = bool(rows.task_last[slot]) or 0 < stated <= program.calls
    return is_last or int(rows.task[slot]) == 0 or bool(rows.aborted[slot])


def _key(rows: Rows, slot: int) -> int:
    """Return the task of a request, or a number below 0 that no other request has."""
    task = int(rows.task[slot])
    return task if task > 0 else -1 - int(rows.seq[slot])
