"""The thread of a gateway that brings batches on, and deletes what has had its time."""

import logging
import threading
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import StoreError
from sloserve.fleet.batch_api.runner import BatchRunner

logger = logging.getLogger(__name__)

IDLE_S: Final = 0.5
"""Pause between two looks at batches none of which moved."""
AWAY_S: Final = 2.0
"""The same where the store failed: results are written from their begin again, on a disk that may be full."""
TIDY_S: Final = 60.0
QUOTA_S: Final = 10.0
"""Between two looks at the bytes that tenants keep, and longer where these would take more of the time than _SHARE."""
_SHARE: Final = 0.05


class BatchWork:
    """Steps of a runner, one after another, until it is stopped."""

    def __init__(self, runner: BatchRunner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sloserve-batch-work", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once the step at hand is done; it may be broken off anywhere, and is then done again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        away, tidied_s, quotas_due_s = False, float("-inf"), float("-inf")
        while not self._stopping.is_set():
            try:
                if tidied_s == float("-inf"):
                    self._runner.store.requests.forget_ended()
                if self._clock.monotonic_s() - tidied_s >= TIDY_S:
                    self._runner.tidy()
                    tidied_s = self._clock.monotonic_s()
                if (began_s := self._clock.monotonic_s()) >= quotas_due_s:
                    self._runner.hold_to_quotas()
                    took_s = self._clock.monotonic_s() - began_s
                    quotas_due_s = began_s + max(QUOTA_S, took_s / _SHARE)
                moved, away = self._runner.step(), False
            except StoreError as error:
                if not away:
                    logger.warning("batches wait for the store: %s", error)
                moved, away = False, True
            except Exception:  # what is wrong with one look may be right at the next
                logger.exception("work on batches failed; it is tried again")
                moved = False
            if not moved:
                self._stopping.wait(AWAY_S if away else IDLE_S)
