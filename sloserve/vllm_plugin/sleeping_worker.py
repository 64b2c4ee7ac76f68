"""vLLM's CPU worker with a sleep that gives memory back, like a GPU's sleep mode, for fleets on CPUs.

The CPU worker of vLLM accepts sleep and frees nothing. This one gives the pages of weights and KV cache back to the
operating system, and their addresses stay valid, as on a GPU: what reads them finds zeros. As there, level 1 wakes with
the weights that it had and with an empty KV cache. After level 2 the caller has to reload the weights; an engine that
serves without that fails at its next step, since kernels that packed weights for themselves are gone.

Give it to vLLM as ``--worker-cls sloserve.vllm_plugin.sleeping_worker.SleepingCPUWorker``.
"""

import ctypes
import mmap
from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

_LIBC = ctypes.CDLL(None, use_errno=True)
_DONTNEED = 4


class SleepingCPUWorker(CPUWorker):
    """A worker with the same calls as vLLM's GPU worker: ``sleep``, ``wake_up`` by tag, ``discard``."""

    level = 0
    """Level of the sleep that it is in; 0 while awake."""

    def sleep(self, level: int = 1) -> None:
        model = self.model_runner.get_model()
        self.level = level
        self._saved_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for storage in self.storages("weights"):
            _give_back(storage)
        for module in model.modules():
            module.__dict__.pop("cpu_linear", None)  # holds a packed copy of its layer's weights
        self.discard(("kv_cache",))

    def wake_up(self, tags: list[str] | None = None) -> None:
        if self.level == 0 or (tags is not None and "weights" not in tags):
            return  # the pages of the KV cache come back by themselves
        model = self.model_runner.get_model()
        for name, buffer in model.named_buffers():
            buffer.copy_(self._saved_buffers[name])
        if self.level == 1:
            self.model_runner.reload_weights()
        self.level = 0

    def discard(self, tags: tuple[str, ...]) -> None:
        for tag in tags:
            for storage in self.storages(tag):
                _give_back(storage)

    def storages(self, tag: str) -> list[torch.UntypedStorage]:
        """Return the memory of ``weights`` or ``kv_cache``, each piece once."""
        model, runner = self.model_runner.get_model(), self.model_runner
        tensors: list[Any] = [*model.parameters(), *model.buffers()] if tag == "weights" else list(runner.kv_caches)
        found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        return [storage for storage in found.values() if storage.nbytes()]

    def resident_bytes(self, tag: str) -> int:
        """Return how many bytes of ``weights`` or ``kv_cache`` are in memory, by pages that hold nothing else."""
        return sum(_resident_bytes(storage) for storage in self.storages(tag))


def _inner_pages(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return first address and size of the pages that hold nothing but ``storage``."""
    first = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    return first, max(end - first, 0)


def _give_back(storage: torch.UntypedStorage) -> None:
    ctypes.memset(storage.data_ptr(), 0, storage.nbytes())
    first, size = _inner_pages(storage)
    if size and _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise")


def _resident_bytes(storage: torch.UntypedStorage) -> int:
    first, size = _inner_pages(storage)
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    if size and _LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), pages):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
