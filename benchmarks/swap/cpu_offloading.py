"""vLLM's OffloadingConnector on the CPU engine: its own scheduler and manager, and a worker that copies at once.

vLLM's spec for host memory refuses a CPU engine. What is compared is what is stored, found again and computed twice,
all of which the scheduler's side decides; the copies' own time says nothing here. Each submitted copy is done when the
call returns, which flatters the connector: no block waits for a transfer.
"""

from collections import Counter
from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

MOVED: Counter[str] = Counter()
"""Bytes copied ``out`` to the host and back ``in``, by all workers of this process."""

EXTRA_CONFIG = {"spec_name": "ImmediateSpec", "spec_module_path": __name__}


class ImmediateSpec(CPUOffloadingSpec):
    """vLLM's spec and manager of host memory, whose size is ``cpu_bytes_to_use`` in the connector's extra config."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self.blocks_per_chunk != 1 or len(kv_caches.group_data_refs) != 1:
            raise ValueError("written for chunks of one block and one group of layers")
        return _Worker(kv_caches, self.num_chunks)


class _Worker(OffloadingWorker):
    def __init__(self, kv_caches: CanonicalKVCaches, num_chunks: int) -> None:
        self._device = [one.tensor for one in kv_caches.tensors]
        self._host = [torch.empty((num_chunks, *one.shape[1:]), dtype=one.dtype) for one in self._device]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._device, src_spec.block_ids, self._host, dst_spec.block_ids)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._host, src_spec.block_ids, self._device, dst_spec.block_ids)

    def _copy(self, job_id: int, src: list[Any], src_ids: Any, dst: list[Any], dst_ids: Any) -> bool:
        for one, other in zip(src, dst, strict=True):
            other[torch.from_numpy(dst_ids).long()] = one[torch.from_numpy(src_ids).long()]
        MOVED["out" if dst is self._host else "in"] += len(src_ids) * sum(one[0].nbytes for one in src)
        self._finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._finished = self._finished, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """All are done."""
