"""A paced worker in virtual time whose host takes a while to launch a step with prompts."""

from typing import Any

from benchmarks.paced_worker import PacedWorker
from sloserve.vllm_plugin.engine.step_load import step_load

LAUNCH_S = 0.027


class Time:
    """Seconds that pass when someone says so."""

    now = 0.0

    def now_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now


TIME = Time()


class LaunchedWorker(PacedWorker):
    """A step is over when it was launched, and computed for as long as the profile says after the one before it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock, self._free_s = TIME, TIME.now

    def execute_model(self, scheduler_output: Any) -> Any:
        result = super().execute_model(scheduler_output)
        if result is None and step_load(scheduler_output).prefill_tokens:
            TIME.now += LAUNCH_S
            self._free_s = max(self._free_s, TIME.now)
        return result

    def wait_until(self, end_s: float) -> None:
        TIME.now = max(TIME.now, end_s)
