"""The thread that advances batches, with a runner that the test plays."""

import threading
from unittest.mock import MagicMock

import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.gateway import batch_work
from sloserve.fleet.gateway.batch_work import BatchWork


@pytest.mark.parametrize("failing", ["tidy", "hold_to_quotas"])
def test_tidying_that_fails_holds_up_no_batch(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A file that could not be deleted ended each round before any batch had its step."""
    monkeypatch.setattr(batch_work, "IDLE_S", 0.0)
    stepped, runner = threading.Event(), MagicMock()
    runner.step.side_effect = stepped.set
    getattr(runner, failing).side_effect = PermissionError
    work = BatchWork(runner, ManualClock())
    work.start()
    try:
        assert stepped.wait(60.0)
    finally:
        work.stop()
    assert getattr(runner, failing).call_count == 1
