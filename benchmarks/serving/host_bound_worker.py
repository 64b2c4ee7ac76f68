"""A paced worker that launches prompts kernel by kernel, as vLLM does where no CUDA graph holds them."""

import time
from typing import Any

from sloserve.vllm_plugin.engine.step_load import step_load
from sloserve.vllm_plugin.paced_worker import PacedWorker

LAUNCH_S = 0.0125
"""What an H100's host took for a step of Llama 3 8B with prompts in it (``live_policies``), however many tokens."""
LAST_KERNEL_S = 0.0003


class HostBoundWorker(PacedWorker):
    """Its steps end when both are over: what the profile says, and the launch, which the engine waits for."""

    def execute_model(self, scheduler_output: Any) -> Any:
        began_s = self._clock.monotonic_s()
        result = super().execute_model(scheduler_output)
        if result is None and step_load(scheduler_output).prefill_tokens:
            time.sleep(max(began_s + LAUNCH_S - self._clock.monotonic_s(), 0.0))
            self._free_s = max(self._free_s, self._clock.monotonic_s() + LAST_KERNEL_S)
        return result
