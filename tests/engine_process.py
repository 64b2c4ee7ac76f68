"""What an engine of vLLM changes in its process, which is undone when the engine ends or does not start.

An engine that ends takes most of it back; one that fails while it starts takes back nothing. The connector of its KV
cache then serves the next engine of the process, which finds one there and makes none of its own.
"""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from unittest import mock

_modules_frozen = 0
"""How many modules were imported when objects were last left out of collections of garbage."""


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Restore the environment, PyTorch's settings and vLLM's global state at the end of the block, however it ends.

    Start the engine inside of the block and shut it down there.
    """
    import torch

    set_threads, threads = torch.set_num_threads, torch.get_num_threads()  # vLLM replaces the function
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    with _cheap_collections(), mock.patch.dict(os.environ), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            _forget_engine()
            torch.set_num_threads = set_threads
            set_threads(threads)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic)
            torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def _cheap_collections() -> Iterator[None]:
    """Leave what is imported out of collections of garbage, of which an engine makes seven, for half a second each.

    An engine also leaves its own objects out, and takes all in again when it ends: neither happens here.
    """
    global _modules_frozen
    with mock.patch.object(gc, "freeze"), mock.patch.object(gc, "unfreeze"):
        yield
    if len(sys.modules) != _modules_frozen:
        gc.collect()  # the engine, which has ended
        gc.freeze()
        atexit.register(gc.unfreeze)  # nanobind's modules complain of what is left
        _modules_frozen = len(sys.modules)


def _forget_engine() -> None:
    """Take back what vLLM keeps in its modules; nothing is left of an engine that has ended by itself."""
    from vllm import envs
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    destroy_model_parallel()
    destroy_distributed_environment()
    envs.disable_envs_cache()
