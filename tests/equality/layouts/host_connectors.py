"""KV connectors of vLLM's that need a GPU or a service, with their own scheduler's half and a worker's half for a CPU.

The scheduler's half decides what is stored, loaded and pinned, and is what plans could disturb. The worker's half here
takes some steps for each copy, and checks that no block changes between the order to store it and the copy.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import scheduler as store_scheduler
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
    MooncakeLookupResult,
    MooncakeStoreWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

COPY_STEPS = 2
"""Steps that a copy takes."""

SEEN: Counter[str] = Counter()
"""What was done since it was cleared, by all connectors of this process."""

STORE: dict[bytes, dict[str, Any]] = {}
"""The blocks that the store of :class:`HostStoreConnector` holds: of each block's hash, its content by layer."""


@dataclass
class Copy:
    """One order to copy: the blocks of the KV cache, the place of each in the host's memory, and who waits for it."""

    blocks: list[int]
    keys: list[Any]
    name: Any
    steps: int = COPY_STEPS
    before: list[dict[str, Any]] = field(default_factory=list)


class Copier:
    """Copies blocks between the KV cache and a dictionary, some steps after it is told to."""

    def __init__(self, held: dict[Any, dict[str, Any]]) -> None:
        self._held = held
        self._caches: dict[str, Any] = {}
        self._stores: list[Copy] = []
        self._loads: list[Copy] = []

    def register(self, kv_caches: dict[str, Any]) -> None:
        self._caches = kv_caches

    def load(self, copy: Copy) -> None:
        self._loads.append(copy)
        SEEN["loads"] += 1

    def store(self, copy: Copy) -> None:
        copy.before = [self._content(block) for block in copy.blocks]
        self._stores.append(copy)
        SEEN["stores"] += 1

    def flush(self) -> None:
        """Make every copy end with the present step."""
        for copy in (*self._stores, *self._loads):
            copy.steps = 0
        SEEN["flushes"] += 1

    def step(self) -> tuple[list[Any], list[Any]]:
        """Count one step, and return the names of the stores and of the loads that end with it."""
        return self._ended("_stores"), self._ended("_loads")

    def _ended(self, kind: str) -> list[Any]:
        copies: list[Copy] = getattr(self, kind)
        for copy in copies:
            copy.steps -= 1
        setattr(self, kind, [copy for copy in copies if copy.steps > 0])
        ended = [copy for copy in copies if copy.steps <= 0]
        for copy in ended:
            for place, (block, key) in enumerate(zip(copy.blocks, copy.keys, strict=True)):
                if kind == "_loads":
                    for layer, content in self._held[key].items():
                        self._caches[layer][block] = content
                else:
                    _check_unchanged(copy.before[place], self._content(block))
                    self._held[key] = copy.before[place]
        return [copy.name for copy in ended]

    def _content(self, block: int) -> dict[str, Any]:
        return {layer: cache[block].clone() for layer, cache in self._caches.items()}


def _check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    for layer, content in before.items():
        assert bool((content == now[layer]).all()), "a block changed while it was being stored"


class HostOffloadConnector(SimpleCPUOffloadConnector):
    """vLLM's SimpleCPUOffloadConnector, whose own worker copies with CUDA streams."""

    sloserve_pauses = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self.worker_handler is not None:
            self.worker_handler = _OffloadWorker()  # type: ignore[assignment]


