"""``SwapConnector``: vLLM's KV connector that keeps the KV of preempted requests in host memory.

The scheduler's half wires vLLM's calls to a :class:`~sloserve.engine.swap.store.SwapStore` and collects orders for the
next step. The worker's half passes them to a :class:`~sloserve.vllm_plugin.swap.worker.SwapWorker`. It needs
``SLOScheduler``, which reports when a request is about to be preempted; with another scheduler it keeps nothing.

vLLM catches nothing that a connector raises. So only the constructor and :meth:`SwapConnector.register_kv_caches`, at
the start, raise anything of ours, and each other method that vLLM calls consists of contained calls: KV that fails to
be swapped is computed again. (Stores are contained one by one, since the worker has to know which of them failed.)
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.request import Request

from sloserve.core.kernels.kv_copy import Region, block_bytes
from sloserve.engine.containment import Containment
from sloserve.engine.swap.host.copier import Copier, CpuCopier
from sloserve.engine.swap.host.host_pool import HostPool
from sloserve.engine.swap.host.regions import PoolSize, regions_of
from sloserve.engine.swap.store import SwapStore
from sloserve.vllm_plugin.kv_groups import swapped_groups
from sloserve.vllm_plugin.swap.cuda_start import gpu_copier, gpu_pool
from sloserve.vllm_plugin.swap.messages import Copy, SwapOrders, SwapReport
from sloserve.vllm_plugin.swap.refusals import check_supported
from sloserve.vllm_plugin.swap.worker import Loads, SwapWorker

logger = logging.getLogger(__name__)

DRAIN_S: Final = 5.0
"""Longest wait for copies at shutdown."""

NULL_BLOCK: Final = 0
"""The block that vLLM puts into a block table in place of one that it has given back."""


class SwapConnector(KVConnectorBase_V1, SupportsHMA):
    """The ``kv_connector`` of ``--kv-transfer-config``; ``--swap-space-gib`` of ``sloserve serve`` sets it.

    Attributes:
        store: The KV that is kept, on the scheduler's side.
        size: Size of each rank's pool.

    Raises: ConfigError for a model or configuration with which KV cannot be swapped, and a pool that holds nothing.
    """

    store: SwapStore

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_supported(vllm_config, kv_cache_config)
        self.size = PoolSize.of(vllm_config, kv_cache_config)
        self._worker: SwapWorker | None = None
        self._pool: HostPool | None = None
        self.contained = Containment(Counter(), "sloserve failed to swap; the KV is computed again")
        if role == KVConnectorRole.SCHEDULER:
            self.use(SwapStore(self.size.blocks, swapped_groups(kv_cache_config.kv_cache_groups)))
            self._orders = SwapOrders()
            self._warned_alone = False
            self.asked_blocks = 0
            """Blocks of the load that vLLM was last allowed to begin."""
            self._on_load: Callable[[Request, int], object] | None = None
            self._on_report: Callable[[SwapReport], object] | None = None
            self._are_copying: Callable[[], bool] | None = None
            self._awaited: Callable[[], float] = lambda: math.inf

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is not kept is computed again

    # Scheduler's half, called by SLOScheduler.

    def use(self, store: SwapStore) -> None:
        """Keep KV in ``store``; call this only before the first request."""
        self.store = store
        self.contained = Containment(store.counters, "sloserve failed to swap; the KV is computed again")

    def attach(
        self,
        on_load: Callable[[Request, int], object],
        on_report: Callable[[SwapReport], object],
        are_copying: Callable[[], bool],
        awaited: Callable[[], float],
    ) -> None:
        """Set the scheduler's callbacks.

        Args:
            on_load: Called for each request with a load that begins, with the number of its blocks.
            on_report: Called with the workers' reports.
            are_copying: Returns whether copies run that will soon end.
            awaited: Called once for each step, when it has its blocks: returns ``SwapOrders.awaited``.
        """
        self._on_load, self._on_report, self._are_copying, self._awaited = on_load, on_report, are_copying, awaited

    def update_state_before_preempt(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],
        num_computed_tokens: int,
        worth_s: float = 0.0,
        *,
        ends: bool = False,
        beside: Callable[[Sequence[int]], int] | None = None,
    ) -> int | None:
        """Order that the KV of a request, which is about to lose its blocks, is stored.

        Return how many blocks are copied, 0 if all that is kept was copied before; ``None`` if nothing is kept.

        Args:
            request: The request.
            block_ids: The request's blocks, of each KV cache group.
            num_computed_tokens: Tokens that have their KV in the blocks once the steps in flight are over.
            worth_s: Engine seconds that it saves not to compute them again; decides which KV stays in a full pool.
            ends: Whether the request ends.
            beside: Returns the number of a copy of these device blocks that may go on beside steps; ``None`` where the
                next step waits for it.
        """
        failed: int | None = -1
        stored = self.contained(
            failed, self._order_store, request, block_ids, num_computed_tokens, worth_s, ends, beside
        )
        if stored == failed:
            # What is noted as kept may never be copied, and must not be loaded.
            self.contained(None, self.store.drop, request.request_id, "failed")
            return None
        return stored

    def _order_store(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],
        num_computed_tokens: int,
        worth_s: float,
        ends: bool,
        beside: Callable[[Sequence[int]], int] | None,
    ) -> int | None:
        # Drafts may be rejected yet, and output in flight dropped: it goes on with the tokens known now at least.
        kept = self.store.store(request.request_id, num_computed_tokens, worth_s, request.num_tokens - 1, ends=ends)
        if kept is None:
            return None
        places, host_ids = kept
        if host_ids:
            device_ids = _device_ids(block_ids, places)
            number = 0 if beside is None else beside(device_ids)
            self._orders.stores.append(Copy(request.request_id, device_ids, host_ids, number))
        return len(host_ids)

    def load_ended(self, request_id: str, failed: bool) -> bool | None:
        """Record what workers reported about a load.

        Return whether its KV may be used; ``None`` if the load was not ours.
        """
        if not self.store.is_loading(request_id):
            return None
        return self.store.loaded(request_id, failed=failed)

    # Scheduler's half, called by vLLM.

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.contained((0, False), self._matched_tokens, request, num_computed_tokens)

    def _matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        frontier = self.store.frontier(request.request_id, request.num_tokens)
        if frontier <= num_computed_tokens:
            return 0, False
        self.asked_blocks = self.store.blocks_to_load(num_computed_tokens, frontier)
        return (frontier - num_computed_tokens, True) if self.asked_blocks else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens <= 0:
            # It runs without: the prefix cache has it all, or another connector of a MultiConnector has more.
            frontier = self.contained(0, self.store.frontier, request.request_id, request.num_tokens)
            reason = "found_elsewhere" if frontier else "taken_back"
            self.contained(None, self.store.unused, request.request_id, request.num_tokens, reason)
            return
        order = self.contained(None, self._load, request, blocks, num_external_tokens)
        if order is None:
            # vLLM waits for it all the same: the worker says that it failed.
            self.contained(None, self.store.drop, request.request_id, "failed")
            order = Copy(request.request_id, [], [])
        self._orders.loads.append(order)
        if self._on_load is not None:
            self.contained(None, self._on_load, request, len(order.host_ids))

    def _load(self, request: Request, blocks: Any, num_external_tokens: int) -> Copy | None:
        frontier = self.store.frontier(request.request_id, request.num_tokens)
        places, host_ids = self.store.load(request.request_id, frontier - num_external_tokens, frontier)
        return Copy(request.request_id, _device_ids(blocks.get_block_ids(), places), host_ids)

    def build_connector_meta(self, scheduler_output: Any) -> SwapOrders:
        if self._on_load is None and not self._warned_alone:
            self._warned_alone = True
            logger.warning(
                "sloserve: SwapConnector keeps nothing without --scheduler-cls sloserve.vllm_plugin.SLOScheduler"
            )
        orders, self._orders = self._orders, SwapOrders()
        orders.awaited = self.contained(math.inf, self._awaited)
        return orders

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if not isinstance(report, SwapReport):
            return
        for request_id in sorted(report.failed_stores):
            # Where this fails the worker refuses the load: it knows which host blocks hold no KV.
            self.contained(None, self.store.store_failed, request_id)
        if self._on_report is not None:
            self.contained(None, self._on_report, report)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        self.contained(None, self.store.drop, request.request_id, "ended")
        return False, None

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool:
        return True  # this is a part of SLOScheduler's reset, which knows whether kept KV is void

    def has_pending_push_work(self) -> bool:
        """Return whether copies are to be made or run, so that vLLM does not take the engine for idle."""
        are_copying = self._are_copying is not None and self.contained(False, self._are_copying)
        return bool(self._orders.stores or self._orders.loads or are_copying)

    # Worker's half.

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        if not reports_preemptions(self._vllm_config):
            return  # nothing will be stored, so no memory is taken
        regions = regions_of(self._kv_cache_config, kv_caches)
        self._pool, copier = _pool_and_copier(
            regions, self._kv_cache_config.num_blocks, self.size.blocks, kv_caches, self._vllm_config.cache_config
        )
        self._worker = SwapWorker(copier)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if self._worker is not None:
            self._worker.store(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is None:
            return
        orders = self._get_connector_metadata()
        if isinstance(orders, SwapOrders):
            self.contained(None, self._worker.load, orders)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        # A load that is never heard of again is given up by the scheduler when it is late.
        ended, failed = self.contained(Loads(set(), set()), self._worker.ended)
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    def build_connector_worker_meta(self) -> SwapReport | None:
        return None if self._worker is None else self.contained(None, self._worker.report)

    def shutdown(self) -> None:
        if self._worker is not None:
            self.contained(False, self._worker.drain, DRAIN_S)
            self.contained(None, self._worker.close)
        if self._pool is not None:
            self.contained(None, self._pool.close)
        self._worker = self._pool = None

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are asynchronous, and a request that waits for one is not in the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: only the KV of preempted requests is stored."""

    def wait_for_save(self) -> None:
        """Do nothing: a store is over before a step writes its blocks."""


