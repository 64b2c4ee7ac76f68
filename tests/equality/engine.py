"""Real vLLM engines of the tiny model, on the CPU or a GPU, in this process: one for each configuration.

An engine costs seconds to start, a scheduler nothing, so the scheduler is exchanged from run to run. That is sound when
every request has ended and the model runner was told so: what is left is weights, and KV that no scheduler refers to.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.engine_process import restored_process
from tests.gpu import ON_A_GPU

BLOCK_TOKENS = 32
"""The CPU attention kernel takes multiples of 32."""

KV_BLOCKS = 16
"""Blocks a request can use: eight requests of the workloads below want 20 to 30, so that KV is scarce."""

MAX_NUM_SEQS = 8
MAX_MODEL_LEN = 256

ENGINE_WARNINGS = (
    # vLLM looks through torch's deprecated names when it registers its kernels.
    "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning",
    # torch's own use of torch.jit, and of the type of a numpy array it does not write to.
    "ignore:`torch.jit.script:DeprecationWarning",
    # xgrammar's notice on an argument that vLLM gives it.
    "ignore:max_rollback_tokens is deprecated:DeprecationWarning",
    # SWIG's generated types, imported by the tokenizers' dependencies.
    "ignore:builtin type Swig.* has no __module__ attribute:DeprecationWarning",
)


@dataclass(frozen=True)
class EngineConfig:
    """What cannot be exchanged in a running engine."""

    async_scheduling: bool
    prefix_caching: bool
    lora: bool = False
    host_blocks: int = 0
    """Of the host pool; 0: preempted requests are computed again."""
    beside_other: bool = False
    """Whether our connector shares a MultiConnector with another one."""

    def __str__(self) -> str:
        words = ["async" if self.async_scheduling else "sync", "cache" if self.prefix_caching else "nocache"]
        return "-".join(
            words + ["lora"] * self.lora + ["swap"] * bool(self.host_blocks) + ["beside-other"] * self.beside_other
        )


class Engine:
    """vLLM's own ``LLMEngine`` and what the tests need of its inside."""

    def __init__(self, config: EngineConfig, **engine_args: Any) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from sloserve.vllm_plugin import SLOScheduler
        from sloserve.vllm_plugin.server.tiny_model import resolve_model

        self.config = config
        arguments: dict[str, Any] = {
            "model": resolve_model("builtin:tiny"),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": MAX_MODEL_LEN,
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks_override": KV_BLOCKS + 1,  # vLLM keeps one for itself
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": 48,  # so that prompts are computed in chunks, between other requests' tokens
            "enable_prefix_caching": config.prefix_caching,
            "disable_log_stats": True,
            "scheduler_cls": SLOScheduler,  # its workers are set up for ours; which one schedules is each run's choice
            "enable_lora": config.lora,
            **({"max_loras": 2, "max_lora_rank": 8} if config.lora else {}),
            **(_swap(config.host_blocks, config.beside_other) if config.host_blocks else {}),
            **_on_a_gpu(config),
            **engine_args,
        }
        self.llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self.core: Any = self.llm.engine_core.engine_core
        self.core.structured_output_manager.executor.submit = Grammar
        stock = self.core.scheduler
        self._stock_class = _stock_class(stock, config.async_scheduling)
        self._settings = {
            "vllm_config": self.llm.vllm_config,
            "kv_cache_config": stock.kv_cache_config,
            "structured_output_manager": self.core.structured_output_manager,
            "block_size": stock.block_size,
            "hash_block_size": stock.hash_block_size,
            "log_stats": False,
        }

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def groups(self) -> Any:
        """vLLM's KV cache groups."""
        return self._settings["kv_cache_config"].kv_cache_groups

    def use_stock(self) -> None:
        """A fresh scheduler of the class that vLLM itself chose for this configuration."""
        self._exchange(self._stock_class, {})

    def use_sloserve(self, section: dict[str, Any], **test_doubles: Any) -> None:
        """A fresh SLOScheduler; ``section`` as in ``--additional-config``, test_doubles: clock and planning_costs."""
        from sloserve.vllm_plugin import SLOScheduler

        self._exchange(SLOScheduler, {"sloserve": section}, **test_doubles)

    def limit_blocks(self, blocks: int) -> None:
        """Schedulers from now on have so many KV blocks, of those that the engine was started with."""
        kv_cache_config = self._settings["kv_cache_config"]
        self.llm.vllm_config.cache_config.num_gpu_blocks = blocks
        # Of as many bytes as so many blocks have: what a block has follows from both.
        places = [
            replace(one, size=one.size // kv_cache_config.num_blocks * blocks)
            for one in kv_cache_config.kv_cache_tensors
        ]
        self._settings["kv_cache_config"] = replace(kv_cache_config, num_blocks=blocks, kv_cache_tensors=places)

    def _exchange(self, scheduler_class: Any, additional_config: dict[str, Any], **arguments: Any) -> None:
        assert self.idle(), "an earlier run on this engine failed and left its requests"
        self.llm.vllm_config.additional_config = additional_config
        self.core.scheduler = scheduler_class(**self._settings, **arguments)

    def idle(self) -> bool:
        """Whether nothing is queued, running or in flight, and the model runner has forgotten what has ended.

        (One in a process of its own is not asked: the scheduler has requests until it was told what has ended.)
        """
        executor = self.core.model_executor
        kept = _known_to(executor.driver_worker.worker.model_runner) if hasattr(executor, "driver_worker") else 0
        return not self.core.scheduler.has_requests() and not self.core.batch_queue and not kept

    def shutdown(self) -> None:
        self.llm.engine_core.shutdown()


def _known_to(model_runner: Any) -> int:
    """How many requests a V1 or V2 model runner holds."""
    states = getattr(model_runner, "req_states", None)
    return len(model_runner.requests if states is None else states.req_id_to_index)


def _on_a_gpu(config: EngineConfig) -> dict[str, Any]:
    """What an engine needs there: kernels that take float32, little memory, and its mode, which is ours to set."""
    if not ON_A_GPU:
        return {}
    if config.lora:
        pytest.skip("vLLM's kernels for adapters on a GPU take no float32")
    return {
        "attention_backend": "TRITON_ATTN",
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 2**30,  # given, it is not found out, which fails where engines start beside each other
        "async_scheduling": config.async_scheduling,
    }


class Grammar(Future[Any]):
    """A grammar that vLLM finds compiled when it asks the third time, whatever was compiled before, and however long
    it took.

    So a request waits for its grammar in every run, and equally long: steps do not depend on the tests that ran before.
    """

    def __init__(self, compile: Callable[..., Any], *args: Any) -> None:
        super().__init__()
        self._asked = 0
        try:
            self.set_result(compile(*args))
        except Exception as error:
            self.set_exception(error)

    def done(self) -> bool:
        self._asked += 1
        return self._asked > 2

    def result(self, timeout: float | None = None) -> Any:
        """0.30 asks for it with a timeout, where later versions ask whether it is done."""
        if timeout is not None and not self.done():
            raise TimeoutError
        return super().result(timeout=0.0)  # it is there from the start


BLOCK_BYTES = 2 * 2 * BLOCK_TOKENS * 64 * 4
"""Of a KV block of the tiny model: layers, heads, tokens, K and V of a head, bytes of a float."""


def _swap(host_blocks: int, beside_other: bool) -> dict[str, Any]:
    """Our connector."""
    from vllm.config import KVTransferConfig

    ours = {
        "kv_connector": "SwapConnector",
        "kv_connector_module_path": "sloserve.vllm_plugin.swap.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"swap_space_gib": host_blocks * BLOCK_BYTES / 2**30},
    }
    other = {
        "kv_connector": "OtherConnector",
        "kv_connector_module_path": "tests.equality.other_connector",
        "kv_role": "kv_both",
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [ours, other]},
    }
    return {"kv_transfer_config": KVTransferConfig(**(both if beside_other else ours))}


