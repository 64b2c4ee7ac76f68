"""``PacedWorker``: an engine worker that waits as long as a GPU would compute, and computes nothing.

With it real API servers, schedulers and sockets run at a GPU's pace on a machine without one: a fleet of several
engines on two CPU cores. Step times and the size of the KV cache are those of the profile that the settings name; every
token is the same one, so that replies are as long as ``max_tokens``.

    vllm serve MODEL --worker-cls benchmarks.paced_worker.PacedWorker \\
        --additional-config '{"sloserve": {"profile": "h100-llama3-8b"}}'

MODEL gives tokenizer and context; its weights are not read. A step begins when it is launched or when the one before
ends, whichever is later, and its result is there at its end. Steps are two deep, as on a GPU by default, whatever
vLLM's CPU platform would have; with ``SyncPacedWorker`` one follows the other, as with ``--no-async-scheduling``. A
sleep, a wake and a reload of weights take the profile's time, too.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.settings import plugin_settings
from sloserve.scheduler.virtual_queues.model_swap import model_swap
from sloserve.vllm_plugin.engine.step_load import step_load

TOKEN: Final = 65
"""What every request gets. A printable character with ``builtin:tiny``."""

_LAYER: Final = "paced.0"


class PacedWorker(WorkerBase):
    """One worker of one engine, with neither tensor nor pipeline parallelism: the profile is of all ranks together.

    Raises: ConfigError where the settings name no profile, or KV is to be transferred, which there is none of.
    """

    is_async = True

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("shared_worker_lock", None)
        super().__init__(vllm_config, *args, **kwargs)
        settings = plugin_settings(vllm_config.additional_config)
        if settings.profile is None:
            raise ConfigError(
                "PacedWorker takes its step times from a profile, and the settings name none; give "
                """--additional-config '{"sloserve": {"profile": "h100-llama3-8b"}}', or """
                "profile: NAME in the file of --slo-config"
            )
        if self.parallel_config.world_size > 1:
            raise ConfigError(
                "PacedWorker runs as one worker; leave out --tensor-parallel-size: a profile covers all its GPUs"
            )
        if vllm_config.kv_transfer_config is not None:
            raise ConfigError("PacedWorker has no KV to transfer; leave --kv-transfer-config and --swap-space-gib out")
        # Before the engine asks: it makes its scheduler and its queue of batches after its worker.
        vllm_config.scheduler_config.async_scheduling = self.is_async
        self._profile = load_profile(settings.profile)
        self._clock = SystemClock()
        self._free_s = self._clock.monotonic_s()
        self._tokens: dict[str, int] = {}  # of each request: prompt and reply so far
        self._step: Any = None
        self._level = 0  # of its sleep

    # What an engine needs at its start.

    def init_device(self) -> None:
        self.device = torch.device("cpu")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There is none."""

    def get_kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        size = self.cache_config.block_size
        return {_LAYER: FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float16)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return [layout.name for layout in get_supported_kv_cache_layouts([])]

    def determine_available_memory(self) -> int:
        # One block more than the profile has: vLLM keeps one for itself.
        (spec,) = self.get_kv_cache_spec().values()
        blocks: int = self._profile.kv_capacity_tokens // spec.block_size + 1
        return blocks * int(spec.page_size_bytes)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """No memory is taken."""

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(0.0, 0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_encoder_timing_stats(self) -> dict[str, Any]:
        return {}

    def execute_dummy_batch(self) -> None:
        """Nothing to keep in step with."""

    def take_draft_token_ids(self) -> None:
        return None

    def reset_encoder_cache(self) -> None:
        """There is none; an engine that goes to sleep has it emptied."""

    def synchronize_device(self) -> None:
        """There is none."""

    def discard(self, tags: tuple[str, ...]) -> None:
        """Nothing is held."""

    def shutdown(self) -> None:
        """Nothing is held."""

    # A swap of models takes its time, too: the profile's, or what is assumed for it.

    def sleep(self, level: int = 1) -> None:
        self._level = level
        time.sleep(model_swap(self._profile).sleep_s)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """After level 2 the weights are to be reloaded, and that takes the time."""
        if tags is None or "weights" in tags:
            if self._level == 1:
                time.sleep(model_swap(self._profile).wake_s)
            self._level = 0

    def reload_weights(self, **_: Any) -> None:
        """From disk: its own after a sleep at level 2, or another model's in place of its own."""
        time.sleep(model_swap(self._profile).reload_s)

    def reset_weights(self) -> None:
        """There are none."""

    # A step.

    def execute_model(self, scheduler_output: Any) -> ModelRunnerOutput | None:
        for request_id in scheduler_output.finished_req_ids:
            self._tokens.pop(request_id, None)
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._step = scheduler_output
        launched_s = max(self._clock.monotonic_s(), self._free_s)
        self._free_s = launched_s + self._profile.step_s(step_load(scheduler_output))
        return None  # and sample_tokens comes next

    def sample_tokens(self, grammar_output: Any) -> "_Later | ModelRunnerOutput":
        output, self._step = self._step, None
        later = _Later(self._result(output), self.wait_until, self._free_s)
        return later if self.is_async else later.get_output()

    def wait_until(self, end_s: float) -> None:
        """Returns at ``end_s``, seconds of the monotonic clock."""
        time.sleep(max(end_s - self._clock.monotonic_s(), 0.0))

    def _result(self, output: Any) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for new in output.scheduled_new_reqs:
            self._tokens[new.req_id] = len(getattr(new, "prefill_token_ids", None) or new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for request_id in cached.resumed_req_ids & cached.all_token_ids.keys():
            # What was in flight at its preemption may have been dropped.
            self._tokens[request_id] = len(cached.all_token_ids[request_id])
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled: list[list[int]] = []
        for request_id in ids:
            done = computed[request_id] + output.num_scheduled_tokens[request_id] >= self._tokens[request_id]
            self._tokens[request_id] += done
            sampled.append([TOKEN] if done else [])
        index = {request_id: i for i, request_id in enumerate(ids)}
        return ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)


class SyncPacedWorker(PacedWorker):
    """Computes nothing ahead: a step is scheduled when the result of the one before is there."""

    is_async = False


class _Later(AsyncModelRunnerOutput):
    """A result that is there at ``end_s``, seconds of the monotonic clock."""

    def __init__(self, result: ModelRunnerOutput, wait_until: Callable[[float], None], end_s: float) -> None:
        self._result, self._wait_until, self._end_s = result, wait_until, end_s

    def get_output(self) -> ModelRunnerOutput:
        self._wait_until(self._end_s)
        return self._result

    def get_kv_connector_output(self) -> None:
        """Return what a KV connector did in the step: nothing, since there is none. vLLM asks since 0.33."""
