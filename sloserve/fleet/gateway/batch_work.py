"""The thread of a gateway that advances batches, and deletes what has expired."""

import threading
from typing import Final

from sloserve.core.clock import Clock
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.supervised import Faults

IDLE_S: Final = 0.5
"""Pause in seconds between two looks at batches if none of them moved."""
AWAY_S: Final = 2.0
"""Pause in seconds if the store failed: results are written again from their begin, on a disk that may be full."""
TIDY_S: Final = 60.0
QUOTA_S: Final = 10.0
"""Seconds between two looks at the bytes that tenants keep."""


class BatchWork:
    """Runs the steps of a runner, one after another, until it is stopped."""

    def __init__(self, runner: BatchRunner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._faults = Faults("batches make no progress")
        self._tidied_s = self._held_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sloserve-batch-work", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return once the current step is done; a step may be broken off anywhere, and is then done again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def turn(self) -> float:
        """Run one step, and what is due besides; return the seconds until the next one."""
        moved = False
        with self._faults:
            # The time is noted first: tidying that fails ends this turn, and not each turn after it.
            if (now_s := self._clock.monotonic_s()) - self._tidied_s >= TIDY_S:
                self._tidied_s = now_s
                self._runner.tidy()
            if (now_s := self._clock.monotonic_s()) - self._held_s >= QUOTA_S:
                self._held_s = now_s
                self._runner.hold_to_quotas()
            moved = self._runner.step()
        if moved:
            return 0.0
        return AWAY_S if self._faults.is_away else self._faults.pause_s(IDLE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = self.turn()
            if pause_s:
                self._stopping.wait(pause_s)
