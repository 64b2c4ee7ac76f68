"""A paced worker that launches steps with prompts by parts, as vLLM does: graph by graph, or kernel by kernel."""

import time
from typing import Any

from benchmarks.paced_worker import PacedWorker
from sloserve.vllm_plugin.engine.step_load import step_load

GRAPH_TOKENS = 512
"""Tokens of the largest step that vLLM captures by default."""
LAUNCH_S, LONG_LAUNCH_S = 0.008, 0.027
"""What an H100's host took for a step of Llama 3 8B with prompts in it, up to so many tokens and beyond, vLLM's default
compilation (``live_policies``).
"""
LAST_KERNEL_S = 0.0003


class HostBoundWorker(PacedWorker):
    """Its steps end when both are over: what the profile says, and the launch, which the engine waits for."""

    def execute_model(self, scheduler_output: Any) -> Any:
        began_s = self._clock.monotonic_s()
        result = super().execute_model(scheduler_output)
        load = step_load(scheduler_output)
        if result is None and load.prefill_tokens:
            launch_s = LAUNCH_S if load.tokens <= GRAPH_TOKENS else LONG_LAUNCH_S
            time.sleep(max(began_s + launch_s - self._clock.monotonic_s(), 0.0))
            self._free_s = max(self._free_s, self._clock.monotonic_s() + LAST_KERNEL_S)
        return result
