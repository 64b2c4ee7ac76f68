"""Loops that must not end: a fault in a round is logged, and the next round is tried."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, NoReturn

from sloserve.core.errors import StoreError

logger = logging.getLogger(__name__)

MOST_PAUSE_S: Final = 4.0
"""Longest pause in seconds after faults: the others forget a member of a fleet that is silent for longer."""


class Faults:
    """Counts and logs faults in the rounds of one loop, in a thread or a task.

    A block ``with faults:`` around a round lets no Exception out. A store that is away is logged when it goes, and when
    it is back. Anything else is an internal fault: it is logged with its traceback once for each place that raises it,
    and then in a line at its second, fourth, eighth time.

    Args:
        what: The work that is not done when a round fails, as the begin of a sentence: "no plan is made".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._of_kind: Counter[tuple[type[Exception], str, int]] = Counter()
        self._in_a_row = 0
        self.is_away = False
        """Whether the last round ended because the store is away."""

    @property
    def count(self) -> int:
        """The number of internal faults up to now."""
        return self._of_kind.total()

    def pause_s(self, every_s: float) -> float:
        """Return the seconds until the next round: ``every_s``, doubled with each further internal fault in a row.

        A store that is away is tried as often as ever, so that all members are there as soon as it is back.
        """
        doubled = every_s * 2.0 ** min(max(self._in_a_row - 1, 0), 32)
        return min(doubled, max(every_s, MOST_PAUSE_S))

    def __enter__(self) -> None:
        """Begin a round."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        was_away, self.is_away = self.is_away, isinstance(error, StoreError)
        if isinstance(error, Exception) and not self.is_away:
            self._fault(error)
            return True
        self._in_a_row = 0
        if self.is_away:
            if not was_away:
                logger.warning("%s, since the store fails: %s", self._what, error)
            return True
        if was_away and error is None:
            logger.info("the store can be reached again; before, %s", self._what)
        return False

    def _fault(self, error: Exception) -> None:
        self._in_a_row += 1
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = ("", 0) if place is None else (place.tb_frame.f_code.co_filename, place.tb_lineno)
        kind = type(error), *where
        self._of_kind[kind] += 1
        times = self._of_kind[kind]
        if times & (times - 1) == 0:
            traceback = error if times == 1 else None
            logger.error(
                "%s, because of a fault that occurred %d times: %r", self._what, times, error, exc_info=traceback
            )


async def supervised(
    what: str, turn: Callable[[], Awaitable[object]], every_s: float, *, first_s: float = 0.0
) -> NoReturn:
    """Run ``turn`` again and again, with ``every_s`` seconds after each, until cancelled.

    Args:
        what: The work that is not done when a round fails; see :class:`Faults`.
        turn: One round.
        every_s: Seconds between rounds.
        first_s: Seconds until the first round.
    """
    faults = Faults(what)
    await asyncio.sleep(first_s)
    while True:
        with faults:
            await turn()
        await asyncio.sleep(faults.pause_s(every_s))