def _stock_class(scheduler: Any, async_scheduling: bool) -> Any:
    """The class of scheduler that vLLM chooses by itself."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    stock = AsyncScheduler if async_scheduling else Scheduler
    assert isinstance(scheduler, stock)
    return stock


@contextlib.contextmanager
def started(config: EngineConfig, **engine_args: Any) -> Iterator[Engine]:
    """An engine for the length of the block."""
    import torch

    # The sampler's top-k would be compiled, anew for each size of batch: minutes, where eager code takes milliseconds.
    with restored_process(), pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        # One thread: the model is tiny, and threads that wait for each other are slow beside other work.
        torch.set_num_threads(1)
        if config.async_scheduling and not ON_A_GPU:
            _run_two_deep(patch)
        engine = Engine(config, **engine_args)
        try:
            stages = engine.llm.vllm_config.parallel_config.pipeline_parallel_size
            assert (engine.core.batch_queue is not None) == (config.async_scheduling or stages > 1)
            yield engine
        finally:
            engine.shutdown()


def _run_two_deep(patch: pytest.MonkeyPatch) -> None:
    """Lets the CPU engine schedule asynchronously, as a GPU's does: step n+1 is scheduled before n's tokens are known.

    vLLM's CPU platform turns that off as of no use there, not as impossible: the model runner is the GPU's, and all it
    lacks are CUDA's streams and events. On a CPU all has happened when a call returns: doing nothing takes their place.
    """
    import torch
    from vllm.platforms.cpu import CpuPlatform

    class Instant:
        """A stream, or an event: nothing to wait for."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.record = self.synchronize = self.wait_stream = lambda *a: None

    stock = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    patch.setattr(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
    patch.setattr(torch.cuda, "Event", Instant)
    patch.setattr(torch.cuda, "Stream", Instant)
    patch.setattr(torch.cuda, "current_stream", Instant)
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