class _OffloadWorker:
    num_cpu_blocks = 0
    """What vLLM 0.33 asks for, to give several workers pools of one size; 0 leaves it to the scheduler's half."""

    def __init__(self) -> None:
        self._copier = Copier({})
        self._orders: Any = None
        self._stored: dict[int, int] = {}
        self.register_kv_caches = self._copier.register

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._orders = metadata

    def clear_connector_metadata(self) -> None:
        self._orders = None

    def handle_preemptions(self, metadata: Any) -> None:
        if metadata.need_flush:
            self._copier.flush()

    def start_load_kv(self) -> None:
        orders = self._orders
        if orders.load_cpu_blocks:
            self._copier.load(Copy(orders.load_gpu_blocks, orders.load_cpu_blocks, orders.load_event))

    def wait_for_save(self) -> None:
        orders = self._orders
        if orders.store_gpu_blocks:
            self._copier.store(Copy(orders.store_gpu_blocks, orders.store_cpu_blocks, orders.store_event))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str]]:
        stored, loaded = self._copier.step()
        self._stored = dict.fromkeys(stored, 1)
        return None, {name for event in loaded for name in self._orders.load_event_to_reqs.get(event, ())}

    def build_connector_worker_meta(self) -> SimpleCPUOffloadWorkerMetadata | None:
        stored, self._stored = self._stored, {}
        return SimpleCPUOffloadWorkerMetadata(stored) if stored else None


class HostStoreConnector(MooncakeStoreConnector):
    """vLLM's MooncakeStoreConnector, with a dictionary in the place of the store. For one group of full attention."""

    sloserve_pauses = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role == KVConnectorRole.SCHEDULER:
            with patch.object(store_scheduler, "LookupKeyClient", _Lookups):
                super().__init__(vllm_config, role, kv_cache_config)
            return
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        self.connector_scheduler = None
        self.connector_worker = _StoreWorker(vllm_config.cache_config.block_size)  # type: ignore[assignment]


class _Lookups:
    """Answers for how many tokens the store has KV; for a request that asks for the first time, a step later."""

    def __init__(self, vllm_config: Any) -> None:
        self._block_tokens = int(vllm_config.cache_config.block_size)
        self._asked: set[str] = set()

    def lookup(
        self, req_id: str, num_tokens: int, block_hashes: list[bytes], non_block: bool = False
    ) -> MooncakeLookupResult | None:
        if non_block and req_id not in self._asked:
            self._asked.add(req_id)
            return None
        self._asked.discard(req_id)
        most = min((num_tokens - 1) // self._block_tokens, len(block_hashes))
        found = next((place for place in range(most) if block_hashes[place] not in STORE), most)
        return MooncakeLookupResult(found * self._block_tokens)

    def discard(self, req_id: str) -> None:
        self._asked.discard(req_id)

    def reset(self) -> bool:
        STORE.clear()
        return True


class _StoreWorker:
    kv_send_thread = None
    enable_kv_events = False

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._copier = Copier(STORE)
        self._stored: dict[int, int] = {}
        self.register_kv_caches = self._copier.register

    def start_load_kv(self, orders: Any) -> None:
        for order in orders.requests:
            if order.load_spec is not None and order.load_spec.can_load:
                first, end = order.load_spec.vllm_cached_tokens, order.load_spec.kvpool_cached_tokens
                wanted = slice(first // self._block_tokens, end // self._block_tokens)
                self._copier.load(Copy(order.block_ids[0][wanted], order.block_hashes[wanted], order.req_id))

    def wait_for_save(self, orders: Any) -> None:
        for order in orders.requests:
            if order.can_save:
                whole = slice(order.token_len_chunk // self._block_tokens)
                self._copier.store(Copy(order.block_ids[0][whole], order.block_hashes[whole], order.store_job_id))

    def get_finished(self, finished_req_ids: set[str], orders: Any) -> tuple[set[str], set[str]]:
        stored, loaded = self._copier.step()
        self._stored |= dict.fromkeys(stored, 1)
        return set(), set(loaded)

    def get_transfer_results(self, finished_req_ids: set[str], orders: Any) -> KVConnectorTransferResults:
        return KVConnectorTransferResults(*self.get_finished(finished_req_ids, orders))

    def build_connector_worker_meta(self) -> MooncakeStoreWorkerMetadata | None:
        stored, self._stored = self._stored, {}
        return MooncakeStoreWorkerMetadata(stored) if stored else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    def get_mem_pool_context(self) -> None:
        return None

    def get_kv_connector_stats(self) -> None:
        return None

    def close(self) -> None: ...
