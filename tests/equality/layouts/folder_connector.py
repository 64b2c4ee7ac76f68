"""A KV connector over a folder: a prompt's KV goes from one engine to another, as between prefill and decode.

vLLM's own of this kind (ExampleConnector) stores a prompt when its first chunk is scheduled, and fails when a preempted
request loads again. This one stores whole blocks once they are computed. Loads, and reads of what has ended, can take
some steps; blocks that are read must not change meanwhile, which it checks.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

Blocks = tuple[list[int], ...]
"""Of a request, by KV cache group. Block 0 stands for what a window has left."""

SEEN: Counter[str] = Counter()
"""What was done since it was cleared, by all connectors of this process."""


@dataclass(frozen=True)
class Transfer:
    """request: its id. key: of the prompt, the name of its file. first: block of the prompt from which on it is."""

    request: str
    key: str
    blocks: Blocks
    first: int = 0


@dataclass
class Orders(KVConnectorMetadata):
    """What a step shall store and load, and whose blocks are to be read from then on."""

    stores: list[Transfer] = field(default_factory=list)
    loads: list[Transfer] = field(default_factory=list)
    reads: list[Transfer] = field(default_factory=list)


class FolderConnector(KVConnectorBase_V1, SupportsHMA):
    """Extra config: ``folder``; ``load_steps``, 0: within the step; ``read_steps``, 0: what has ended is not read."""

    sloserve_pauses = True  # it follows what each step computes

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        given = self._kv_transfer_config.get_from_extra_config
        self._folder = Path(given("folder", None))
        self._load_steps, self._read_steps = given("load_steps", 0), given("read_steps", 0)
        self._block_tokens = vllm_config.cache_config.block_size
        # The scheduler's side.
        self._requests: dict[str, Any] = {}
        self._orders = Orders()
        # The worker's side.
        self._caches: dict[str, Any] = {}
        self._loading: list[tuple[int, Transfer]] = []
        self._reading: list[tuple[int, Transfer, dict[str, Any]]] = []
        self._ended: tuple[set[str], set[str]] = (set(), set())

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self._whole(request)
        if not self._kv_transfer_config.is_kv_consumer or not self._file(_key(request, tokens)).exists():
            return 0, False
        return max(tokens - num_computed_tokens, 0), self._load_steps > 0 and tokens > num_computed_tokens

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._requests[request.request_id] = request
        if num_external_tokens:
            tokens = self._whole(request)
            first = (tokens - num_external_tokens) // self._block_tokens
            self._orders.loads.append(
                Transfer(request.request_id, _key(request, tokens), blocks.get_block_ids(), first)
            )
            SEEN["loads"] += 1
            SEEN["loads_again"] += request.num_preemptions > 0

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        cached = scheduler_output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, start in starts.items() if self._kv_transfer_config.is_kv_producer else ():
            request = self._requests[request_id]
            tokens = self._whole(request)
            if start < tokens <= start + scheduler_output.num_scheduled_tokens[request_id]:
                self._orders.stores.append(Transfer(request_id, _key(request, tokens), self._blocks_of(request_id)))
                SEEN["stores"] += 1
        orders, self._orders = self._orders, Orders()
        return orders

    def request_finished_all_groups(self, request: Any, block_ids: Blocks) -> tuple[bool, None]:
        known = self._requests.pop(request.request_id, None)
        delay = bool(self._read_steps and known is not None and any(block_ids))
        if delay:
            self._orders.reads.append(Transfer(request.request_id, "", self._filled(request, block_ids)))
            SEEN["reads"] += 1
        return delay, None

    def _filled(self, request: Any, blocks: Blocks) -> Blocks:
        """The blocks that no step in flight still writes to."""
        count = (request.num_computed_tokens - request.num_in_flight_tokens) // self._block_tokens
        return tuple(group[: max(count, 0)] for group in blocks)

    def _blocks_of(self, request_id: str) -> Blocks:
        assert self._kv_cache_manager is not None
        found: Blocks = self._kv_cache_manager.get_block_ids(request_id)
        return found

    def _whole(self, request: Any) -> int:
        """Tokens of the prompt in whole blocks, but for its last token, which is always computed."""
        return int((request.num_prompt_tokens - 1) // self._block_tokens * self._block_tokens)

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for transfer in self._get_orders().loads:
            if self._load_steps:
                self._loading.append((self._load_steps, transfer))
            else:
                self._load(transfer)

    def wait_for_save(self) -> None:
        """After the step's computation."""
        orders = self._get_orders()
        for transfer in orders.stores:
            self._store(transfer)
        left, self._loading = self._loading, []
        for steps, transfer in left:
            if steps > 1:
                self._loading.append((steps - 1, transfer))
            else:
                self._load(transfer)
                self._ended[1].add(transfer.request)
        for steps, transfer, before in self._reading:
            _check_unchanged(before, self._contents(transfer))
            if steps <= 1:
                self._ended[0].add(transfer.request)
        self._reading = [(steps - 1, *rest) for steps, *rest in self._reading if steps > 1]
        self._reading += [(self._read_steps, one, self._contents(one)) for one in orders.reads]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        ended, self._ended = self._ended, (set(), set())
        return ended

    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def _get_orders(self) -> Orders:
        orders = self._get_connector_metadata()
        assert isinstance(orders, Orders)
        return orders

    def _contents(self, transfer: Transfer) -> dict[str, Any]:
        """Of each layer: its blocks in their order, those that a window has left as well."""
        groups = zip(self._kv_cache_config.kv_cache_groups, transfer.blocks, strict=True)
        return {layer: self._caches[layer][ids].clone() for group, ids in groups for layer in group.layer_names}

    def _store(self, transfer: Transfer) -> None:
        from safetensors.torch import save_file

        save_file(self._contents(transfer), self._file(transfer.key))

    def _load(self, transfer: Transfer) -> None:
        from safetensors.torch import load_file

        stored = load_file(self._file(transfer.key))
        for group, ids in zip(self._kv_cache_config.kv_cache_groups, transfer.blocks, strict=True):
            for layer in group.layer_names:
                for place in range(transfer.first, len(stored[layer])):
                    if place < len(ids) and ids[place]:
                        self._caches[layer][ids[place]] = stored[layer][place]

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"


def _key(request: Any, tokens: int) -> str:
    """Empty for a prompt of less than a block."""
    ids = request.prompt_token_ids[:tokens]
    return hashlib.sha256(repr(ids).encode()).hexdigest() if ids else ""


def _check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    for layer, blocks in before.items():
        assert bool((blocks == now[layer]).all()), "blocks of a finished request changed while they were read"