def _device_ids(block_ids: Sequence[Sequence[int]], places: Sequence[range]) -> list[int]:
    """Return the blocks at these places of a request's block tables, one for each KV cache group.

    Raises: ValueError where a table has no block at such a place.
    """
    found: list[int] = []
    for table, of_group in zip(block_ids, places, strict=True):
        ids = table[of_group.start : of_group.stop]
        if len(ids) < len(of_group) or NULL_BLOCK in ids:
            raise ValueError(f"a block table of {len(table)} blocks lacks some of blocks {of_group.start} on: {ids}")
        found += ids
    return found


def reports_preemptions(vllm_config: Any) -> bool:
    """Return whether the scheduler that vLLM will use reports when a request is about to lose its KV, as ours does."""
    scheduler = vllm_config.scheduler_config.scheduler_cls
    if isinstance(scheduler, str):
        scheduler = resolve_obj_by_qualname(scheduler)
    return bool(getattr(scheduler, "REPORTS_PREEMPTIONS", False))


def _pool_and_copier(
    regions: Sequence[Region], num_blocks: int, pool_blocks: int, kv_caches: Mapping[str, Any], cache_config: Any
) -> tuple[HostPool, Copier]:
    """Return pool and copier for the device that holds the cache. Raises: ConfigError, OSError."""
    size, device = block_bytes(regions), next(iter(kv_caches.values())).device
    if device.type == "cpu":
        pool = HostPool(pool_blocks, size)
        return pool, CpuCopier(regions, num_blocks, pool)
    pool = gpu_pool(pool_blocks, size, device)
    by_bytes = getattr(cache_config, "kv_cache_memory_bytes", None) is not None
    utilization = None if by_bytes else float(cache_config.gpu_memory_utilization)
    return pool, gpu_copier(regions, num_blocks, pool, device, utilization)
